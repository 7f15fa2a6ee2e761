"""Rows of attention as the solvers see them: who reads what, which rows stand together, and what comes out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Reading:
    """Value heads of one width with the query heads that read them, `group` of these a value head."""

    heads: slice
    values: Float[Tensor, "kv key width"]
    outputs: Float[Tensor, "kv group query width"] | None
    probabilities: Float[Tensor, "kv group query key"] | None


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
        """True where all see the same keys."""
        return self.core == self.union

    def seen(self, device: torch.device) -> Bool[Tensor, "query key"]:
        """Which keys of the union each query sees."""
        key = torch.arange(self.union.start, self.union.stop, device=device)
        first, last = (torch.tensor(b[self.queries], device=device)[:, None] for b in (self.start, self.stop))
        return (key >= first) & (key < last)

    def singles(self) -> "Iterator[Block]":
        """Each query by itself."""
        for i in range(self.queries.start, self.queries.stop):
            keys = slice(self.start[i], self.stop[i])
            yield Block(slice(i, i + 1), keys, keys, self.start, self.stop)


@dataclass(frozen=True)
class Rows:
    """The rows of a block for the value heads `kv` of a reading. Keys are those of the block's union."""

    reading: Reading
    kv: Int[Tensor, " kv"]
    block: Block

    def only(self, chosen: Bool[Tensor, " kv"]) -> "Rows":
        """Some of the value heads; itself (and what it made) where these are all."""
        return self if bool(chosen.all()) else Rows(self.reading, self.kv[chosen], self.block)

    @cached_property
    def values(self) -> Float[Tensor, "kv key width"]:
        return self._pick(self.reading.values, self.block.union, slice(None))

    @property
    def attention(self) -> Float[Tensor, "kv group query key"] | None:
        """The probabilities, where captured."""
        given = self.reading.probabilities
        return None if given is None else self._pick(given, self.block.queries, self.block.union)

    @property
    def recorded(self) -> Float[Tensor, "kv group query width"]:
        """The head outputs that stand in for them elsewhere."""
        assert self.reading.outputs is not None
        return self._pick(self.reading.outputs, self.block.queries, slice(None))

    @property
    def outputs(self) -> Float[Tensor, "kv group query width"]:
        """In float64: probabilities x values, where captured, is more exact than what was recorded."""
        attention = self.attention
        return self.recorded.double() if attention is None else attention.double() @ self.values[:, None]

    def _pick(self, tensor: Tensor, *where: slice) -> Tensor:
        """`where` on the last axes of the value heads; a view where they are all."""
        part = tensor[(slice(None),) * (tensor.ndim - len(where)) + where]
        return part if len(self.kv) == len(tensor) else part[self.kv]


@dataclass(frozen=True)
class Piece:
    """The effective attention of rows: weights @ basis^T (the weights alone without a basis), zero outside `seen`.

    `basis` has orthonormal columns, or is the values themselves where the outputs o = a V are given.
    `condition`: the ratio of singular values divided by. `exact`: the values have full row rank, A_eff = A.
    """

    rows: Rows
    weights: Float[Tensor, "kv group query rank"]
    condition: float
    basis: Float[Tensor, "kv key rank"] | None = None
    exact: bool = False
    seen: Bool[Tensor, "query key"] | None = None
    outputs: Float[Tensor, "kv group query rank"] | None = None

    @property
    def norm_squared(self) -> Float[Tensor, "kv group query"]:
        """|| a_eff ||^2 of each row: of its weights on an orthonormal basis, or y . o on the values."""
        weights = self.weights.double()
        return (weights * (weights if self.outputs is None else self.outputs)).sum(-1)
