"""Versions of the libraries that a number came through."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def versions() -> dict[str, str]:
    """clearhead, torch, transformers, numpy and Python, as installed."""

    def of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "from source"

    return {name: of(name) for name in ("clearhead", "torch", "transformers", "numpy")} | {
        "python": platform.python_version()
    }
