"""TTCAV against scikit-learn's regression and central differences; its laws; what it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import clearhead as ch
from clearhead import errors
from tests.tiny import tiny, words

OTHER = words(4, 3)
CONCEPT = [f"w1 w2 {words(3, seed)}" for seed in range(20, 28)]
REST = [f"w8 w9 {words(3, seed)}" for seed in range(30, 37)]
STEP = 1e-5


def traced(family: str) -> ch.Trace:
    return ch.load(tiny(family, torch.float64, attention="eager")).trace(words(5))


def by_definition(trace: ch.Trace, layer: int) -> np.ndarray:
    """The formula, entry by entry, the model run by hooks."""
    model: Any = trace.model
    x = np.stack([model.trace(text).hidden[layer].mean(0).numpy() for text in CONCEPT + REST])
    line = LogisticRegression(C=1.0, tol=1e-12, max_iter=10000).fit(x, [1] * len(CONCEPT) + [0] * len(REST))
    v = line.coef_[0] / np.linalg.norm(line.coef_[0])

    def pooled(text: str) -> np.ndarray:
        with torch.no_grad():
            return model.hf(**model.tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).numpy()

    other = pooled(OTHER)

    def value(states: torch.Tensor) -> float:
        def put(module: Any, args: Any) -> Any:
            return (states[None], *args[1:])

        handle = model.layer_modules()[layer].register_forward_pre_hook(put)
        try:
            own = pooled(trace.tokens.text)
        finally:
            handle.remove()
        return float(own @ other / np.linalg.norm(own) / np.linalg.norm(other))

    d = np.zeros(len(trace.tokens))
    for token in range(len(d)):
        more, less = trace.hidden[layer].clone(), trace.hidden[layer].clone()
        more[token] += STEP * torch.from_numpy(v)
        less[token] -= STEP * torch.from_numpy(v)
        d[token] = (value(more) - value(less)) / (2 * STEP)
    attention = trace.layers[layer].probabilities
    assert attention is not None
    a = np.zeros(len(d))
    for head in attention.numpy():
        for row in head:
            a += row / len(head) / len(attention)
    return a * d * np.sqrt((a * a).sum()) / np.sqrt((d * d).sum())


@pytest.mark.parametrize(("family", "layer"), [("bert", 0), ("bert", 1), ("mpnet", 1)])
def test_equals_the_definition(family: str, layer: int) -> None:
    trace = traced(family)
    found = ch.ttcav(trace, concept=CONCEPT, rest=REST, layer=layer, target=ch.SimilarTo(OTHER))
    expected = by_definition(trace, layer)
    np.testing.assert_allclose(found.values, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert found.meta["accuracy"] > 0.6
    assert found.meta["texts"] == [8, 7]


def test_changes_sign_with_the_concept() -> None:
    trace = traced("bert")
    target = ch.SimilarTo(OTHER)
    one = ch.ttcav(trace, concept=CONCEPT, rest=REST, target=target)
    other = ch.ttcav(trace, concept=REST, rest=CONCEPT, target=target)
    np.testing.assert_allclose(one.values, -other.values, rtol=1e-5, atol=1e-9)


def test_texts_from_files(tmp_path: Path) -> None:
    trace = traced("bert")
    for name, texts in (("concept", CONCEPT), ("rest", REST)):
        (tmp_path / name).write_text("\n".join(texts) + "\n\n", "utf-8")
    options = {"target": ch.SimilarTo(OTHER)}
    read = ch.ttcav(trace, concept=str(tmp_path / "concept"), rest=str(tmp_path / "rest"), **options)
    assert read.equals(ch.ttcav(trace, concept=CONCEPT, rest=REST, **options))


def test_refusals(tmp_path: Path) -> None:
    trace = traced("bert")
    target = ch.SimilarTo(OTHER)
    with pytest.raises(errors.NotDefined, match="not told apart"):
        ch.ttcav(trace, concept=CONCEPT, rest=CONCEPT, target=target)
    with pytest.raises(errors.InputError, match=r"concept.*3 texts.*4 or more"):
        ch.ttcav(trace, concept=CONCEPT[:3], rest=REST, target=target)
    with pytest.raises(errors.InputError, match=r"rest.*none\.txt"):
        ch.ttcav(trace, concept=CONCEPT, rest=str(tmp_path / "none.txt"), target=target)
    with pytest.raises(errors.InputError, match=r"layer.*9.*0 to"):
        ch.ttcav(trace, concept=CONCEPT, rest=REST, layer=9, target=target)
    with pytest.raises(errors.NotDefined, match="BertModel"):
        ch.ttcav(trace, concept=CONCEPT, rest=REST)
