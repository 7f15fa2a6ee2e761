"""The report: one payload and the front end in one self-contained HTML file.

The file is laid out so that it shows itself before it is read to its end: first the small payload and the script, then
the packed maps, a block an element, those of the layer that is shown first before the others.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearhead.maps.files import whole_file
from clearhead.maps.html import framed

if TYPE_CHECKING:
    from clearhead.explorer.findings import Findings

MODULES = (
    "codec.js",
    "colour.js",
    "dom.js",
    "exports.js",
    "figures.js",
    "lens.js",
    "store.js",
    "sources.js",
    "curves.js",
    "matrix.js",
    "overview.js",
    "picker.js",
    "options.js",
    "heatmaps.js",
    "text.js",
    "flow.js",
    "depth.js",
    "querykey.js",
    "tables.js",
    "page.js",
)
"""The front end, each module after those that it imports."""
DOORS = ("file.js", "notebook.js", "server.js")
"""The modules that open it: one a door."""


@dataclass(frozen=True)
class Report:
    """A report in Python: it shows itself in a notebook, and goes to a file."""

    payload: dict[str, Any]

    @property
    def html(self) -> str:
        return page_of(self.payload)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the one file, whole or not at all. Errors: InputError where it exists, or its folder does not."""
        return write_report(self.payload, path, overwrite=overwrite)

    def __repr__(self) -> str:
        return "\n".join(["Report", *(f"  {sentence}" for sentence in sentences(self.payload))])

    def _repr_html_(self) -> str:
        return framed(self.html, 860, scripts=True)


def report_of(findings: Findings) -> Report:
    """The report of findings."""
    from clearhead.explorer.data import payload

    return Report(payload(findings))


def write_report(payload: dict[str, Any], path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the page of a payload to `path`, whole or not at all.

    Errors: InputError where the file exists (without `overwrite`) or its folder does not.
    """
    with whole_file(path, overwrite=overwrite) as file:
        file.write(page_of(payload).encode("utf-8"))
    return Path(path)


def page_of(payload: dict[str, Any]) -> str:
    """The HTML of a report. Everything in the payload is data: inside the page it is JSON without a single < or &."""
    script, style = script_of("file.js"), static("page.css")
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{digest(script)}'",
            f"style-src '{digest(style)}'",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    blocks: dict[str, tuple[int, str]] = {}
    small = without_blocks(payload, blocks)
    shown_first = payload["start"]["layer"]
    order = sorted(blocks, key=lambda name: abs(blocks[name][0] - shown_first))
    parts = {
        "policy": policy,
        "title": html.escape(f"clearhead: {payload['model']['name']}"),
        "style": style,
        "verdicts": "\n".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences(payload)),
        "payload": data_in_page(small),
        "script": script,
        "blocks": "\n".join(f'<script type="text/plain" id="{name}">{blocks[name][1]}</script>' for name in order),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], static("page.html"))


def sentences(payload: dict[str, Any]) -> list[str]:
    """The verdicts as plain text."""
    return [one["sentence"].replace("**", "") for one in payload["verdicts"]]


def without_blocks(told: Any, blocks: dict[str, tuple[int, str]]) -> Any:
    """The payload with each packed block (base64) replaced by the id of the element that holds it; `blocks` gathers
    (layer, text) by id."""
    if isinstance(told, dict):
        return {
            name: named(value, blocks) if name == "blocks" else without_blocks(value, blocks)
            for name, value in told.items()
        }
    return [without_blocks(one, blocks) for one in told] if isinstance(told, list) else told


def named(packed: list[str], blocks: dict[str, tuple[int, str]]) -> list[str]:
    """Ids for the blocks of one packed array, which join `blocks`."""
    first = len(blocks)
    names = [f"block-{first + layer}" for layer in range(len(packed))]
    blocks.update({name: (layer, block) for layer, (name, block) in enumerate(zip(names, packed, strict=True))})
    return names


def data_in_page(payload: dict[str, Any]) -> str:
    """JSON that can stand in a script element: ASCII only, no <, > or &. NaN is refused (ValueError)."""
    text = json.dumps(payload, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def script_of(door: str) -> str:
    """All modules and a door in one script that runs at once, where it stands in the page."""
    return f"\n(async () => {{\n{modules_of(door)}\n}})();\n"


def modules_of(door: str) -> str:
    """All modules, each in a scope of its own, so that no name of one can mean another's; the door last."""
    return "\n".join(scoped(name, static(name)) for name in (*MODULES, door))


def scoped(name: str, text: str) -> str:
    """An ES module as a constant that holds what it exports; its imports are read from the constants of others."""
    exports = re.findall(r"^export (?:async )?(?:function|class|const) (\w+)", text, flags=re.MULTILINE)
    text = re.sub(r'^import (\{.*\}) from "\./(\w+)\.js";$', r"const \1 = $\2;", text, flags=re.MULTILINE)
    text = re.sub(r"^export ", "", text, flags=re.MULTILINE)
    return (
        f"const ${name.removesuffix('.js')} = await (async () => {{\n{text}return {{ {', '.join(exports)} }};\n}})();"
    )


def digest(text: str) -> str:
    """A source expression of the content-security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def static(name: str) -> str:
    """A file of the front end."""
    return files("clearhead.explorer").joinpath("static", name).read_text(encoding="utf-8")
