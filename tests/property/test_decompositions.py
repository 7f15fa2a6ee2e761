"""Laws of the decompositions, for blocks of every structure with random weights and random attention."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from clearhead import linalg
from clearhead.linalg import carried, decompose
from clearhead.linalg.block import Affine, Block, FeedForward, Norm, Norms, Replay, normed
from clearhead.linalg.decompose import Stage

# Float64, tens of numbers in each sum; norms may divide by a spread ten times smaller than what they read.
CLOSE = 1e-10
STAGES: tuple[Stage, ...] = ("attention", "residual", "norm", "block")


@dataclass(frozen=True)
class Made:
    """Two blocks in a row, what went through them, and whether attention was causal."""

    runs: tuple[Replay, ...]
    causal: bool


@st.composite
def made(draw: st.DrawFn, causal: bool | None = None) -> Made:
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    tokens, width, inner = draw(st.integers(1, 6)), draw(st.integers(3, 7)), draw(st.integers(1, 8))
    kv, group, value_width = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    parallel, gated, biased = (draw(st.booleans()) for _ in range(3))
    causal = draw(st.booleans()) if causal is None else causal
    activation = draw(st.sampled_from([torch.tanh, torch.nn.functional.gelu, torch.nn.functional.silu]))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    def norm() -> Norm | None:
        kind: Any = draw(st.sampled_from(["layer", "rms", None]))
        return None if kind is None else Norm(kind, 1 + normal(width) / 4, normal(width) if biased else None, 1e-3)

    def affine(read: int, out: int) -> Affine:
        return Affine(normal(read, out), normal(out) if biased else None)

    def block() -> Block:
        forward = FeedForward(
            Norms(norm(), norm(), None if parallel else norm()),
            affine(width, inner),
            affine(inner, width),
            activation,
            affine(width, inner) if gated else None,
        )
        return Block(
            Norms(norm(), norm(), None if parallel else norm()),
            normal(kv, width, value_width),
            normal(kv, value_width) if biased else None,
            normal(kv * group, value_width, width),
            normal(width) if biased else None,
            forward,
            parallel,
        )

    runs: list[Replay] = []
    x = normal(tokens, width)
    for _ in range(2):
        one = block()
        logits = normal(kv * group, tokens, tokens)
        if causal:
            logits = logits.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), float("-inf"))
        values = normed(one.norms.before, x) @ one.value_weight
        values = values if one.value_bias is None else values + one.value_bias[:, None]
        runs.append(linalg.replay(one, x, logits.softmax(-1), values))
        x = runs[-1].output
    return Made(tuple(runs), causal)


RULES = st.builds(linalg.Rules, bias=st.sampled_from(["absdot", "norm"]), slope=st.sampled_from(["GeLU_ZO", "GeLU_LA"]))


def fit(rules: linalg.Rules, ran: Replay) -> linalg.Rules:
    """GeLU_LA is not defined for a gate."""
    return rules if ran.gate is None else replace(rules, slope="GeLU_ZO")


@contextmanager
def chunks_of_one_row() -> Iterator[None]:
    before, carried.CHUNK = carried.CHUNK, 1
    try:
        yield
    finally:
        carried.CHUNK = before


def shareable(ran: Replay) -> bool:
    """Not a query whose few inner units all give exactly 0 (gelu far below 0): its bias has no part to go with, and
    `decompx` refuses it, for the parts then do not sum to the state."""
    forward = ran.block.feed_forward
    gate = ran.inner if ran.gate is None else ran.gate
    return bool((forward.activation(gate) != 0).any(-1).all())


def near(found: Tensor, expected: Tensor) -> bool:
    return bool(((found - expected).abs() <= CLOSE * (1 + expected.abs().max())).all())


@given(made(), RULES)
def test_parts_sum_to_the_state(two: Made, rules: linalg.Rules) -> None:
    parts = None
    assume(all(shareable(ran) for ran in two.runs))
    for ran in two.runs:
        assert near(ran.projected, ran.values)
        parts = linalg.carry(ran, parts, fit(rules, ran))
        assert near(parts.sum(1), ran.output)
        if two.causal:
            assert (parts[torch.ones(parts.shape[:2]).triu(1).bool()] == 0).all()


@given(made(causal=False), RULES)
def test_causal_after_bidirectional(two: Made, rules: linalg.Rules) -> None:
    """Parts of later tokens that came in by an earlier block are kept where this block's attention is causal."""
    first, second = two.runs
    attention = second.probabilities.tril()
    ran = linalg.replay(second.block, second.x, attention / attention.sum(-1, keepdim=True), second.values)
    assume(shareable(first) and shareable(ran))
    with chunks_of_one_row():
        parts = linalg.carry(ran, linalg.carry(first, None, fit(rules, first)), fit(rules, ran))
    assert near(parts.sum(1), ran.output)


