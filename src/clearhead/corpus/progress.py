"""How far a run is: a bar where standard error is a terminal, else a plain line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from clearhead.corpus.documents import Source, read

EVERY = 10.0
"""Seconds between plain lines."""


class Counted(Protocol):
    """What is known of a run."""

    counts: dict[str, int]
    kept: int


class Quiet:
    """Tells nobody."""

    def done(self, result: Mapping[str, Any]) -> None:
        """A shard is stored."""


@contextmanager
def quiet(state: Counted) -> Generator[Quiet]:
    yield Quiet()


class Meter:
    """Tells documents, documents/s, tokens/s, time left and errors. A context manager."""

    def __init__(self, source: Source, limit: int | None, state: Counted) -> None:
        self.state, self.total = state, count(source, limit)
        self.start, self.tokens, self.documents, self.told = time.monotonic(), 0, 0, 0.0
        self._bar: Any = None

    def __enter__(self) -> Meter:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            self._bar = Progress(
                BarColumn(), TextColumn("{task.description}"), console=Console(stderr=True), transient=True
            )
            self._bar.start()
            self._task = self._bar.add_task(self.line(), total=self.total)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def done(self, result: Mapping[str, Any]) -> None:
        """A shard is stored."""
        self.documents += result["documents"]
        self.tokens += result["tokens"]
        if self._bar is not None:
            self._bar.update(self._task, completed=self.state.counts["documents"], description=self.line())
        elif time.monotonic() - self.told >= EVERY:
            self.told = time.monotonic()
            print(f"clearhead: {self.line()}", file=sys.stderr, flush=True)  # noqa: T201

    def line(self) -> str:
        """ "1,280 of 2,000 documents, 31.2 documents/s, 1,702 tokens/s, 0:00:23 left, 2 failed"."""
        counts, seconds = self.state.counts, max(time.monotonic() - self.start, 1e-9)
        of = "" if self.total is None else f" of {self.total:,}"
        parts = [f"{counts['documents']:,}{of} documents"]
        if self.documents:
            parts += [f"{self.documents / seconds:.1f} documents/s", f"{self.tokens / seconds:,.0f} tokens/s"]
        if self.documents and self.total is not None:
            left = int((self.total - counts["documents"]) * seconds / self.documents)
            parts.append(f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left")
        return ", ".join([*parts, f"{counts['failed']:,} failed"])


def count(source: Source, limit: int | None) -> int | None:
    """The documents of the input, by reading it once more; None where that cannot be, or would load it twice."""
    if source.name == "-" or source.name.startswith("hf:"):
        return limit
    total = sum(1 for _ in read(source))
    return total if limit is None else min(total, limit)
