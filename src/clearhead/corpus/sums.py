"""Statistics of a whole corpus as sums that merge: equal to the bit in any order and any sharding.

A document gives numbers in float64 (sums over its tokens). These are added exactly, as whole numbers of units of
2^-1126, of which every float64 is a multiple; addition of whole numbers has no order. Quantiles come from counts in
fixed bins (16 to an octave: the centre of a bin is within 3.2 % of what is in it), which add as well. Only the last
step, from sums to mean, deviation and covariance, rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import sqrt
from typing import Any

import numpy as np

from clearhead.corpus.summaries import Summary

SCALE = 1126
OCTAVES, FINE = (-24, 40), 16
"""Magnitudes told apart, as powers of two (beyond them: the last bin), and bins to an octave."""
HALF = (OCTAVES[1] - OCTAVES[0]) * FINE
BINS = 2 * HALF + 1
"""Negative values, zero (and anything below 2^-24), positive values."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
Array = np.ndarray
Key = tuple[str, str]


def exact(values: Array) -> Array:
    """Finite float64 numbers as Python whole numbers in units of 2^-SCALE, without rounding."""
    mantissa, exponent = np.frexp(values)
    whole = np.ldexp(mantissa, 53).astype(np.int64).astype(object)
    return whole << (exponent + (SCALE - 53)).astype(object)


def spell(number: int) -> str:
    """A sum as text: hexadecimal, "p", power of two. `1.5` is "3p-1"."""
    if number == 0:
        return "0p0"
    zeros = (number & -number).bit_length() - 1
    return f"{number >> zeros:x}p{zeros - SCALE}"


def parse(text: str) -> int:
    whole, _, power = text.partition("p")
    return int(whole, 16) << (int(power) + SCALE) if whole.strip("-") != "0" else 0


def bins(values: Array) -> Array:
    """The bin of each value, 0 .. BINS - 1."""
    mantissa, exponent = np.frexp(np.abs(values))
    place = (exponent - 1 - OCTAVES[0]) * FINE + np.floor((mantissa * 2 - 1) * FINE).astype(int)
    size = np.where(values == 0, 0, np.clip(place + 1, 0, HALF))
    return HALF + np.sign(values).astype(int) * size


def centre(place: int) -> float:
    """The middle of a bin."""
    size = abs(place - HALF)
    if size == 0:
        return 0.0
    octave, step = divmod(size - 1, FINE)
    return float(np.sign(place - HALF)) * 2.0 ** (octave + OCTAVES[0]) * (1 + (step + 0.5) / FINE)


@dataclass
class Cells:
    """Of one summary, for every layer and head: arrays [layer, head] and counts [layer, head, bin]."""

    layers: tuple[int, ...] | None
    heads: bool
    documents: Array
    count: Array
    total: Array
    squares: Array
    low: Array
    high: Array
    sketch: Array


def empty(layers: tuple[int, ...] | None, heads: bool, shape: tuple[int, int]) -> Cells:
    whole, none = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=object)
    least, most = np.full(shape, np.inf), np.full(shape, -np.inf)
    sketch = np.zeros((*shape, BINS), dtype=np.int64)
    return Cells(layers, heads, whole, whole.copy(), none, none.copy(), least, most, sketch)


