"""Rows of attention in blocks, each solved the fastest way that is proven for it.

A block are consecutive queries whose visible keys differ little (one block where all see the same). It goes a fast way
where a Cholesky factor *proves* the condition of its values; every other row is decomposed into singular values by
itself. No rank is ever inferred from a count of keys.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from clearhead.linalg.rank import EPS64, rank_tolerance
from clearhead.linalg.row_solvers import equal_values, full_row_rank, grown_gram, shared_basis, singular_values
from clearhead.linalg.rows import Block, Piece, Reading, Rows

EXTRA = 16
"""Most keys in which the rows of a block may differ."""
FINEST = 1e-9
"""A fast way may cost the rounding already on the path, or this relative error of a row where that is finer."""


def pieces(reading: Reading, start: Sequence[int], stop: Sequence[int], eps: float) -> Iterator[Piece]:
    """Every row of every head, once; none where the output projection reads nothing of the values (A_eff = 0)."""
    width = reading.values.shape[-1]
    if width == 0:
        return
    kv = torch.arange(len(reading.values), device=reading.values.device)
    summed, gram = slice(-1, -1), None
    for block in blocks(start, stop, width):
        if _length(block.core) > width:
            grown = summed.start == block.core.start and summed.stop <= block.core.stop
            fresh = reading.values[:, summed.stop if grown else block.core.start : block.core.stop]
            more = fresh.mT @ fresh
            summed, gram = block.core, gram + more if grown and gram is not None else more
        yield from _solve(Rows(reading, kv, block), eps, gram)


def blocks(start: Sequence[int], stop: Sequence[int], width: int) -> Iterator[Block]:
    """Runs of queries that differ in at most EXTRA keys, none with both more and no more keys than `width`."""
    first = 0
    while first < len(start):
        core = union = slice(start[first], stop[first])
        last = first + 1
        while last < len(start):
            if start[last] != start[last - 1] or stop[last] != stop[last - 1]:
                inner = slice(max(core.start, start[last]), min(core.stop, stop[last]))
                outer = slice(min(union.start, start[last]), max(union.stop, stop[last]))
                alike = _length(outer) <= width if _length(union) <= width else _length(inner) > width
                if not alike or _length(outer) - _length(inner) > EXTRA:
                    break
                core, union = inner, outer
            last += 1
        yield Block(slice(first, last), core, union, start, stop)
        first = last


def _solve(rows: Rows, eps: float, gram: Tensor | None = None) -> Iterator[Piece]:
    """A fast way where proven, else row by row, else by singular values. `gram`: that of the core, where known."""
    block, (_, keys, width) = rows.block, rows.values.shape
    tolerance = rank_tolerance(keys, width, eps)
    limit = min(max(eps, FINEST) / EPS64, 1 / (4 * tolerance**2))
    if keys <= width:
        proven, piece = full_row_rank(rows, limit)
    else:
        gram = rows.values.mT @ rows.values if gram is None else gram
        proven, piece = (shared_basis if block.same else grown_gram)(rows, gram, limit)
    if piece is not None:
        yield piece
    for at in (~proven).nonzero()[:, 0].tolist():
        piece = equal_values(Rows(rows.reading, rows.kv[at : at + 1], block), limit)
        if piece is not None:
            proven[at] = True
            yield piece
    if bool(proven.all()):
        return
    rest = rows.only(~proven)
    if block.same:
        yield from singular_values(rest, tolerance)
        return
    for single in block.singles():
        yield from _solve(Rows(rows.reading, rest.kv, single), eps)


def _length(keys: slice) -> int:
    return max(keys.stop - keys.start, 0)
