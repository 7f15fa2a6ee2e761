"""What `compare` gives: one table, the agreement between methods, and the numbers of each text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearhead.errors import InputError
from clearhead.maps import Table
from clearhead.maps.files import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE = """
:root{color-scheme:light dark;--low:#9aa;--bar:#1f6feb;--no:#b23}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}
th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #8884;white-space:nowrap}
th:first-child,td:first-child{text-align:left}
.yes{fill:var(--bar)}.open{fill:var(--low)}.no{fill:var(--no)}
svg text{fill:currentColor;font-size:12px}
svg line{stroke:currentColor}
"""


@dataclass(frozen=True, repr=False)
class Comparison:
    """`table`: a row a method, best score first. `agreement`: Kendall's tau between methods. `texts`: a row a method
    and text."""

    table: Table
    agreement: Table
    texts: Table

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """The table to .parquet, .json or .csv; all of it as one page to .html (no script, no network).

        Errors: InputError for another suffix, an existing file (unless `overwrite`), a folder that is not there.
        """
        if Path(path).suffix in (".html", ".htm"):
            with whole_file(path, overwrite=overwrite) as handle:
                handle.write(self.html().encode())
            return Path(path)
        return self.table.save(path, overwrite=overwrite)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Score of each method with its bootstrap interval, and the random baseline."""
        import matplotlib.pyplot as plt

        if ax is None:
            ax = plt.subplots(figsize=(7, 0.35 * len(self.table) + 1.2), layout="constrained")[1]
        columns = {name: _column(self.table, name) for name in ("method", "score", "score_low", "score_high")}
        for row, (_, value, low, high) in enumerate(zip(*columns.values(), strict=True)):
            if low is not None:
                ax.plot([low, high], [row, row], color="C0", linewidth=1)
            ax.plot([value], [row], "o", color="C0")
        baseline = columns["score"][columns["method"].index("random")]
        ax.axvline(baseline, color="grey", linestyle="--", linewidth=1)
        ax.set_yticks(range(len(self.table)), columns["method"])
        ax.invert_yaxis()
        ax.set_xlabel("insertion - deletion (95 % interval by text; dashed: random)")
        ax.set_title(f"{self.table.meta['target']}, removal by {self.table.meta['removal']}")
        return ax

    def html(self) -> str:
        """The page."""
        meta = self.table.meta
        said = [f"{key}: {meta[key]}" for key in ("model", "revision", "target", "removal", "texts", "seed", "rule")]
        said += [f"left out: {name}: {why}" for name, why in meta["left_out"].items()]
        items = "".join(f"<li>{escape(str(line))}</li>" for line in said)
        about = "".join(f"<li><b>{escape(k)}</b>: {escape(v)}</li>" for k, v in self.table.about.items())
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
            'content="width=device-width"><title>Faithfulness</title>'
            f"<style>{STYLE}</style></head><body><h1>How faithful are the methods?</h1><ul>{items}</ul>"
            f"{_picture(self.table)}<h2>Scores</h2>{_rows(self.table)}<h2>Agreement (Kendall's tau)</h2>"
            f"{_rows(self.agreement)}<h2>What the columns mean</h2><ul>{about}</ul></body></html>\n"
        )

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()  # pyright: ignore[reportPrivateUsage]


def _column(table: Table, name: str) -> list[Any]:
    """A column; None where there is none (no interval of so few texts)."""
    return table[name].tolist() if name in table.columns else [None] * len(table)


def _cell(value: Any) -> str:
    if value is None:
        return "not defined"
    return f"{value:.3f}" if isinstance(value, float) else escape(str(value))


def _rows(table: Table) -> str:
    columns = [values.tolist() for values in table.columns.values()]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in line)}</tr>" for line in zip(*columns, strict=True)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _picture(table: Table) -> str:
    """Scores with intervals, as a drawing."""
    names, values = table["method"].tolist(), table["score"].tolist()
    low, high, verdicts = (_column(table, name) for name in ("score_low", "score_high", "beats_random"))
    low, high = (
        [at if bound is None else bound for bound, at in zip(bounds, values, strict=True)] for bounds in (low, high)
    )
    least, most = min([0.0, *low]), max([0.0, *high])
    if not math.isfinite(most - least):
        raise InputError("the picture of a comparison", got=f"scores from {least} to {most}")

    def at(value: float) -> float:
        return 220 + 420 * (value - least) / ((most - least) or 1.0)

    lines = "".join(
        f'<text x="210" y="{20 * row + 18}" text-anchor="end">{escape(name)}</text>'
        f'<line x1="{at(a):.1f}" x2="{at(b):.1f}" y1="{20 * row + 14}" y2="{20 * row + 14}"/>'
        f'<circle class="{said or "open"}" cx="{at(value):.1f}" cy="{20 * row + 14}" r="5"/>'
        for row, (name, value, a, b, said) in enumerate(zip(names, values, low, high, verdicts, strict=True))
    )
    tall = 20 * len(names) + 10
    return (
        f'<svg role="img" aria-label="score by method" width="680" height="{tall + 20}">{lines}'
        f'<line x1="{at(0):.1f}" x2="{at(0):.1f}" y1="0" y2="{tall}" stroke-dasharray="3"/>'
        f'<text x="{at(0):.1f}" y="{tall + 14}" text-anchor="middle">0</text></svg>'
    )
