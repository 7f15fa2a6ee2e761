"""How far a long computation is: what works says it (`report`, `each`), whoever waits listens (`listening`, `bar`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Progress = Callable[[float, float], None]
"""Called with (done, total)."""
PATIENCE = 1.0
"""Seconds of work before a bar appears."""
_listener: ContextVar[Progress | None] = ContextVar("listener", default=None)


def report(done: float, total: float) -> None:
    """Say how far the work is, to whoever listens."""
    listener = _listener.get()
    if listener is not None:
        listener(done, total)


def each(items: Sequence[T]) -> Iterator[T]:
    """The items in turn; after each one, how many are done is said."""
    for done, item in enumerate(items, 1):
        yield item
        report(done, len(items))


@contextmanager
def listening(listener: Progress) -> Generator[None]:
    """Within it, `listener` hears what is reported, and no bar appears."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def bar(title: str) -> Generator[None]:
    """A bar on stderr once the work has taken `PATIENCE`, where that is a terminal and nobody else listens."""
    if _listener.get() is not None or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    begun = time.monotonic()
    shown = Bar(console=Console(stderr=True), transient=True)
    task = shown.add_task(title)

    def show(done: float, total: float) -> None:
        if time.monotonic() - begun > PATIENCE:
            shown.start()
            shown.update(task, completed=done, total=total)

    try:
        with listening(show):
            yield
    finally:
        shown.stop()
