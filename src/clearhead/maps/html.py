"""A Map or a Trace in a notebook: a summary and a small picture, without any script or network.

Each stands in a frame of its own (`framed`), so that neither the notebook's styles reach in nor ours out.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from clearhead.maps.choose import in_words

if TYPE_CHECKING:
    from clearhead.maps.map import Map

SEQUENTIAL = ((247, 251, 255), (107, 174, 214), (8, 48, 107))
DIVERGING = ((178, 24, 43), (247, 247, 247), (33, 102, 172))
MOST_LABELS = 40
CELL, MARGIN = 14, 90
STYLE = (
    ":root{color-scheme:light dark}body{font:13px/1.45 system-ui,sans-serif;margin:8px;overflow-wrap:anywhere}"
    "table{border-collapse:collapse;margin:0 0 .5em}th{text-align:left;padding:0 1em 0 0;font-weight:400;opacity:.7}"
    "td{text-align:left}bdi{border-radius:4px;background:#8882;padding:0 3px;margin:0 1px}"
)


def framed(page: str, height: int, *, scripts: bool = False) -> str:
    """A page inside another one: a sandboxed frame of a height in pixels, which may run its scripts or not."""
    rights = "allow-scripts allow-downloads" if scripts else ""
    return (
        f'<iframe srcdoc="{escape(page)}" sandbox="{rights}" title="clearhead" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )


def facts_page(facts: Mapping[str, str], below: str = "") -> str:
    """A small page: facts as a table, and HTML below them."""
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(line)}</td></tr>" for name, line in facts.items())
    return f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style><table>{rows}</table>{below}'


def html(m: Map) -> str:
    """The summary, and a heat map of the last layer and first head (said so) of the two last axes."""
    facts = m.summary()
    picture, height = _picture(m)
    return framed(facts_page(facts, picture), height + 22 * len(facts) + 40)


def _picture(m: Map) -> tuple[str, int]:
    """(SVG with its caption, its height in pixels); nothing for a Map of fewer than two axes."""
    if len(m.dims) < 2:
        return "", 0
    first = {dim: -1 if dim == "layer" else 0 for dim in m.dims[:-2]}
    part = m.sel(**first)
    caption = f"shown: {in_words(part.meta['selected'])} (counted from 0)" if first else ""
    height, width = part.values.shape
    low, high = float(part.values.min()), float(part.values.max())
    if low < 0:
        low, high = -max(-low, high), max(-low, high)
    anchors = DIVERGING if low < 0 else SEQUENTIAL
    scaled = (part.values - low) / ((high - low) or 1.0)
    cell = CELL if max(height, width) <= MOST_LABELS else max(1, 560 // max(height, width))
    x, y, wide, tall = MARGIN, 4, cell * width, cell * height
    texts = [
        f'<text x="{x - 4}" y="{y + (i + 0.75) * cell:.1f}" text-anchor="end">{escape(_short(label))}</text>'
        for i, label in enumerate(_labels(part, 0))
    ] + [
        f'<text transform="translate({x + (i + 0.7) * cell:.1f} {y + tall + 4}) rotate(-90)" text-anchor="end">'
        f"{escape(_short(label))}</text>"
        for i, label in enumerate(_labels(part, 1))
    ]
    bottom = y + tall + MARGIN
    legend = _image(colours(np.linspace(0, 1, 64)[None], anchors), x, bottom, 160, 10)
    drawn = (
        (f"<div>{escape(caption)}</div>" if caption else "")
        + f'<svg role="img" aria-label="{escape(part.dims[0])} by {escape(part.dims[1])}" font-size="10" '
        f'font-family="sans-serif" fill="currentColor" width="{x + max(wide, 240)}" height="{bottom + 28}">'
        + _image(colours(scaled, anchors), x, y, wide, tall)
        + "".join(texts)
        + legend
        + f'<text x="{x}" y="{bottom + 22}">{low:.3g}</text>'
        f'<text x="{x + 160}" y="{bottom + 22}" text-anchor="end">{high:.3g}</text>'
        f'<text x="{x + 168}" y="{bottom + 9}">{escape(m.unit)}</text></svg>'
    )
    return drawn, bottom + 28 + 22


def _labels(part: Map, axis: int) -> list[str]:
    dim = part.dims[axis]
    if part.values.shape[axis] > MOST_LABELS:
        return []
    return list(part.tokens[dim].labels) if dim in part.tokens else [f"{dim} {label}" for label in part.coords[dim]]


def _short(label: str) -> str:
    return label if len(label) <= 14 else label[:13] + "…"


def colours(scaled: np.ndarray, anchors: tuple[tuple[int, int, int], ...]) -> np.ndarray:
    """[row, column] in 0..1 -> [row, column, 3] bytes, linear between the anchors."""
    at = np.linspace(0, 1, len(anchors))
    channels = [np.interp(scaled, at, [colour[channel] for colour in anchors]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def _image(rgb: np.ndarray, x: float, y: float, width: float, height: float) -> str:
    return (
        f'<image x="{x}" y="{y}" width="{width}" height="{height}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="data:image/png;base64,{b64encode(png(rgb)).decode()}"/>'
    )


def png(rgb: np.ndarray) -> bytes:
    """A PNG file of [row, column, 3] bytes, one pixel a cell."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    height, width, _ = rgb.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), rgb.reshape(height, -1)], axis=1)  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(lines.tobytes())
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
