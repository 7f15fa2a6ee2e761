"""token_identifiability_naive: a slow loop as oracle, identical and tied candidates, and what it refuses."""

from typing import Any

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead import errors, linalg
from tests.tiny import RECIPES, tiny

REPEATED = "w5 w6 w5 w7 w8 w5 w9"


def slowly(states: np.ndarray, vectors: np.ndarray, distance: str) -> tuple[list[float], list[float]]:
    """(rate, strict rate) by depth, one pair at a time."""

    def far(a: np.ndarray, b: np.ndarray) -> float:
        if distance == "l2":
            return float(np.sqrt(((a - b) ** 2).sum()))
        return 1 - float(a @ b) / float(np.sqrt(a @ a) * np.sqrt(b @ b))

    rates, strict = [], []
    for depth in states:
        right, alone = [], []
        for j, state in enumerate(depth):
            same = [(vectors[i] == vectors[j]).all() for i in range(len(vectors))]
            others = [far(state, vectors[i]) for i in range(len(vectors)) if not same[i]]
            right.append(far(state, vectors[j]) < min(others))
            alone.append(right[-1] and sum(same) == 1)
        rates.append(np.mean(right))
        strict.append(np.mean(alone))
    return rates, strict


@pytest.mark.parametrize("distance", ["cosine", "l2"])
@pytest.mark.parametrize("family", RECIPES)
def test_equals_a_slow_loop(family: str, distance: Any) -> None:
    trace = ch.load(tiny(family, torch.float64)).trace(REPEATED)
    table = ch.token_identifiability_naive(trace, distance=distance)
    hidden = trace.hidden.double().numpy()
    rates, strict = slowly(hidden, hidden[0], distance)
    assert table["rate"].tolist() == pytest.approx(rates, abs=1e-12)
    assert table["strict_rate"].tolist() == pytest.approx(strict, abs=1e-12)
    assert table["depth"].tolist() == list(range(len(hidden)))
    assert table["rate"][0] == 1  # a token vector is nearest to itself
    positions = family in ("bert", "roberta", "distilbert", "electra", "albert", "mpnet", "gpt2")
    assert table["identical"].tolist() == [0 if positions else 3] * len(hidden)
    assert (table["strict_rate"][0] == 1) == positions


def test_sum_is_measured_against_what_the_norm_reads() -> None:
    trace = ch.load(tiny("bert", torch.float64)).trace(REPEATED)
    vectors = trace.model.from_embedding(trace, "sum")[0]
    table = ch.token_identifiability_naive(trace, embedding="sum")
    rates, _ = slowly(trace.hidden.numpy(), vectors.numpy(), "cosine")
    assert table["rate"].tolist() == pytest.approx(rates, abs=1e-12)
    assert table.meta["options"] == {"distance": "cosine", "embedding": "sum", "per_token": False}


def test_each_token_adds_up_to_the_rates() -> None:
    trace = ch.load(tiny("llama", torch.float64)).trace(REPEATED)
    rates = ch.token_identifiability_naive(trace)
    each = ch.token_identifiability_naive(trace, per_token=True)
    shape = trace.hidden.shape[:2]
    assert len(each) == shape[0] * shape[1]
    right, nearest = each["right"].reshape(shape), each["nearest"].reshape(shape)
    assert (right.mean(1) == rates["rate"]).all()
    assert (each["strict"].reshape(shape).mean(1) == rates["strict_rate"]).all()
    assert (nearest[right] == np.tile(np.arange(shape[1]), (shape[0], 1))[right]).all()
    assert not right.all()
    wrong = [(int(j), int(nearest[d, j])) for d, j in np.argwhere(~right)]
    assert all((trace.tokens.ids or ())[j] != (trace.tokens.ids or ())[k] for j, k in wrong)
    assert each["piece"].tolist() == list(trace.tokens.pieces) * shape[0]


def test_a_tie_between_different_vectors_counts_as_wrong() -> None:
    vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    states = torch.tensor([[[1.0, 1.0], [0.0, 2.0], [3.0, 0.5]]])
    for distance in ("cosine", "l2"):
        found = linalg.nearest_candidates(states, vectors, distance)
        assert found.right.tolist() == [[False, True, True]]
        assert found.nearest.tolist() == [[1, 1, 2]]
        assert found.alone.tolist() == [False, True, False]
        assert found.margin[0, 0] == 0
    assert linalg.nearest_candidates(states, vectors, "l2").margin[0, 1] == pytest.approx(5**0.5 - 1)


def test_what_is_not_defined_or_not_allowed() -> None:
    model = ch.load(tiny("electra", torch.float64))
    trace = model.trace(REPEATED)
    with pytest.raises(errors.NotDefined, match=r"differ in width; got 7 and 12.*embedding='output'"):
        ch.token_identifiability_naive(trace, embedding="sum")
    with pytest.raises(errors.InputError, match="'cosine', 'l2'"):
        ch.token_identifiability_naive(trace, distance="l1")  # type: ignore[arg-type]
    with pytest.raises(errors.InputError, match="'output', 'sum'"):
        ch.token_identifiability_naive(trace, embedding="input")  # type: ignore[arg-type]
    alike = ch.load(tiny("qwen2", torch.float64)).trace("w5 w5 w5")
    with pytest.raises(errors.NotDefined, match="have the same one; got 3 tokens"):
        ch.token_identifiability_naive(alike)
    zero = torch.zeros(1, 2, 2)
    with pytest.raises(errors.NotDefined, match=r"hidden state that is all zero.*distance='l2'"):
        linalg.nearest_candidates(zero, torch.eye(2), "cosine")
    with pytest.raises(errors.NotDefined, match="token vector that is all zero"):
        linalg.nearest_candidates(zero + 1, torch.tensor([[0.0, 0.0], [1.0, 0.0]]), "cosine")
    assert linalg.nearest_candidates(zero, torch.eye(2), "l2").right.tolist() == [[False, False]]