@dataclass
class Sums:
    """The sums of some documents. `cells` by (method, summary); `pairs` by (method, summary, summary): [layer] of
    documents, sum of x, of y and of x y, x and y being means of a document over its tokens and heads; `lengths` by
    (method, tokens): documents, and the sum of the mean Pearson r of their heads."""

    cells: dict[Key, Cells] = field(default_factory=dict[Key, Cells])
    pairs: dict[tuple[str, str, str], Array] = field(default_factory=dict[tuple[str, str, str], Array])
    lengths: dict[tuple[str, int], list[int]] = field(default_factory=dict[tuple[str, int], list[int]])
    groups: dict[tuple[str, tuple[str, ...]], list[Any]] = field(
        default_factory=dict[tuple[str, tuple[str, ...]], list[Any]]
    )
    """By (method, summaries that a document has): documents, sums [summary, layer], products [summary, summary, layer];
    `_settle` parts them by pair."""
    waiting: dict[Key, list[Array]] = field(default_factory=dict[Key, list[Array]])
    """Values that are not in their bins yet."""

    def add(self, method: str, found: Sequence[Summary], tokens: int) -> None:
        """Add a document."""
        for one in found:
            self._add_cells(method, one)
        self._add_pairs(method, found)
        whole = next((one for one in found if one.name == "pearson of the head"), None)
        if whole is not None and np.isfinite(whole.values).all():
            seen = self.lengths.setdefault((method, tokens), [0, 0])
            seen[0] += 1
            seen[1] += exact(np.array([whole.values.mean()]))[0]

    def _add_cells(self, method: str, one: Summary) -> None:
        values, key = one.values, (method, one.name)
        if key not in self.cells:
            self.cells[key] = empty(one.layers, one.heads, values.shape[:2])
        cells, there = self.cells[key], np.isfinite(values)
        known = np.where(there, values, 0.0)
        cells.documents += there.any(-1)
        cells.count += there.sum(-1)
        cells.total = cells.total + exact(known.sum(-1))
        cells.squares = cells.squares + exact(np.square(known).sum(-1))
        cells.low = np.minimum(cells.low, np.where(there, values, np.inf).min(-1))
        cells.high = np.maximum(cells.high, np.where(there, values, -np.inf).max(-1))
        waiting = self.waiting.setdefault(key, [])
        waiting.append(values)
        if sum(part.shape[-1] for part in waiting) > 512:
            self._count(key)

    def _count(self, key: Key) -> None:
        """Put the values that wait into their bins."""
        waiting = self.waiting.pop(key, None)
        if waiting:
            values = np.concatenate(waiting, axis=-1)
            cells = np.prod(values.shape[:2])
            flat = values.reshape(cells, -1)
            there = np.isfinite(flat)
            place = np.nonzero(there)[0] * BINS + bins(flat[there])
            counts = np.bincount(place, minlength=cells * BINS)
            self.cells[key].sketch += counts.reshape(self.cells[key].sketch.shape)

    def _add_pairs(self, method: str, found: Sequence[Summary]) -> None:
        means: dict[str, Array] = {}
        for one in found:
            there = np.isfinite(one.values)
            if one.layers is not None and "=" not in one.name and there.any((1, 2)).all():
                means[one.name] = np.where(there, one.values, 0.0).sum((1, 2)) / there.sum((1, 2))
        names = sorted(means)
        if not names:
            return
        x = np.stack([means[name] for name in names])
        sums, products = exact(x), exact(x[:, None] * x[None, :])
        n, before, crossed = self.groups.get((method, tuple(names)), (0, 0, 0))
        self.groups[method, tuple(names)] = [n + 1, before + sums, crossed + products]

    def _settle(self) -> None:
        """Put what waits into its bins and pairs."""
        for key in list(self.waiting):
            self._count(key)
        for (method, names), (n, sums, products) in self.groups.items():
            for i, a in enumerate(names):
                for j, b in enumerate(names[i:], i):
                    added = np.stack([np.full(sums.shape[1], n, dtype=object), sums[i], sums[j], products[i, j]])
                    key = (method, a, b)
                    self.pairs[key] = self.pairs[key] + added if key in self.pairs else added
        self.groups = {}

    def merge(self, other: Sums) -> None:
        """Add the sums of other documents."""
        for one in (self, other):
            one._settle()
        for key, more in other.cells.items():
            if key not in self.cells:
                self.cells[key] = empty(more.layers, more.heads, more.count.shape)
            mine = self.cells[key]
            for name in ("documents", "count", "total", "squares", "sketch"):
                setattr(mine, name, getattr(mine, name) + getattr(more, name))
            mine.low, mine.high = np.minimum(mine.low, more.low), np.maximum(mine.high, more.high)
        for key, added in other.pairs.items():
            self.pairs[key] = self.pairs[key] + added if key in self.pairs else added
        for key, (documents, total) in other.lengths.items():
            seen = self.lengths.setdefault(key, [0, 0])
            seen[0], seen[1] = seen[0] + documents, seen[1] + total

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row a cell, in a fixed order, with sums as text and bins as lists: all that `from_rows` needs."""
        self._settle()
        for (method, name), cells in sorted(self.cells.items()):
            for at in np.ndindex(*cells.count.shape):
                total, squares, low, high = (one[at] for one in (cells.total, cells.squares, cells.low, cells.high))
                used = np.flatnonzero(cells.sketch[at])
                yield {
                    **place(method, name, cells, at), "documents": int(cells.documents[at]),
                    "values": int(cells.count[at]), "sum": spell(int(total)), "squares": spell(int(squares)),
                    "least": known(float(low)), "largest": known(float(high)),
                    "bins": used.tolist(), "counts": cells.sketch[at][used].tolist(),
                }  # fmt: skip

    def length_rows(self) -> Iterator[dict[str, Any]]:
        for (method, tokens), (documents, total) in sorted(self.lengths.items()):
            yield {"method": method, "tokens": tokens, "documents": documents, "sum": spell(total),
                   "mean": total / (documents << SCALE)}  # fmt: skip

    def pair_rows(self) -> Iterator[dict[str, Any]]:
        """One row a layer and pair of summaries, with the covariance (n - 1) over documents; none for one document."""
        self._settle()
        for (method, a, b), sums in sorted(self.pairs.items()):
            layers = self.cells[method, a].layers or ()
            for layer, (n, x, y, xy) in zip(layers, sums.T, strict=True):
                covariance = None if n < 2 else float(Fraction(n * (xy << SCALE) - x * y, n * (n - 1) << 2 * SCALE))
                yield {"method": method, "layer": layer, "a": a, "b": b, "documents": int(n), "covariance": covariance,
                       "sum_a": spell(x), "sum_b": spell(y), "sum_ab": spell(xy)}  # fmt: skip


def known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def place(method: str, name: str, cells: Cells, at: tuple[int, ...]) -> dict[str, Any]:
    layer = None if cells.layers is None else cells.layers[at[0]]
    return {"method": method, "summary": name, "layer": layer, "head": at[1] if cells.heads else None}


def from_rows(
    rows: Sequence[Mapping[str, Any]], pairs: Iterable[Mapping[str, Any]], lengths: Iterable[Mapping[str, Any]]
) -> Sums:
    """The sums that `rows`, `pair_rows` and `length_rows` gave."""
    sums, groups = Sums(), dict[Key, list[Mapping[str, Any]]]()
    for row in rows:
        groups.setdefault((row["method"], row["summary"]), []).append(row)
    for key, group in groups.items():
        layers = list(dict.fromkeys(row["layer"] for row in group))
        heads = list(dict.fromkeys(row["head"] for row in group))
        numbered = None if layers == [None] else tuple(layers)
        cells = empty(numbered, heads != [None], (len(layers), len(heads)))
        for row in group:
            at = layers.index(row["layer"]), heads.index(row["head"])
            cells.documents[at], cells.count[at] = row["documents"], row["values"]
            cells.total[at], cells.squares[at] = parse(row["sum"]), parse(row["squares"])
            cells.low[at] = np.inf if row["least"] is None else row["least"]
            cells.high[at] = -np.inf if row["largest"] is None else row["largest"]
            cells.sketch[at][np.array(row["bins"], dtype=int)] = row["counts"]
        sums.cells[key] = cells
    grouped: dict[tuple[str, str, str], list[list[int]]] = {}
    for row in pairs:
        found = [int(row["documents"]), *(parse(row[name]) for name in ("sum_a", "sum_b", "sum_ab"))]
        grouped.setdefault((row["method"], row["a"], row["b"]), []).append(found)
    sums.pairs = {key: np.array(found, dtype=object).T for key, found in grouped.items()}
    sums.lengths = {(row["method"], row["tokens"]): [row["documents"], parse(row["sum"])] for row in lengths}
    return sums


def told(row: Mapping[str, Any]) -> dict[str, Any]:
    """Mean, standard deviation (n - 1) and quantiles of a row of sums; None where there are too few values."""
    n, total, squares = row["values"], parse(row["sum"]), parse(row["squares"])
    mean = total / (n << SCALE) if n else None
    spread = (
        sqrt(max(0.0, Fraction(n * (squares << SCALE) - total * total, n * (n - 1) << 2 * SCALE))) if n > 1 else None
    )
    found = {f"q{round(100 * q):02d}": quantile(row, q) if n else None for q in QUANTILES}
    return {"mean": mean, "deviation": spread, **found}


def quantile(row: Mapping[str, Any], q: float) -> float:
    """The value below which a share q lies: the centre of its bin, within the least and the largest."""
    reached = np.cumsum(row["counts"])
    at = int(np.searchsorted(reached, q * reached[-1]))
    return float(np.clip(centre(row["bins"][at]), row["least"], row["largest"]))