@given(made(), st.data())
def test_tokens_have_no_order(two: Made, data: st.DataObject) -> None:
    """Tokens in another order (attention with them): the same parts in that order."""
    ran = two.runs[0]
    order = data.draw(st.permutations(range(len(ran.x))))
    moved = linalg.replay(ran.block, ran.x[order], ran.probabilities[:, order][:, :, order], ran.values[:, order])
    for stage in STAGES:
        assert near(linalg.part_norms(moved, stage), linalg.part_norms(ran, stage)[order][:, order])
    rules = fit(linalg.Rules(), ran)
    assert near(linalg.carry(moved, None, rules), linalg.carry(ran, None, rules)[order][:, order])


@given(made(), st.sampled_from(STAGES))
def test_norms_are_those_of_the_vectors(two: Made, stage: Stage) -> None:
    """Each part as its own vector, made by leaving all other keys out of the attention."""
    for ran in two.runs:
        norms = linalg.part_norms(ran, stage)
        total = torch.zeros_like(ran.x)
        for key in range(len(ran.x)):
            alone = torch.zeros_like(ran.probabilities)
            alone[:, :, key] = ran.probabilities[:, :, key]
            heads = torch.einsum("hqk,hkv->hqv", alone, ran.values.repeat_interleave(len(alone) // len(ran.values), 0))
            vectors = torch.einsum("hqv,hvw->qw", heads, ran.block.output_weight)
            residual = torch.zeros_like(ran.x)
            residual[key] = ran.x[key]
            part = decompose.through(ran, stage, vectors, residual)
            assert near(norms[:, key], part.norm(dim=-1))
            total += part
        assert near(total, decompose.whole(ran, stage))


@given(made())
def test_sizes(two: Made) -> None:
    for ran in two.runs:
        heads, summed = linalg.head_norms(ran), linalg.part_norms(ran, "attention")
        assert (heads >= 0).all() and (summed <= heads.sum(0) + CLOSE).all()
        for stage in STAGES[:3]:
            ratio = linalg.mixing(ran, stage)
            assert ((ratio >= 0) & (ratio <= 1)).all()
            assert len(ratio) > 1 or float(ratio) < CLOSE  # a token alone mixes with nothing
        proximity = linalg.proximity(ran, "norm")
        assert (proximity <= ran.middle.abs().sum(-1, keepdim=True) + CLOSE).all()
        if two.causal:
            hidden = torch.ones_like(proximity).triu(1).bool()
            assert (proximity[hidden] == 0).all() and (summed[hidden] == 0).all()


@given(made(), st.floats(0.1, 10))
def test_scale_of_the_output_projection(two: Made, factor: float) -> None:
    """Vector norms grow with W_O."""
    ran = two.runs[0]
    block = replace(ran.block, output_weight=ran.block.output_weight * factor)
    other = linalg.replay(block, ran.x, ran.probabilities, ran.values)
    assert near(linalg.part_norms(other, "attention"), factor * linalg.part_norms(ran, "attention"))


@given(made(), RULES)
def test_nothing_is_lost_in_chunks(two: Made, rules: linalg.Rules) -> None:
    whole = parts = None
    for ran in two.runs:
        whole = linalg.carry(ran, whole, fit(rules, ran))
    with chunks_of_one_row():
        for ran in two.runs:
            parts = linalg.carry(ran, parts, fit(rules, ran))
    assert whole is not None and parts is not None and near(parts, whole)
