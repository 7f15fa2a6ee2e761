"""What is kept of one result for each token: shares, entropy, distances; null-space share and Pearson r; tables.

Every summary is an array [layer, head, token] (an axis that it does not have has size 1). Where it is not defined it
is NaN here, and has no row in the data set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from clearhead.errors import NotDefined, ProofError
from clearhead.maps import Map, Table
from clearhead.studies.mixing import GROUPS
from clearhead.tokens import TEXT
from clearhead.trace import Layer, Trace

if TYPE_CHECKING:
    from torch import Tensor

Array = np.ndarray
INDEX = ("layer", "depth", "head", "token", "query", "kv_head")
"""Columns of a Table that say where a number belongs."""


@dataclass(frozen=True)
class Summary:
    """`values` [layer, head, token]; `layers` numbers its layers; which of the axes it has."""

    name: str
    values: Array
    layers: tuple[int, ...] | None
    heads: bool
    tokens: bool


def summaries(trace: Trace, result: Map | Table) -> list[Summary]:
    """The summaries of a result, in a fixed order."""
    if isinstance(result, Table):
        return of_table(result)
    if {"query", "key"} <= set(result.dims) and "target" not in result.dims and "bound" not in result.dims:
        special = np.array([origin != TEXT for origin in trace.part().keys.origin])
        found = of_weights(result, special)
        whole = result.meta["method"] == "effective_attention" and result.meta["options"]["part"] == "effective"
        return found + (against_raw(trace, result, special) if whole else [])
    return of_values(result)


def of_weights(result: Map, special: Array) -> list[Summary]:
    """Of (layer, head, query, key): shares of the absolute weights of a row.

    own share |w_ii| / s, entropy - sum p ln p with p = |w| / s, special tokens, and neighbours by distance (left and
    right pooled), s = sum_j |w_ij|. Not defined for a row of zeros, nor a distance at which the text has no token.
    """
    weights = np.abs(spread(result, ("layer", "head", "query", "key")).astype(np.float64))
    total = weights.sum(-1, keepdims=True)
    share = weights / np.where(total > 0, total, np.nan)
    logs = np.log(np.maximum(share, np.finfo(np.float64).tiny))  # 0 ln 0 = 0
    found = {"entropy": np.maximum(-row_products(share, logs), 0.0), "special": share @ special.astype(np.float64)}
    if result.tokens["query"] == result.tokens["key"]:
        place = np.arange(share.shape[-1])
        found = {"own": share[..., place, place], **found}
        apart = np.abs(place[:, None] - place[None, :])
        within = np.stack([(apart >= low) & (apart <= high) for _, low, high in GROUPS], -1)  # [query, key, group]
        rows = share.reshape(-1, *share.shape[2:]).swapaxes(0, 1) @ within.astype(np.float64)  # [query, row, group]
        rows = np.where(np.any(within, axis=1)[:, None], rows, np.nan).swapaxes(0, 1)
        rows = rows.reshape(*share.shape[:-1], len(GROUPS))
        found |= {f"distance {name}": rows[..., group] for group, (name, _, _) in enumerate(GROUPS)}
    return [made(result, name, values) for name, values in found.items()]


def made(result: Map, name: str, values: Array, *, tokens: bool = True) -> Summary:
    layers = tuple(int(x) for x in result.coords["layer"]) if "layer" in result.dims else None
    return Summary(name, values, layers, "head" in result.dims, tokens)


def spread(result: Map, dims: tuple[str, ...]) -> Array:
    """The values with these axes in this order, size 1 where the Map lacks one."""
    order = [result.dims.index(dim) for dim in dims if dim in result.dims]
    there = result.values.transpose(order)
    shape = [result.sizes.get(dim, 1) for dim in dims]
    return there.reshape(shape)


def of_values(result: Map) -> list[Summary]:
    """Of a Map without rows of weights: its own numbers, one summary for each bound or target."""
    token = next((dim for dim in ("query", "key") if dim in result.dims), None)
    rest = [dim for dim in result.dims if dim not in ("layer", "head", token)]
    found = [("value", result)]
    for dim in rest:
        found = [
            (f"{dim} {label}" if name == "value" else f"{name}, {dim} {label}", one.sel(**{dim: label}))
            for name, one in found
            for label in one.coords[dim]
        ]
    axes = ("layer", "head", token or "token")
    return [made(one, name, spread(one, axes).astype(np.float64), tokens=token is not None) for name, one in found]


def of_table(table: Table) -> list[Summary]:
    """Each column of numbers, by layer, head and token; of words, 1 for each word ("verdict=uncertain").

    A table by depth has its numbers under layer = depth - 1: the state after that layer, -1 before the first.
    """
    columns = dict(table.columns)
    if "depth" in columns:
        columns["layer"] = columns["depth"] - 1
    token = next((name for name in ("token", "query") if name in columns), None)
    axes = [np.unique(columns[name]) if name in columns else None for name in ("layer", "head", token or "")]
    place = tuple(
        np.zeros(len(table), int) if axis is None else np.searchsorted(axis, columns[name])
        for axis, name in zip(axes, ("layer", "head", token or ""), strict=True)
    )
    shape = [1 if axis is None else len(axis) for axis in axes]
    found: dict[str, Array] = {}
    for name, column in columns.items():
        if name in INDEX:
            continue
        words = column.dtype == object and any(isinstance(value, str) for value in column)
        for title, numbers in one_hot(name, column) if words else [(name, numeric(column))]:
            found[title] = np.full(shape, np.nan)
            found[title][place] = numbers
    layers = None if axes[0] is None else tuple(int(x) for x in axes[0])
    return [Summary(name, values, layers, axes[1] is not None, axes[2] is not None) for name, values in found.items()]


def one_hot(name: str, column: Array) -> list[tuple[str, Array]]:
    there = sorted({value for value in column if value is not None})
    return [(f"{name}={value}", np.array([float(one == value) for one in column])) for value in there]


def numeric(column: Array) -> Array:
    return np.array([np.nan if value is None else float(value) for value in column])


def against_raw(trace: Trace, effective: Map, special: Array) -> list[Summary]:
    """Raw beside effective attention: null-space share 1 - ||a_eff||^2 / ||a||^2 and Pearson r of each row over its
    visible keys, Pearson r of a head over all of them, and the special tokens' share of raw attention.

    Errors: ProofError where an effective row is longer than its row beyond rounding.
    """
    raw = np.stack([recorded(layer).cpu().numpy() for layer in trace.layers])
    kept = spread(effective, ("layer", "head", "query", "key")).astype(np.float64)
    share = 1 - row_products(kept, kept) / row_products(raw, raw)
    allowed = 8 * max(effective.meta["rounding"], trace.eps * raw.shape[-1] ** 0.5)
    if share.min() < -allowed:
        raise ProofError(
            "corpus: an effective row of attention is longer than its row",
            got=f"a null-space share of {share.min():.3g}", allowed=f"0 to 1 within {allowed:.1g}",
        )  # fmt: skip
    visible = np.stack([layer.visible.mask().cpu().numpy() for layer in trace.layers])[:, None]
    rows, heads = correlations(raw, kept, visible)
    return [
        made(effective, "null-space share", share.clip(0.0, 1.0)),
        made(effective, "pearson", rows),
        made(effective, "pearson of the head", heads[..., None], tokens=False),
        made(effective, "special, raw", (raw @ special.astype(np.float64)) / raw.sum(-1)),
    ]


def recorded(layer: Layer) -> Tensor:
    """The attention of a layer in float64. Errors: NotDefined where it was not recorded."""
    if layer.probabilities is None:
        raise NotDefined("effective beside raw attention needs the attention itself", do='Trace with capture="full".')
    return layer.probabilities.double()


def correlations(a: Array, b: Array, visible: Array) -> tuple[Array, Array]:
    """Pearson r of each row [layer, head, query] and of each head, over the visible entries; NaN where either side is
    constant (to a relative 1e-6). a and b are 0 on the other entries; a head's deviations are those within its rows
    and those between them."""
    count = visible.sum(-1)

    def parts(x: Array) -> tuple[Array, Array, Array]:
        mean = x.sum(-1) / count
        moved = x - mean[..., None]
        return mean, moved if visible.all() else moved * visible, row_products(x, x)

    (mean_a, a, whole_a), (mean_b, b, whole_b) = parts(a), parts(b)
    aa, bb, ab = row_products(a, a), row_products(b, b), row_products(a, b)
    rows = pearson(aa, bb, ab, whole_a, whole_b)
    far_a, far_b = (mean - ((count * mean).sum(-1) / count.sum(-1))[..., None] for mean in (mean_a, mean_b))
    aa, bb, ab = (
        (own + count * x * y).sum(-1) for own, x, y in ((aa, far_a, far_a), (bb, far_b, far_b), (ab, far_a, far_b))
    )
    return rows, pearson(aa, bb, ab, whole_a.sum(-1), whole_b.sum(-1))


def pearson(aa: Array, bb: Array, ab: Array, whole_a: Array, whole_b: Array) -> Array:
    """r from sums of squares and products of deviations, and from the sums of squares themselves."""
    defined = (aa > 1e-12 * whole_a) & (bb > 1e-12 * whole_b)
    r = np.divide(ab, np.sqrt(aa * bb), out=np.full(ab.shape, np.nan), where=defined)
    return r.clip(-1.0, 1.0)


def row_products(a: Array, b: Array) -> Array:
    """The sum of a b over the last axis."""
    return np.einsum("...k,...k->...", a, b)
