"""The figures of Brunner et al. 2020, measured on one model, with the paper's curves beside them (dashed, grey).

Layers of a model of another depth than the paper's are placed by their share of the depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from clearhead.studies import published
from clearhead.studies.attention import TYPES
from clearhead.studies.mixing import REACH
from clearhead.studies.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0b6bcb", "#c2410c", "#15803d", "#7c3aed", "#b45309", "#0e7490")
PAPER: dict[str, Any] = {"color": "#8a8a8a", "linestyle": "--", "linewidth": 1.2, "zorder": 1}
NAMES = {"cosine": "cosine", "l2": "L2", "mlp": "MLP", "linear": "linear", "naive": "naive"}


def draw(title: str, size: tuple[float, float] = (7, 4.2), panels: int = 1) -> tuple[Figure, Sequence[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, panels, sharey=True))
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    return figure, list(axes)


def paper_layers(r: Results) -> np.ndarray:
    """Where the paper's 12 layers stand on the axis of this model's layers."""
    return np.array(published.LAYERS) * r.layers / len(published.LAYERS)


def layer_axis(axis: Any, r: Results) -> None:
    where = "" if r.layers == len(published.LAYERS) else " (paper: by share of the depth)"
    axis.set_xlabel(f"layer{where}")
    axis.set_xticks(range(1, r.layers + 1))


def pearson(r: Results) -> Figure:
    figure, (axis,) = draw("Figure 1a: raw and effective attention, by length of the text")
    axis.scatter(r.attention.tokens, r.attention.pearson, s=10, color=COLOURS[0], alpha=0.6, label=r.model)
    axis.plot(*zip(*published.PEARSON, strict=True), **PAPER, label="paper (BERT-base)")
    start, stop, low, high = published.PEARSON_LONG
    axis.fill_between([start, stop], low, high, color="#8a8a8a", alpha=0.2, linewidth=0)
    axis.axvline(r.value_width, color="#444", linewidth=0.8)
    axis.annotate(f"width of the values: {r.value_width}", (r.value_width, 0.05), fontsize=8, rotation=90, ha="right")
    axis.set(xlabel="tokens", ylabel="Pearson r, mean over heads", ylim=(-0.05, 1.05))
    axis.legend(frameon=False)
    return figure


def attention_to_types(r: Results) -> Figure:
    figure, axes = draw("Figures 1b and 1c: mean attention to a type of token, by layer", (9, 4), 2)
    for axis, kind in zip(axes, ("raw", "effective"), strict=True):
        axis.set_title(f"{kind} attention", fontsize=10)
        for colour, which in zip(COLOURS, TYPES, strict=False):
            values = r.attention.mean_attention(kind, which)
            axis.plot(paper_layers(r), published.ATTENTION[kind, which], **PAPER | {"color": colour, "alpha": 0.6})
            if values is not None:
                axis.plot(range(1, r.layers + 1), values, "o-", color=colour, label=which, markersize=3)
        layer_axis(axis, r)
    axes[0].set_ylabel("attention (dashed: paper)")
    axes[0].legend(frameon=False)
    return figure


def recovered(r: Results) -> Figure:
    figure, axes = draw("Figure 2a: tokens recovered, by layer and probe (bars: 95 %, by example)", (9, 4.2), 2)
    for axis, distance in zip(axes, ("cosine", "l2"), strict=True):
        axis.set_title(NAMES[distance], fontsize=10)
        for colour, kind in zip(COLOURS, ("naive", "linear", "mlp"), strict=False):
            paper = published.RECOVERED[kind, distance]
            known = [k for k, value in enumerate(paper) if value is not None]
            style = PAPER | {"color": colour, "alpha": 0.6}
            axis.plot(paper_layers(r)[known], [paper[k] for k in known], **style)
            found = r.recovered.get((kind, distance))  # pyright: ignore[reportArgumentType]
            if found is not None:
                ends = abs(found.interval.T - found.test)
                axis.errorbar(found.depths, found.test, yerr=ends, fmt="o-", color=colour, markersize=3, label=kind)
        if distance == "cosine" and r.nearest is not None:
            axis.plot(
                r.nearest.depths, r.nearest.test, "s:", color="black", markersize=3, label="linear, trained to choose"
            )
        layer_axis(axis, r)
        axis.legend(frameon=False, loc="lower left")
    axes[0].set(ylabel="share recovered (dashed: paper)", ylim=(0, 1.03))
    return figure


def between(r: Results) -> Figure:
    figure, (axis,) = draw("Figure 2b: linear cosine probes trained on one layer, tested on all")
    assert r.between is not None
    trained = r.between["trained"]
    chosen = sorted({1, max(1, r.layers // 2), r.layers} & set(trained.tolist()))
    for colour, depth in zip(COLOURS, chosen, strict=False):
        rows = (trained == depth) & (r.between["tested"] > 0)
        axis.plot(
            r.between["tested"][rows], r.between["test"][rows], "o-", color=colour, markersize=3, label=f"layer {depth}"
        )
    for colour, (depth, values) in zip(COLOURS, published.BETWEEN.items(), strict=False):
        axis.plot(paper_layers(r), values, **PAPER | {"color": colour, "alpha": 0.6}, label=f"paper, layer {depth}")
    layer_axis(axis, r)
    axis.set(ylabel="share recovered", ylim=(0, 1.03))
    axis.legend(frameon=False, title="trained on", ncols=2)
    return figure


def own_contribution(r: Results) -> Figure:
    figure, (axis,) = draw("Figure 3a: contribution of the own input token, by layer")
    low, middle, high = np.quantile(r.mixing.own, [0.25, 0.5, 0.75], axis=1) * 100
    error = 100 * np.median(r.mixing.own_stderr, axis=1)
    layers = np.arange(1, r.layers + 1)
    axis.fill_between(layers, low, high, color=COLOURS[0], alpha=0.15, linewidth=0, label="middle half of the tokens")
    axis.errorbar(layers, middle, yerr=error, fmt="o-", color=COLOURS[0], markersize=3,
                  label="median (bars: standard error of one token's estimate)")  # fmt: skip
    axis.plot(paper_layers(r), published.OWN, **PAPER, label="paper (BERT-base), median")
    layer_axis(axis, r)
    axis.set(ylabel="%", ylim=(0, None))
    axis.legend(frameon=False)
    return figure


def not_largest(r: Results) -> Figure:
    figure, (axis,) = draw("Figure 3b: tokens to which another input token contributes most")
    by_text = np.stack([r.mixing.not_largest[:, r.mixing.text == t].mean(1) for t in np.unique(r.mixing.text)])
    share = 100 * r.mixing.share_not_largest()
    error = 196 * by_text.std(0) / len(by_text) ** 0.5
    layers = range(1, r.layers + 1)
    axis.errorbar(
        layers, share, yerr=error, fmt="o-", color=COLOURS[0], markersize=3, label=f"{r.model} (bars: 95 %, by text)"
    )
    axis.plot(paper_layers(r), published.NOT_LARGEST, **PAPER, label="paper (BERT-base)")
    layer_axis(axis, r)
    axis.set(ylabel="% of the tokens", ylim=(0, None))
    axis.legend(frameon=False)
    return figure


def by_distance(r: Results) -> Figure:
    figure, (axis,) = draw("Figure 4a: contribution of neighbours by distance, each curve 100 % over the layers")
    for colour, (name, values) in zip(COLOURS, r.mixing.by_distance().items(), strict=False):
        axis.plot(range(1, r.layers + 1), 100 * values, "o-", color=colour, markersize=3, label=f"{name} neighbour")
    for colour, name in ((COLOURS[0], "1st"), (COLOURS[5], "11th on")):
        values = np.array(published.BY_DISTANCE[name]) * 12 / r.layers
        axis.plot(paper_layers(r), values, **PAPER | {"color": colour, "alpha": 0.6}, label=f"paper, {name}")
    layer_axis(axis, r)
    axis.set_ylabel("%")
    axis.legend(frameon=False, ncols=2, fontsize=8)
    return figure


def by_offset(r: Results) -> Figure:
    chosen = sorted({1, max(1, r.layers // 2), r.layers})
    figure, axes = draw(
        "Figure 4b: contribution by relative position, largest 1, own token left out", (9, 3.6), len(chosen)
    )
    offsets = np.arange(-REACH, REACH + 1)
    values = r.mixing.by_offset()
    for axis, layer in zip(axes, chosen, strict=True):
        others = offsets != 0
        axis.bar(offsets[others], values[layer - 1][others], color=COLOURS[0])
        axis.set_title(f"layer {layer}", fontsize=10)
        axis.set_xlabel("offset of the input")
    paper = published.BY_OFFSET
    axes[0].plot(list(paper), list(paper.values()), "x", color="#444", label="paper, layer 1")
    axes[0].legend(frameon=False)
    return figure


FIGURES: dict[str, tuple[Callable[[Results], Figure], Callable[[Results], bool]]] = {
    "figure_1a": (pearson, lambda r: True),
    "figure_1bc": (attention_to_types, lambda r: True),
    "figure_2a": (recovered, lambda r: bool(r.recovered)),
    "figure_2b": (between, lambda r: r.between is not None),
    "figure_3a": (own_contribution, lambda r: True),
    "figure_3b": (not_largest, lambda r: True),
    "figure_4a": (by_distance, lambda r: True),
    "figure_4b": (by_offset, lambda r: True),
}
"""Name of the file: how it is drawn, and whether there is something to draw."""
