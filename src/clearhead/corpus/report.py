"""The page of a corpus: the paper's curves over all its documents, one HTML file that needs nothing else."""

from __future__ import annotations

import html
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clearhead.corpus.dataset import Corpus, open_corpus
from clearhead.errors import InputError, NotDefined
from clearhead.maps.files import whole_file
from clearhead.studies.figures import COLOURS, draw
from clearhead.studies.mixing import GROUPS
from clearhead.studies.page import STYLE, figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "own": "Share of a token's own position",
    "entropy": "Entropy of a row (nats)",
    "special": "Share of the special tokens",
    "null-space share": "Null-space share of attention",
    "pearson": "Pearson r of raw and effective attention, by row",
}
"""Summaries that have a figure of their own, where the corpus has them."""


NOTE = (
    "Mean over all tokens and heads; the band spans the means, over heads, of their first and third quartiles (to the "
    "width of a bin, 3 %). Shares are of absolute weights."
)


def write_report(folder: str | Path, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the page of a complete corpus directory. Errors: InputError for the file or the directory; NotDefined where
    the run is not complete."""
    corpus, path = open_corpus(folder), Path(path)
    if path.suffix not in (".html", ".htm"):
        raise InputError(f"corpus report: output {path}: suffix", got=repr(path.suffix), allowed=".html, .htm")
    if not corpus.manifest["complete"]:
        raise NotDefined("corpus report needs a complete run", got=str(folder), do="Run the same command again.")
    drawn = figures(corpus)
    body = "".join([
        "<h1>A corpus, measured</h1>", f'<p class="lead">{html.escape(lead(corpus))}</p>',
        "<h2>By layer</h2>", f'<p class="soft">{NOTE}</p>',
        '<div class="figures">', *(figure(name, svg(one)) for name, one in drawn.items()), "</div>",
        "<h2>What this comes from</h2><dl>",
        *(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in about(corpus).items()),
        "</dl>",
    ])  # fmt: skip
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A corpus, measured</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><main>{body}</main></body></html>"
    )
    with whole_file(path, overwrite=overwrite) as file:
        file.write(page.encode())
    return path


def lead(corpus: Corpus) -> str:
    counts, source = corpus.manifest["counts"], corpus.manifest["source"]
    failed = f"; {counts['failed']:,} failed and are not in it" if counts["failed"] else ""
    return f"{counts['documents']:,} documents, {counts['tokens']:,} tokens, {source['model']['model']}{failed}."


def about(corpus: Corpus) -> dict[str, str]:
    """Where the numbers come from."""
    manifest = corpus.manifest
    source = manifest["source"]
    return {
        "input": str(source["input"].get("name") or source["input"]),
        "sha256 of the input": manifest["input_sha256"],
        "model": f"{source['model']['model']}, {source['model']['revision']}, {source['model']['dtype']}",
        "methods": ", ".join(source["settings"]["methods"]),
        "batches halved for memory": str(manifest["counts"]["halved"]),
        "versions": ", ".join(f"{name} {version}" for name, version in source["model"]["versions"].items()),
    }


def figures(corpus: Corpus) -> dict[str, Figure]:
    """The figures that the corpus has numbers for, by name."""
    table: Any = corpus.statistics
    table = table[table["layer"].notna() & (table["values"] > 0)]
    found: dict[str, Figure] = {}
    for name, title in TITLES.items():
        rows = table[table["summary"].isin([name, *(["special, raw"] if name == "special" else [])])]
        if len(rows):
            found[name.replace(" ", "_")] = by_layer(title, rows)
    for method in table["method"].unique():
        rows = table[(table["method"] == method) & table["summary"].str.startswith("distance ")]
        if len(rows):
            found[f"distance_{len(found)}"] = by_distance(method, rows)
    lengths = corpus.lengths
    if len(lengths):
        found["length"] = by_length(lengths)
    if not found:
        for summary in list(table["summary"].unique())[:6]:
            found[f"summary_{len(found)}"] = by_layer(summary, table[table["summary"] == summary])
    if not found:
        raise NotDefined("corpus report: these methods give nothing by layer", got=", ".join(corpus.methods))
    return found


def over_heads(rows: Any, name: str) -> Any:
    """[layer]: a column's mean over heads, each weighing as many as its values."""
    weight = rows["values"]
    return (rows[name] * weight).groupby(rows["layer"]).sum() / weight.groupby(rows["layer"]).sum()


def by_layer(title: str, rows: Any) -> Figure:
    """One curve a method, with the mean of the heads' quartiles."""
    drawing, (axis,) = draw(title)
    keys = rows[["method", "summary"]].drop_duplicates().itertuples(index=False)
    for colour, (method, summary) in zip(_colours(), keys, strict=False):
        part = rows[(rows["method"] == method) & (rows["summary"] == summary)]
        mean, low, high = (over_heads(part, name) for name in ("mean", "q25", "q75"))
        label = f"{method}, raw attention" if summary.endswith(", raw") else method
        axis.plot(mean.index + 1, mean, "o-", color=colour, markersize=3, label=label)
        axis.fill_between(mean.index + 1, low, high, color=colour, alpha=0.12, linewidth=0)
    return _finished(drawing, axis)


def by_distance(method: str, rows: Any) -> Figure:
    """Figure 4a of Brunner et al. 2020: each distance's curve, 100 % over the layers."""
    drawing, (axis,) = draw(f"{method}: neighbours by distance, each curve 100 % over the layers")
    for colour, (name, _, _) in zip(_colours(), GROUPS, strict=False):
        part = rows[rows["summary"] == f"distance {name}"]
        mean = over_heads(part, "mean")
        if len(mean) and mean.sum() > 0:
            axis.plot(
                mean.index + 1, 100 * mean / mean.sum(), "o-", color=colour, markersize=3, label=f"{name} neighbour"
            )
    axis.set_ylabel("%")
    return _finished(drawing, axis)


def by_length(lengths: Any) -> Figure:
    """Figure 1a of Brunner et al. 2020: Pearson r of raw and effective attention by the length of the text."""
    drawing, (axis,) = draw("Raw and effective attention, by length of the text")
    for colour, (method, part) in zip(_colours(), lengths.groupby("method"), strict=False):
        size = 4 + 12 * np.sqrt(part["documents"] / part["documents"].max())
        axis.scatter(part["tokens"], part["mean"], s=size, color=colour, alpha=0.7, label=method)
    axis.set(xlabel="tokens", ylabel="Pearson r, mean over heads and documents", ylim=(-0.05, 1.05))
    axis.legend(frameon=False, fontsize=8)
    return drawing


def _colours() -> tuple[str, ...]:
    return (*COLOURS,) * 8


def _finished(drawing: Figure, axis: Any) -> Figure:
    axis.set_xlabel("layer")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(frameon=False, fontsize=8)
    return drawing


def svg(drawing: Figure) -> str:
    """The picture as text; the same numbers give the same bytes."""
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "clearhead", "svg.fonttype": "path"}):
        drawing.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
