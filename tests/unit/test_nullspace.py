"""Effective attention, its sums, ranks and polytopes against one decomposition a row and closed forms."""

import numpy as np
import pytest
import torch
from nullspace_oracle import KINDS, MASKS, Made, effective, made

from clearhead.errors import NotDefined
from clearhead.linalg import nullspace, polytope, rank, row_blocks, row_solvers, rows

# A fast way may cost a row 4 x 1e-9 of its norm in float64 (`row_blocks.FINEST`), and rows are at most 1 long.
FLOAT64 = 4e-9
# In float32 it may cost 4 roundings, and products of up to 40 terms lose as many more: (4 + 40) x 1.2e-7.
FLOAT32 = 6e-6


def ours(layer: Made, *, recorded: bool = False, row_sum: bool = False) -> np.ndarray:
    given = {"outputs": layer.outputs} if recorded else {"probabilities": layer.attention}
    found, _ = nullspace.effective_attention(
        layer.values, layer.start, layer.stop, eps=layer.eps, row_sum=row_sum, **given
    )
    return found.numpy()


def theirs(layer: Made, *, row_sum: bool = False) -> np.ndarray:
    return effective(layer.attention, layer.values, layer.start, layer.stop, layer.eps, row_sum=row_sum)


@pytest.mark.parametrize("row_sum", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", MASKS)
def test_equals_a_decomposition_of_every_row(mask: str, kind: str, row_sum: bool) -> None:
    layer = made(mask, kind)
    right = theirs(layer, row_sum=row_sum)
    np.testing.assert_allclose(ours(layer, row_sum=row_sum), right, rtol=0, atol=FLOAT64)
    assert np.abs(right - layer.attention.numpy()).max() > 0.05  # there is something to take away


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", MASKS)
def test_from_outputs_alone(mask: str, kind: str) -> None:
    layer = made(mask, kind)
    # The outputs are rounded to 2e-16 of their size; a row divides by singular values down to 1e-5 of the largest.
    np.testing.assert_allclose(ours(layer, recorded=True), theirs(layer), rtol=0, atol=2e-9 + FLOAT64)


@pytest.mark.parametrize("kind", ["general", "repeated", "often", "massive"])
@pytest.mark.parametrize("mask", MASKS)
def test_float32(mask: str, kind: str) -> None:
    layer = made(mask, kind, dtype=torch.float32)
    found = ours(layer)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, theirs(layer), rtol=0, atol=FLOAT32)


