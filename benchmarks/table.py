"""The one table that all benchmarks print: what was measured, against what, and what was promised."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

HEADER = "| what | ours | baseline | ratio | promised | |\n|---|---|---|---|---|---|"


def median_seconds(function: Callable[[], object], repeats: int = 5) -> float:
    """Median time of a call, after one call that is not counted."""
    function()
    return statistics.median(_seconds(function) for _ in range(repeats))


def row(
    what: str, ours: float, baseline: float, *, at_least: float | None = None, at_most: float | None = None
) -> None:
    """Print one line in seconds.

    With `at_least` the ratio is baseline / ours (a speed-up), else ours / baseline (a cost).
    """
    if at_least is not None:
        ratio, promised, met = baseline / ours, f"at least {at_least:g}x", baseline / ours >= at_least
    elif at_most is not None:
        ratio, promised, met = ours / baseline, f"at most {at_most:g}x", ours / baseline <= at_most
    else:
        ratio, promised, met = ours / baseline, "", True
    line(what, f"{ours:.3g} s", f"{baseline:.3g} s", f"{ratio:.3g}x", promised, met)


def line(what: str, ours: str, baseline: str, ratio: str, promised: str, met: bool) -> None:
    """Print one line with any unit."""
    print(f"| {what} | {ours} | {baseline} | {ratio} | {promised} | {'met' if met else 'NOT MET'} |", flush=True)


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
