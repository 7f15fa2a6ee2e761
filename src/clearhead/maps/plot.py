"""A Map as a matplotlib picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clearhead.errors import InputError
from clearhead.maps.choose import in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from clearhead.maps.map import Map

MOST_LABELS = 60
"""More tokens than this on an axis, and only every second (third, ...) is labelled."""
WHAT = {"query": "query (target)", "key": "key (source)"}


def plot(m: Map, ax: Axes | None, layer: int | None, head: int | None) -> Axes:
    """See `Map.plot`."""
    import matplotlib.pyplot as plt

    m = shown(m, layer, head)
    curves = len(m.dims) == 1 or m.dims[0] == "bound"
    if ax is None:
        wide = 2.5 + 0.22 * min(m.values.shape[-1], MOST_LABELS)
        tall = 3.5 if curves else 1.8 + 0.22 * min(m.values.shape[0], MOST_LABELS)
        ax = plt.subplots(figsize=(max(wide, 4.5), max(tall, 3.0)), layout="constrained")[1]
    (_curves if curves else _heat)(m, ax)
    _ticks(m, m.dims[-1], ax.xaxis, rotation=90 if m.dims[-1] in m.tokens else 0)
    ax.set_title(title(m), fontsize="medium", parse_math=False)
    return ax


def shown(m: Map, layer: int | None, head: int | None) -> Map:
    """The part to draw, one or two axes. Errors: InputError saying what there is to choose."""
    chosen = {name: value for name, value in (("layer", layer), ("head", head)) if value is not None}
    m = m.sel(**chosen)
    if len(m.dims) == 3 and "layer" in m.dims:
        m = m.sel(layer=-1)
    if not 1 <= len(m.dims) <= 2:
        left = ", ".join(f"{dim} ({size})" for dim, size in m.sizes.items()) or "one number"
        raise InputError("Map.plot", got=left, allowed="one or two axes", do="Choose layer= and head=, or use sel().")
    return m


def title(m: Map) -> str:
    """Method and what was selected."""
    method, selected = str(m.meta.get("method", "Map")), in_words(m.meta.get("selected", {}))
    return f"{method}: {selected}" if selected else method


def _heat(m: Map, ax: Axes) -> None:
    diverging = m.values.min() < 0
    top = float(np.abs(m.values).max())
    image = ax.imshow(
        m.values,
        aspect="auto",
        interpolation="nearest",
        cmap="RdBu" if diverging else "viridis",
        vmin=-top if diverging else None,
        vmax=top if diverging else None,
    )
    _ticks(m, m.dims[0], ax.yaxis, rotation=0)
    figure: Any = ax.get_figure()
    figure.colorbar(image, ax=ax, label=m.unit)


def _curves(m: Map, ax: Axes) -> None:
    x = np.arange(m.values.shape[-1])
    if m.dims[0] == "bound":
        low, high = m.values.min(axis=0), m.values.max(axis=0)
        ax.vlines(x, low, high, linewidth=6, alpha=0.35, label="lowest to highest")
        ax.plot(x, low, ".", x, high, ".", color="C0")
        ax.legend()
    else:
        ax.plot(x, m.values, marker=".")
        if m.stderr is not None:
            ax.fill_between(x, m.values - m.stderr, m.values + m.stderr, alpha=0.3, label="± 1 standard error")
            ax.legend()
    ax.set_ylabel(m.unit)


def _ticks(m: Map, dim: str, axis: Any, rotation: int) -> None:
    labels = m.tokens[dim].labels if dim in m.tokens else [str(label) for label in m.coords[dim]]
    step = -(-len(labels) // MOST_LABELS)
    axis.set_ticks(range(0, len(labels), step), labels[::step], rotation=rotation, parse_math=False)
    axis.set_label_text(WHAT.get(dim, dim))