@pytest.mark.parametrize("kind", ["general", "repeated", "often", "decaying"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_is_attention_itself_where_values_are_independent(kind: str, dtype: torch.dtype) -> None:
    layer = made("causal", kind, dtype=dtype)
    found, attention = ours(layer), layer.attention.numpy()
    group, independent = len(attention) // len(layer.values), 0
    for head in range(len(attention)):
        for query in range(40):
            seen = layer.values[head // group, : query + 1].double()
            if torch.linalg.matrix_rank(seen) == query + 1:
                independent += 1
                np.testing.assert_array_equal(found[head, query], attention[head, query])
    assert independent >= 4 * 2


@pytest.mark.parametrize("mask", ["causal", "window", "prefix"])
def test_hidden_keys_get_exactly_nothing(mask: str) -> None:
    layer = made(mask, "often")
    hidden = np.ones((40, 40), dtype=bool)
    for i in range(40):
        hidden[i, layer.start[i] : layer.stop[i]] = False
    for row_sum in (False, True):
        assert not ours(layer, row_sum=row_sum)[:, hidden].any()
    everyone = effective(layer.attention, layer.values, [0] * 40, [40] * 40, layer.eps)
    assert np.abs(everyone[:, hidden]).max() > 0.05  # the published formula does put weight there


def test_row_sum_keeps_sums_and_the_free_form_does_not() -> None:
    layer = made("both", "general")
    assert np.abs(ours(layer, row_sum=True).sum(-1) - 1).max() < FLOAT64 * 40
    assert np.abs(ours(layer).sum(-1) - 1).max() > 0.05


def test_sums_of_rows_less_than_one_are_their_own() -> None:
    layer = made("both", "general")
    less = 0.6 * layer.attention
    found, _ = nullspace.effective_attention(
        layer.values, layer.start, layer.stop, eps=layer.eps, probabilities=less, row_sum=True
    )
    assert (found.sum(-1) - 0.6).abs().max() < FLOAT64 * 40


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", MASKS)
def test_sums_without_the_matrix(mask: str, kind: str, recorded: bool) -> None:
    layer = made(mask, kind)
    given = {"outputs": layer.outputs} if recorded else {"probabilities": layer.attention}
    sums = nullspace.effective_row_sums(layer.values, layer.start, layer.stop, eps=layer.eps, **given)
    right = theirs(layer)
    # a column sums up to 40 rows of the error above
    np.testing.assert_allclose(sums.norm_squared.numpy(), (right**2).sum(-1), rtol=0, atol=4e-8)
    np.testing.assert_allclose(sums.received.numpy(), right.sum(1), rtol=0, atol=40 * 6e-9)


def test_padding_left_in_would_invent_null_space() -> None:
    """The negative control of removing it: rows of zeros behind the values change every row."""
    layer = made("both", "general", tokens=12, width=14)
    np.testing.assert_array_equal(ours(layer), layer.attention.numpy())
    padded = torch.cat([layer.values, layer.values[:, :6]], 1)
    wrong, _ = nullspace.effective_attention(
        padded, [0] * 12, [18] * 12, eps=layer.eps, probabilities=torch.nn.functional.pad(layer.attention, (0, 6))
    )
    assert (wrong[:, :, :12] - layer.attention).abs().max() > 0.05


def test_query_heads_read_their_own_value_head() -> None:
    layer = made("both", "general", kv=2, group=3)
    wrong_order = layer.values[[0, 1] * 3]
    right_order = layer.values.repeat_interleave(3, 0)
    same, _ = nullspace.effective_attention(
        right_order, layer.start, layer.stop, eps=layer.eps, probabilities=layer.attention
    )
    np.testing.assert_allclose(ours(layer), same.numpy(), rtol=0, atol=FLOAT64)
    other, _ = nullspace.effective_attention(
        wrong_order, layer.start, layer.stop, eps=layer.eps, probabilities=layer.attention
    )
    assert np.abs(ours(layer) - other.numpy()).max() > 0.05


@pytest.mark.parametrize("read", [0, 3, 8])
@pytest.mark.parametrize("mask", MASKS)
def test_an_output_projection_that_reads_less(mask: str, read: int) -> None:
    """The null space is that of V H; the other heads, whose projection reads everything, are as before."""
    layer = made(mask, "general")
    random = torch.Generator().manual_seed(5)
    weight = torch.randn(4, 8, 20, generator=random, dtype=torch.float64)
    weight[1] = weight[1, :, :read] @ weight[2, :read]
    written = torch.stack([layer.values[head // 2] @ weight[head] for head in range(4)])
    right = effective(layer.attention, written, layer.start, layer.stop, 1e-13)
    for given in ({"probabilities": layer.attention}, {"outputs": layer.outputs}):
        found, _ = nullspace.effective_attention(
            layer.values, layer.start, layer.stop, eps=layer.eps, directions=rank.read_directions(weight), **given
        )
        np.testing.assert_allclose(found.numpy(), right, rtol=0, atol=6e-9)
    assert (np.abs(ours(layer)[1] - right[1]).max() > 0.05) == (read < 8)


def test_fast_ways_are_taken_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """General values never need a decomposition, decaying ones do; so the tests above exercise both."""
    calls: list[int] = []
    original = row_solvers.singular_values

    def counted(*arguments: object) -> object:
        calls.append(1)
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(row_blocks, "singular_values", counted)
    for mask in MASKS:
        ours(made(mask, "general"))
        ours(made(mask, "repeated"))
    assert not calls
    layer = made("causal", "general")
    reading = rows.Reading(slice(0, 4), layer.values, None, layer.attention.unflatten(0, (2, 2)))
    found = list(row_blocks.pieces(reading, layer.start, layer.stop, layer.eps))
    assert len(found) == len(list(row_blocks.blocks(layer.start, layer.stop, 8)))  # no block was taken apart
    ours(made("causal", "decaying", tokens=12))
    assert calls


def test_a_solution_that_misses_its_outputs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    original = row_solvers._woodbury
    spoiled = []

    def wrong(gram, factor, extra, seen, outputs):  # type: ignore[no-untyped-def]
        """One value head's solution a millionth off, with the residual that this has."""
        weights, residual = original(gram, factor, extra, seen, outputs)
        weights[0], residual[0] = weights[0] * (1 + 1e-6), residual[0] + 1e-6 * outputs[0].norm(dim=-1)
        spoiled.append(weights[0])
        return weights, residual

    monkeypatch.setattr(row_solvers, "_woodbury", wrong)
    layer = made("causal", "general")
    np.testing.assert_allclose(ours(layer), theirs(layer), rtol=0, atol=FLOAT64)
    assert spoiled


def test_equal_values_count_as_often_as_they_stand() -> None:
    """A value 2500 times smaller than one that stands 400 times is below the tolerance; if each stood once, not."""
    values = torch.zeros(1, 401, 4)
    values[0, :400, 0], values[0, 400, 1] = 1.0, 4e-4
    attention = torch.rand(1, 3, 401, generator=torch.Generator().manual_seed(0)).softmax(-1)
    layer = Made(attention, values, attention @ values, [0] * 3, [401] * 3)
    right = theirs(layer)
    assert not right[:, :, 400].any()
    np.testing.assert_allclose(ours(layer), right, rtol=0, atol=FLOAT32)
    values[0, 400, 1] = 4e-2
    assert theirs(layer)[:, :, 400].all()
    np.testing.assert_allclose(ours(layer), theirs(layer), rtol=0, atol=FLOAT32)


def test_blocks_hold_every_query_once_and_differ_little() -> None:
    for mask in MASKS:
        for width in (3, 8, 50):
            layer = made(mask, "general", tokens=60)
            blocks = list(row_blocks.blocks(layer.start, layer.stop, width))
            assert [i for b in blocks for i in range(b.queries.start, b.queries.stop)] == list(range(60))
            for b in blocks:
                seen = [set(range(layer.start[i], layer.stop[i])) for i in range(b.queries.start, b.queries.stop)]
                assert set.union(*seen) == set(range(b.union.start, b.union.stop))
                assert set.intersection(*seen) == set(range(b.core.start, b.core.stop))
                assert len(set.union(*seen)) - len(set.intersection(*seen)) <= row_blocks.EXTRA
    assert len(list(row_blocks.blocks([0] * 60, [60] * 60, 8))) == 1


@pytest.mark.parametrize("kind", ["massive", "decaying", "general"])
def test_a_value_vector_among_the_extra_keys_may_be_massive(kind: str) -> None:
    """Woodbury's identity would lose digits there: the residual must send such rows to the slow way, or be small."""
    layer = made("causal", kind, tokens=64, width=8)
    values = layer.values.clone()
    values[:, 20::7] *= 1e4
    found, _ = nullspace.effective_attention(
        values, layer.start, layer.stop, eps=layer.eps, probabilities=layer.attention
    )
    right = effective(layer.attention, values, layer.start, layer.stop, layer.eps)
    np.testing.assert_allclose(found.numpy(), right, rtol=0, atol=FLOAT64)


# ---------------------------------------------------------------------- ranks


def planted(singular: list[float], rows: int, columns: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(3)
    u = torch.linalg.qr(torch.randn(rows, len(singular), generator=random, dtype=torch.float64))[0]
    w = torch.linalg.qr(torch.randn(columns, len(singular), generator=random, dtype=torch.float64))[0]
    return u @ torch.diag(torch.tensor(singular, dtype=torch.float64)) @ w.T


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_planted_singular_values_are_found(scale: float) -> None:
    found = rank.spectrum(scale * planted([3.0, 1.0, 0.3, 1e-4, 1e-9], 30, 9), 2.0**-23)
    assert (found.rank, found.nullity) == (4, 26)
    assert found.kept == pytest.approx(1e-4 / 3, rel=1e-9)
    assert found.dropped == pytest.approx(1e-9 / 3, rel=1e-5)


def test_spectrum_at_its_edges() -> None:
    eps = 2.0**-23
    full = rank.spectrum(planted([1.0, 0.5, 0.1], 3, 9), eps)
    assert (full.rank, full.nullity, full.dropped) == (3, 0, 0.0)
    zero = rank.spectrum(torch.zeros(4, 6), eps)
    assert (zero.rank, zero.nullity, zero.kept, zero.dropped) == (0, 4, 0.0, 0.0)
    assert rank.spectrum(torch.zeros(4, 0), eps).rank == 0
    tolerance = rank.rank_tolerance(30, 9, eps)
    assert rank.spectrum(planted([1.0, 1.01 * tolerance], 30, 9), eps).rank == 2
    assert rank.spectrum(planted([1.0, 0.99 * tolerance], 30, 9), eps).rank == 1


def test_a_precision_that_cannot_decide_is_refused() -> None:
    with pytest.raises(NotDefined, match=r"128 value vectors of width 64 .* bfloat16.*dtype=float32"):
        rank.rank_tolerance(128, 64, 2.0**-7)
    assert rank.rank_tolerance(128, 64, 2.0**-23) == 128 * 2.0**-23
    layer = made("both", "general", dtype=torch.bfloat16)
    with pytest.raises(NotDefined, match="bfloat16"):
        ours(layer)
    with pytest.raises(NotDefined, match="bfloat16"):
        nullspace.effective_row_sums(layer.values, layer.start, layer.stop, eps=layer.eps, outputs=layer.outputs)


def test_proven_bound_is_a_bound() -> None:
    matrix = planted([1.0, 0.1, 1e-3, 1e-3], 20, 4)
    factor, bound = rank.inverse_factor((matrix.T @ matrix)[None])
    torch.testing.assert_close(factor[0].T @ factor[0] @ (matrix.T @ matrix), torch.eye(4).double(), rtol=0, atol=1e-9)
    assert 1e6 <= float(bound) <= 2e6  # || G^-1 ||_2 = 1e6, at most sqrt(4) times that in the Frobenius norm
    assert rank.inverse_factor(torch.zeros(1, 3, 3).double())[1].isinf().all()


@pytest.mark.parametrize(("columns", "read"), [(20, None), (20, 5), (6, 6), (9, None)])
def test_what_a_projection_reads(columns: int, read: int | None) -> None:
    random = torch.Generator().manual_seed(2)
    weight = torch.randn(3, 9, columns, generator=random)
    if read == 5:
        weight[1] = weight[1, :, :5] @ weight[2, :5] / 3
    found = rank.read_directions(weight)
    expected = [None if read is None or (read == 5 and h != 1) else read for h in range(3)]
    assert [None if d is None else d.shape[1] for d in found] == expected
    values = torch.randn(30, 9, generator=random, dtype=torch.float64)
    for direction, own in zip(found, weight.double(), strict=True):
        if direction is not None:  # V F has the singular values and the left null space of V H
            np.testing.assert_allclose(
                torch.linalg.svdvals(values @ direction),
                torch.linalg.svdvals(values @ own)[: direction.shape[1]],
                rtol=1e-5,
            )


# ---------------------------------------------------------------------- polytopes


def row_with_one_freedom() -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Values with a single null vector of [V, 1], so that all bounds have a closed form."""
    random = torch.Generator().manual_seed(4)
    values = torch.randn(10, 8, generator=random, dtype=torch.float64)
    row = torch.randn(10, generator=random, dtype=torch.float64).softmax(0)
    null = np.linalg.svd(np.column_stack([values.numpy(), np.ones(10)]).T)[2][-1]
    return values, row, null


def test_bounds_and_farthest_in_closed_form() -> None:
    values, row, null = row_with_one_freedom()
    steps = -row.numpy() / null
    lowest, highest = steps[null > 0].max(), steps[null < 0].min()
    ends = np.stack([row.numpy() + lowest * null, row.numpy() + highest * null])
    bounds, free = polytope.weight_bounds(values, row, 2.0**-52)
    assert free == 1
    # HiGHS may leave a constraint by 1e-9; the smallest entry of the null vector divides that
    np.testing.assert_allclose(bounds, np.stack([ends.min(0), ends.max(0)]), rtol=0, atol=1e-7)
    right = (np.abs(null).sum() / 2) * max(-lowest, highest)
    weights, distance = polytope.farthest_weights(values, row, 2.0**-52, starts=4, seed=0)
    assert distance == pytest.approx(right, abs=1e-7)
    assert np.abs(weights - row.numpy()).sum() / 2 == pytest.approx(distance, abs=1e-12)
    assert polytope.relative_change(values, row, weights) < 1e-7


def test_a_point_where_identifiable() -> None:
    values, row, _ = row_with_one_freedom()
    values, row = values[:9], row[:9] / row[:9].sum()
    bounds, free = polytope.weight_bounds(values, row, 2.0**-52)
    assert free == 0
    np.testing.assert_array_equal(bounds, np.stack([row.numpy()] * 2))
    weights, distance = polytope.farthest_weights(values, row, 2.0**-52, starts=2, seed=0)
    np.testing.assert_array_equal(weights, row.numpy())
    assert distance == 0.0


def test_bounds_of_equal_values_are_their_common_weight() -> None:
    """Keys with the same value can trade all of their weight, and no more where all else is independent."""
    values = torch.eye(6, dtype=torch.float64)[[0, 0, 1, 2, 3, 0]]
    row = torch.tensor([0.1, 0.2, 0.15, 0.25, 0.25, 0.05], dtype=torch.float64)
    bounds, free = polytope.weight_bounds(values, row, 2.0**-52)
    assert free == 2
    np.testing.assert_allclose(bounds[0], [0, 0, 0.15, 0.25, 0.25, 0], rtol=0, atol=1e-8)
    np.testing.assert_allclose(bounds[1], [0.35, 0.35, 0.15, 0.25, 0.25, 0.35], rtol=0, atol=1e-8)
    _, distance = polytope.farthest_weights(values, row, 2.0**-52, starts=8, seed=0)
    assert distance == pytest.approx(0.3, abs=1e-8)  # all on the key that had least


def test_a_programme_without_solution_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    members = polytope.Polytope(np.eye(3)[:, :2], np.array([-0.2, 0.5, 0.7]))  # no a >= 0 has the first entry
    with pytest.raises(NotDefined, match="no solution of a linear programme"):
        members.lowest(np.ones(3))
    unbounded = polytope.Polytope(np.eye(3)[:, :2], np.array([0.2, 0.5, 0.3]))  # the third is free
    with pytest.raises(NotDefined, match="no solution of a linear programme"):
        unbounded.lowest(np.array([0.0, 0.0, -1.0]))
