"""Laws of effective attention over random shapes, masks and kinds of values."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nullspace_oracle import KINDS, Made, effective, values_of

from clearhead.linalg import nullspace, polytope

FLOAT64 = 4e-9  # what a fast way may cost a row of norm at most 1: 4 x `row_blocks.FINEST`


@st.composite
def layers(draw: st.DrawFn) -> Made:
    """Any interval of visible keys for each query, in runs; more and fewer queries than keys."""
    kv, group = draw(st.sampled_from([(1, 1), (1, 3), (2, 1), (2, 2)]))
    keys, width = draw(st.integers(1, 36)), draw(st.integers(1, 12))
    start, stop = [], []
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, keys - 1))
        last = draw(st.integers(first + 1, keys))
        move = draw(st.sampled_from([(0, 0), (0, 1), (1, 1), (1, 0)]))
        for step in range(draw(st.integers(1, 12))):
            lower = min(first + move[0] * step, keys - 1)
            start.append(lower)
            stop.append(max(lower + 1, min(last + move[1] * step, keys)))
    seed = draw(st.integers(0, 2**16))
    values = values_of(draw(st.sampled_from(KINDS)), kv, keys, width, seed)
    random = torch.Generator().manual_seed(seed + 1)
    logits = torch.randn(kv * group, len(start), keys, generator=random, dtype=torch.float64)
    for i in range(len(start)):
        logits[:, i, : start[i]] = logits[:, i, stop[i] :] = -torch.inf
    attention = logits.softmax(-1)
    outputs = attention @ values.repeat_interleave(group, 0)
    return Made(attention, values, outputs, start, stop)


def ours(layer: Made, attention: torch.Tensor, *, row_sum: bool = False) -> torch.Tensor:
    return nullspace.effective_attention(
        layer.values, layer.start, layer.stop, eps=layer.eps, probabilities=attention, row_sum=row_sum
    )[0]


@given(layers(), st.booleans())
@settings(max_examples=60)
def test_laws(layer: Made, row_sum: bool) -> None:
    found = ours(layer, layer.attention, row_sum=row_sum)
    values = layer.values.repeat_interleave(len(found) // len(layer.values), 0)
    size = float(values.abs().max()) or 1.0
    # same output: the errors of a row's entries times the values
    assert (found @ values - layer.attention @ values).abs().max() <= FLOAT64 * size * values.shape[1]
    again = ours(layer, found, row_sum=row_sum)
    assert (again - found).abs().max() <= 2 * FLOAT64  # idempotent
    null = layer.attention - found
    assert (null * found).sum(-1).abs().max() <= 2 * FLOAT64  # orthogonal: any share of it only adds to the norm
    for share in (-1.0, 0.5, 1.0):
        assert ((found + share * null).norm(dim=-1) >= found.norm(dim=-1) - 2 * FLOAT64).all()
    right = effective(layer.attention, layer.values, layer.start, layer.stop, layer.eps, row_sum=row_sum)
    np.testing.assert_allclose(found.numpy(), right, rtol=0, atol=FLOAT64)


@given(layers())
@settings(max_examples=40)
def test_sums_are_those_of_the_matrix(layer: Made) -> None:
    sums = nullspace.effective_row_sums(layer.values, layer.start, layer.stop, eps=layer.eps, outputs=layer.outputs)
    right = effective(layer.attention, layer.values, layer.start, layer.stop, layer.eps)
    rows = right.shape[1]
    np.testing.assert_allclose(sums.norm_squared.numpy(), (right**2).sum(-1), rtol=0, atol=2 * FLOAT64)
    np.testing.assert_allclose(sums.received.numpy(), right.sum(1), rtol=0, atol=2 * rows * FLOAT64)


@given(st.integers(1, 14), st.integers(1, 8), st.sampled_from(KINDS), st.integers(0, 2**16))
@settings(max_examples=25)
def test_bounds_hold_every_member(keys: int, width: int, kind: str, seed: int) -> None:
    values = values_of(kind, 1, keys, width, seed)[0]
    row = torch.randn(keys, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(0)
    bounds, free = polytope.weight_bounds(values, row, 2.0**-52)
    assert (bounds[0] <= row.numpy()).all()
    assert (row.numpy() <= bounds[1]).all()
    assert (bounds[0] >= 0).all()
    assert (bounds[1] <= 1 + 1e-9).all()
    weights, distance = polytope.farthest_weights(values, row, 2.0**-52, starts=3, seed=seed)
    # Both come from programmes whose constraints hold to 1e-9, of rows of weights of at most 1.
    assert (weights >= bounds[0] - 1e-7).all()
    assert (weights <= bounds[1] + 1e-7).all()
    assert abs(weights.sum() - 1) <= 1e-7
    assert np.abs((weights - row.numpy()) @ values.numpy()).max() <= 1e-7 * max(1.0, float(values.abs().max()))
    assert distance <= (bounds[1] - bounds[0]).sum() / 2 + 1e-7
    assert (distance == 0.0) == (free == 0)
