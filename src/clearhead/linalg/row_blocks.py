"""Blocks of attention rows, each solved the fastest way that is proven for it. See `nullspace` for what is computed.

How. Rows are taken in blocks of consecutive queries whose visible keys differ little (one block where all see the same).
Factors are float64. A block goes the fast way where a Cholesky factor *proves* the condition of its values; every other
row gets a singular value decomposition of its own. No rank is ever inferred from a count of keys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.linalg.rank import EPS64, inverse_factor, rank_tolerance

EXTRA = 16
"""Most keys in which the rows of a block may differ."""
FINEST = 1e-9
"""The fast way may cost the rounding already on the path, or this relative error of a row where that is finer."""


@dataclass(frozen=True)
class Reading:
    """Value heads of one width with the query heads that read them, `group` of these a value head."""

    heads: slice
    values: Float[Tensor, "kv key width"]
    outputs: Float[Tensor, "kv group query width"] | None
    probabilities: Float[Tensor, "kv group query key"] | None


@dataclass(frozen=True)
class Piece:
    """A rectangle of effective attention: weights @ basis^T (the weights alone without a basis), zero outside `seen`.

    `basis` has orthonormal columns, or is the values themselves where `seen` and the `outputs` o = a V are given.
    """

    kv: Tensor
    queries: slice
    keys: slice
    weights: Float[Tensor, "kv group query rank"]
    basis: Float[Tensor, "kv key rank"] | None
    condition: float
    exact: bool = False
    """The values have full row rank: effective attention is attention."""
    seen: Bool[Tensor, "query key"] | None = None
    outputs: Float[Tensor, "kv group query rank"] | None = None

    @property
    def norm_squared(self) -> Float[Tensor, "kv group query"]:
        """|| a_eff ||^2 of each row: of its weights on an orthonormal basis, or y . o on the values."""
        weights = self.weights.double()
        return (weights * (weights if self.outputs is None else self.outputs)).sum(-1)


@dataclass(frozen=True)
class Block:
    """Consecutive queries; `core` are the keys that all of them see, `union` those that any of them sees."""

    queries: slice
    core: slice
    union: slice
    start: Sequence[int]
    stop: Sequence[int]

    @property
    def same(self) -> bool:
        return self.core == self.union

    def seen(self, device: torch.device) -> Tensor:
        """[query, key of the union] booleans."""
        key = torch.arange(self.union.start, self.union.stop, device=device)
        first, last = (torch.tensor(b[self.queries], device=device)[:, None] for b in (self.start, self.stop))
        return (key >= first) & (key < last)

    def rows(self) -> "Iterator[Block]":
        for i in range(self.queries.start, self.queries.stop):
            keys = slice(self.start[i], self.stop[i])
            yield Block(slice(i, i + 1), keys, keys, self.start, self.stop)


def _length(keys: slice) -> int:
    return max(keys.stop - keys.start, 0)


def _blocks(start: Sequence[int], stop: Sequence[int], width: int) -> Iterator[Block]:
    """Runs of queries that differ in at most EXTRA keys, none with both more and no more keys than `width`."""
    first = 0
    while first < len(start):
        core = union = slice(start[first], stop[first])
        last = first + 1
        while last < len(start):
            if start[last] == start[last - 1] and stop[last] == stop[last - 1]:
                last += 1
                continue
            inner = slice(max(core.start, start[last]), min(core.stop, stop[last]))
            outer = slice(min(union.start, start[last]), max(union.stop, stop[last]))
            alike = _length(outer) <= width if _length(union) <= width else _length(inner) > width
            if not alike or _length(outer) - _length(inner) > EXTRA:
                break
            core, union, last = inner, outer, last + 1
        yield Block(slice(first, last), core, union, start, stop)
        first = last


def pieces(reading: Reading, start: Sequence[int], stop: Sequence[int], eps: float) -> Iterator[Piece]:
    """Every row of every head, once; none where the output projection reads nothing of the values (A_eff = 0)."""
    if reading.values.shape[-1] == 0:
        return
    kv = torch.arange(len(reading.values), device=reading.values.device)
    summed, gram = slice(0, 0), None
    for block in _blocks(start, stop, reading.values.shape[-1]):
        if _length(block.core) > reading.values.shape[-1]:
            gram = _grown_gram(reading.values, summed, gram, block.core)
            summed = block.core
        yield from _solve(reading, kv, block, eps, gram)


def _grown_gram(values: Tensor, summed: slice, gram: Tensor | None, keys: slice) -> Tensor:
    """V_S^T V_S, from that of a shorter prefix of the same keys where there is one."""
    grown = gram is not None and summed.start == keys.start and summed.stop <= keys.stop
    fresh = values[:, summed.stop if grown else keys.start : keys.stop]
    return fresh.mT @ fresh + (gram if grown and gram is not None else 0.0)


def _solve(reading: Reading, kv: Tensor, block: Block, eps: float, gram: Tensor | None = None) -> Iterator[Piece]:
    """The block for the value heads `kv`: the fast way where proven, else row by row, else by singular values."""
    values = _pick(reading.values, kv, block.union, slice(None))
    tolerance = rank_tolerance(values.shape[1], values.shape[2], eps)
    limit = min(max(eps, FINEST) / EPS64, 1 / (4 * tolerance**2))
    if values.shape[1] <= values.shape[2]:
        proven, piece = _full_row_rank(reading, kv, block, values, limit)
    else:
        own = values[:, block.core.start - block.union.start :][:, : _length(block.core)]
        proven, piece = _full_column_rank(reading, kv, block, values, own.mT @ own if gram is None else gram, limit)
    if piece is not None:
        yield piece
    for at in (~proven).nonzero()[:, 0].tolist():
        piece = _equal_values(reading, kv[at : at + 1], block, values[at], limit)
        if piece is not None:
            proven[at] = True
            yield piece
    rest = kv[~proven]
    if len(rest) and block.same:
        yield from _by_singular_values(reading, rest, block, tolerance)
    elif len(rest):
        for row in block.rows():
            yield from _solve(reading, rest, row, eps)


def _pick(tensor: Tensor, kv: Tensor, *where: slice) -> Tensor:
    """Value heads `kv`, and `where` on the last axes; a view where kv is every head."""
    whole = (slice(None),) * (tensor.ndim - len(where))
    part = tensor[(*whole, *where)]
    return part if len(kv) == len(tensor) else part[kv]


def _attention(reading: Reading, kv: Tensor, block: Block) -> Tensor | None:
    """[kv, group, query, key of the union], where it was captured."""
    return None if reading.probabilities is None else _pick(reading.probabilities, kv, block.queries, block.union)


def _outputs(reading: Reading, kv: Tensor, block: Block, values: Tensor) -> Tensor:
    """[kv, group, query, width] in float64: from the probabilities where captured, which is more exact than recorded."""
    attention = _attention(reading, kv, block)
    return _recorded(reading, kv, block).double() if attention is None else attention.double() @ values[:, None]


def _recorded(reading: Reading, kv: Tensor, block: Block) -> Tensor:
    assert reading.outputs is not None
    return _pick(reading.outputs, kv, block.queries, slice(None))


def _divided(reading: Reading, kv: Tensor, block: Block, inverse: Tensor) -> Tensor:
    """Recorded outputs on an orthonormal basis: o @ inverse, in their own precision (float32 at least), since their
    rounding is magnified as much as that of the product."""
    recorded = _recorded(reading, kv, block)
    return recorded @ inverse[:, None].to(recorded.dtype)


def _those(chosen: Tensor, tensor: Tensor) -> Tensor:
    """tensor[chosen], without a copy where all are."""
    return tensor if bool(chosen.all()) else tensor[chosen]


def _full_row_rank(
    reading: Reading, kv: Tensor, block: Block, values: Tensor, limit: float
) -> tuple[Tensor, Piece | None]:
    """No more keys than width: where V_union has full row rank, so has every row's V_S, no worse conditioned (its
    V_S V_S^T is a principal part of the larger one), and effective attention is attention.

    From outputs alone a_i = o_i V_S^T (V_S V_S^T)^-1, here for a block whose rows see the same keys.
    """
    gram = values @ values.mT
    factor, bound = inverse_factor(gram)
    squared_condition = bound * torch.linalg.matrix_norm(gram)
    attention = _attention(reading, kv, block)
    proven = (squared_condition < limit) & (attention is not None or block.same)
    if not proven.any():
        return proven, None
    if attention is not None:
        weights = _those(proven, attention)
    else:
        crossed = _outputs(reading, kv, block, values)[proven] @ values[proven, None].mT
        weights = crossed @ (factor.mT @ factor)[proven, None]
    worst = float(squared_condition[proven].max().sqrt())
    return proven, Piece(kv[proven], block.queries, block.union, weights, None, worst, exact=True)


def _full_column_rank(
    reading: Reading, kv: Tensor, block: Block, values: Tensor, gram: Tensor, limit: float
) -> tuple[Tensor, Piece | None]:
    """More keys than width, all of them independent. `gram` is that of the core, which every row sees."""
    factor, bound = inverse_factor(gram)
    seen = None if block.same else block.seen(values.device)
    mass = torch.linalg.matrix_norm(gram)
    if seen is not None:
        extra = ~seen.all(0)
        mass = mass + values[:, extra].square().sum((1, 2))
    squared_condition = bound * mass
    proven = squared_condition < limit
    if not proven.any():
        return proven, None
    kv, values, gram, factor = (_those(proven, each) for each in (kv, values, gram, factor))
    worst = float(squared_condition[proven].max().sqrt())
    if seen is None:
        basis = values @ factor.mT
        attention = _attention(reading, kv, block)
        weights = _divided(reading, kv, block, factor.mT) if attention is None else _times(attention, basis)
        return proven, Piece(kv, block.queries, block.union, weights, basis, worst)
    outputs = _outputs(reading, kv, block, values)
    weights, residual = _solve_grown(gram, factor, values[:, extra], seen[:, extra], outputs)
    rounding = EPS64 * mass[proven, None, None] * weights.norm(dim=-1)
    error = (residual + rounding) * bound[proven, None, None].sqrt()
    good = (error <= 4 * limit * EPS64 * (weights * outputs).sum(-1).clamp(min=0).sqrt()).all(2).all(1)
    proven[proven.clone()] = good
    if not good.any():
        return proven, None
    kv, weights, values, outputs = (_those(good, each) for each in (kv, weights, values, outputs))
    return proven, Piece(kv, block.queries, block.union, weights, values, worst, seen=seen, outputs=outputs)


def _solve_grown(
    gram: Float[Tensor, "kv width width"],
    factor: Float[Tensor, "kv width width"],
    extra: Float[Tensor, "kv extra width"],
    seen: Bool[Tensor, "query extra"],
    outputs: Float[Tensor, "kv group query width"],
) -> tuple[Float[Tensor, "kv group query width"], Float[Tensor, "kv group query"]]:
    """y_i = G_i^-1 o_i and || o_i - G_i y_i ||, for G_i = gram + X_i^T X_i, X_i the extra values that row i sees.

    By Woodbury's identity from one inverse of `gram`, with one step of iterative refinement.
    """
    inverse = (factor.mT @ factor)[:, None]
    crossed = extra[:, None] @ inverse
    inner = (crossed @ extra[:, None].mT)[:, 0]
    both = seen[:, :, None] & seen[:, None, :]
    eye = torch.eye(extra.shape[1], dtype=gram.dtype, device=gram.device)
    lower, _ = torch.linalg.cholesky_ex(torch.where(both, inner[:, None], 0.0) + eye)

    def solve(right: Tensor) -> Tensor:
        plain = right @ inverse
        inside = (plain @ extra[:, None].mT) * seen
        inside = torch.cholesky_solve(inside.permute(0, 2, 3, 1), lower).permute(0, 3, 1, 2)
        return plain - inside @ crossed

    def residual(y: Tensor) -> Tensor:
        return outputs - y @ gram[:, None] - ((y @ extra[:, None].mT) * seen) @ extra[:, None]

    y = solve(outputs)
    y = y + solve(residual(y))
    return y, residual(y).norm(dim=-1)


def _equal_values(reading: Reading, kv: Tensor, block: Block, values: Tensor, limit: float) -> Piece | None:
    """Keys of equal values, the different ones among them independent: effective attention is the mean over equal keys.

    Repeated tokens in layer 0 of a rotary model: their values carry no position. None where that is not so (or, without
    probabilities, where the rows see different keys).
    """
    different, which = torch.unique(values, dim=0, return_inverse=True)
    attention = _attention(reading, kv, block)
    if not len(different) < len(values) or len(different) > values.shape[1] or (attention is None and not block.same):
        return None
    member = torch.nn.functional.one_hot(which, len(different)).double()
    gram = different @ different.mT
    factor, bound = inverse_factor(gram)
    squared_condition = bound * torch.linalg.matrix_norm(gram) * member.sum(0).max()
    if not squared_condition < limit:
        return None
    seen = block.seen(values.device).double()
    if attention is None:
        sums = _outputs(reading, kv, block, values[None]) @ different.mT @ (factor.mT @ factor)
    else:
        sums = attention.double() @ member
    means = sums / (seen @ member).clamp(min=1)
    weights = means[..., which] * seen
    return Piece(kv, block.queries, block.union, weights, None, float(squared_condition.sqrt()))


def _by_singular_values(reading: Reading, kv: Tensor, block: Block, tolerance: float) -> Iterator[Piece]:
    """All rows see the same keys: U from a thin singular value decomposition, without the directions below tolerance."""
    values = _pick(reading.values, kv, block.union, slice(None))
    u, s, w = torch.linalg.svd(values, full_matrices=False)
    keep = (s > s[:, :1] * tolerance) & (s > 0)
    full = keep.sum(-1) == values.shape[1]
    worst = float((s[:, 0] / s.where(keep, torch.inf).amin(-1)).max())
    for exact, chosen in ((True, full), (False, ~full)):
        if not chosen.any():
            continue
        basis = u[chosen] * keep[chosen, None]
        attention = _attention(reading, kv[chosen], block)
        if attention is None:
            scale = keep[chosen] / s[chosen].where(keep[chosen], 1.0)
            weights = _divided(reading, kv[chosen], block, w[chosen].mT * scale[:, None])
        else:
            weights = attention if exact else _times(attention, basis)
        whole = exact and attention is not None
        yield Piece(kv[chosen], block.queries, block.union, weights, None if whole else basis, worst, exact=exact)


def _times(attention: Tensor, basis: Tensor) -> Tensor:
    """attention @ basis in the precision of the attention (float32 at least): an orthonormal basis may be rounded."""
    work = torch.promote_types(attention.dtype, torch.float32)
    return attention.to(work) @ basis.to(work)[:, None]
