"""The page of a reproduction: one HTML file that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from clearhead.maps import Table
from clearhead.maps.files import whole_file
from clearhead.studies import published

TITLE = "On Identifiability in Transformers, measured"
FOOT = """<p class="soft">All numbers are in the folder <code>numbers</code> as Parquet. Paper: Brunner et al.,
ICLR 2020, arXiv 1908.04211.</p>"""
STYLE = """
:root { color-scheme: light dark; --ink: #1b1d21; --soft: #5c6370; --line: #d9dce1; --ground: #fff;
        --yes: #15803d; --no: #b91c1c }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ec; --soft: #a0a6b1; --line: #363b44; --ground: #15171b; --yes: #4ade80; --no: #f87171 }
}
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 4rem; background: var(--ground); color: var(--ink);
       font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem } h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem }
.lead { font-size: 1.05rem; max-width: 46rem } .soft { color: var(--soft) }
.scroll { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-size: .9rem }
th, td { text-align: left; vertical-align: top; padding: .5rem .75rem .5rem 0; border-bottom: 1px solid var(--line) }
th { color: var(--soft); font-weight: 500; white-space: nowrap } td.yes { color: var(--yes) } td.no { color: var(--no) }
td.yes, td.no, td.not { font-weight: 600; white-space: nowrap }
.figures { display: grid; gap: 1.25rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)) }
figure { margin: 0; padding: .75rem; border-radius: 8px; background: #fff; border: 1px solid var(--line) }
figure.wide { grid-column: 1 / -1 }
figure svg { width: 100%; height: auto; display: block }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.25rem; font-size: .9rem }
dt { color: var(--soft) }
dd { margin: 0; overflow-wrap: anywhere }
"""


def write_page(
    path: Path, effects: Table, figures: Mapping[str, str], about: Mapping[str, str], notes: Sequence[str]
) -> None:
    """Write the page, whole. `figures`: SVG by name; `about`: what everything came from."""
    body = "".join([
        f"<h1>{TITLE}</h1>",
        f'<p class="lead">{html.escape(opening(about["model"]))}</p>',
        "".join(f'<p class="soft">{html.escape(note)}</p>' for note in notes),
        "<h2>The ten effects</h2>", effects_table(effects, about["model"]),
        '<h2>Figures</h2><p class="soft">Dashed or grey: the paper, BERT-base.</p><div class="figures">',
        "".join(figure(name, svg) for name, svg in figures.items()), "</div>",
        "<h2>What this comes from</h2><dl>",
        "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in about.items()),
        f"</dl>{FOOT}",
    ])  # fmt: skip
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{TITLE}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><main>{body}</main></body></html>"
    )
    with whole_file(path, overwrite=True) as file:
        file.write(page.encode())


def opening(model: str) -> str:
    """The first line: what "agrees" means for this model."""
    if model.rpartition("/")[2] == published.MODEL:
        return f"Measured on {model}, the model of the paper."
    return (
        f"Measured on {model}, not on the paper's model ({published.MODEL}): here “agrees” is about the direction and "
        "shape of an effect, not about its size."
    )


def effects_table(effects: Table, model: str) -> str:
    head = "".join(
        f"<th>{name}</th>" for name in ("", "setting", "paper", f"measured on {html.escape(model)}", "agrees")
    )
    rows: list[str] = []
    for k in range(len(effects)):
        cell = {name: html.escape(str(effects[name][k])) for name in effects.columns}
        setting = f'{cell["setting"]}<br><span class="soft">agrees where: {cell["criterion"]}</span>'
        rows.append(
            f"<tr><td>{cell['number']}</td><td>{setting}</td><td>{cell['paper']}</td><td>{cell['measured']}</td>"
            f'<td class="{cell["agrees"].split()[0]}">{cell["agrees"]}</td></tr>'
        )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def figure(name: str, svg: str) -> str:
    """The picture itself; its identifiers carry its name, since a page holds several."""
    inner = svg[svg.index("<svg") :]
    for prefix in ('id="', "url(#", 'href="#'):
        inner = inner.replace(prefix, f"{prefix}{name}-")
    label = name.replace("_", " ")
    width, height = (float(number) for number in inner.split('viewBox="0 0 ')[1].split('"')[0].split())
    wide = ' class="wide"' if width > 2 * height else ""
    return f'<figure role="img" aria-label="{label}"{wide}>{inner}</figure>'
