"""The report: one payload and the front end in one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from clearhead.maps.files import whole_file

MODULES = (
    "codec.js",
    "colour.js",
    "dom.js",
    "curves.js",
    "matrix.js",
    "attention.js",
    "text.js",
    "tables.js",
    "report.js",
    "start.js",
)
"""The front end, each module after those that it imports."""


def write_report(payload: dict[str, Any], path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the page of a payload to `path`, whole or not at all.

    Errors: InputError where the file exists (without `overwrite`) or its folder does not.
    """
    with whole_file(path, overwrite=overwrite) as file:
        file.write(page_of(payload).encode("utf-8"))
    return Path(path)


def page_of(payload: dict[str, Any]) -> str:
    """The HTML of a report. Everything in the payload is data: inside the page it is JSON without a single < or &."""
    script, style = script_of(), static("report.css")
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{digest(script)}'",
            f"style-src '{digest(style)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    sentences = [one["sentence"].replace("**", "") for one in payload["verdicts"]]
    parts = {
        "policy": policy,
        "generator": html.escape("clearhead"),
        "title": html.escape(f"clearhead: {payload['model']['name']}"),
        "style": style,
        "verdicts": "\n".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences),
        "payload": data_in_page(payload),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], static("page.html"))


def data_in_page(payload: dict[str, Any]) -> str:
    """JSON that can stand in a script element: ASCII only, no <, > or &. NaN is refused (ValueError)."""
    text = json.dumps(payload, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def script_of() -> str:
    """All modules in one script, each in a scope of its own, so that no name of one can mean another's."""
    return "\n" + "\n".join(scoped(name, static(name)) for name in MODULES)


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
