"""Arrays as compact text: integer codes, one zlib stream a layer, base64. `static/codec.js` reads them."""

from __future__ import annotations

import base64
import zlib
from typing import Any, Literal

import numpy as np

Bits = Literal[8, 16]


def pack(
    values: np.ndarray, bits: Bits, *, largest: np.ndarray | None = None, limit: float = float("inf")
) -> dict[str, Any] | None:
    """`values` [layer, query, key] or [layer, head, query, key] as multiples of a step, one step a layer and head.

    value = code * largest / levels, so that every value is within half a step, largest / levels / 2, of the exact one.
    `largest`: what the codes reach up to, by default the largest magnitude of each layer and head; arrays that share it
    share their steps, so that equal values stay equal. None where the text would be longer than `limit` characters.
    """
    levels = 2 ** (bits - 1) - 1
    kind = np.dtype(f"<i{bits // 8}")
    largest = magnitude(values) if largest is None else largest
    steps = np.where(largest > 0, largest, 1.0) / levels
    blocks: list[str] = []
    for layer, step in zip(values, steps, strict=True):
        codes = np.rint(layer / np.asarray(step)[..., None, None]).astype(kind)
        packer = zlib.compressobj(
            6, zlib.DEFLATED, 15, 9, zlib.Z_HUFFMAN_ONLY
        )  # as small as full search here, 5x faster
        blocks.append(base64.b64encode(packer.compress(codes.tobytes()) + packer.flush()).decode("ascii"))
        limit -= len(blocks[-1])
        if limit < 0:
            return None
    return {
        "shape": list(values.shape), "bits": bits, "levels": levels, "largest": largest.tolist(), "blocks": blocks,
    }  # fmt: skip


def magnitude(values: np.ndarray) -> np.ndarray:
    """Largest magnitude of each layer (and head)."""
    return np.abs(values).max(axis=(-2, -1))


def text_size(packed: dict[str, Any]) -> int:
    """Characters of all blocks."""
    return sum(map(len, packed["blocks"]))
