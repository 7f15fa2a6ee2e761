"""The colours of the page, computed again."""

from __future__ import annotations

from typing import Any

import numpy as np


def oklab_colour(t: float) -> tuple[int, int, int]:
    """The colour of a weight in the light theme, computed from the published OKLab matrices in numpy."""
    ends = {"zero": (0.968, 0.003, 260), 1: (0.4, 0.15, 262), -1: (0.4, 0.12, 45)}

    def lab(name: Any) -> np.ndarray:
        lightness, chroma, hue = ends[name]
        return np.array([lightness, chroma * np.cos(np.radians(hue)), chroma * np.sin(np.radians(hue))])

    mixed = lab("zero") + abs(t) * (lab(1 if t >= 0 else -1) - lab("zero"))
    cone = (
        np.array([[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.291485548]])
        @ mixed
    ) ** 3
    to_linear = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.707614701],
        ]
    )
    linear = to_linear @ cone
    linear = np.clip(linear, 0, 1)
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    red, green, blue = np.rint(255 * encoded).astype(int).tolist()
    return red, green, blue
