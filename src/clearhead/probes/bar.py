"""A progress bar for work in stages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from clearhead.probes.features import Progress, no_progress
from clearhead.progress import listening


@contextmanager
def progress_bar(title: str) -> Generator[Callable[[str], Progress]]:
    """`stage(name)` gives what to call with (done, total): a bar on stderr where that is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda name: no_progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar, listening(no_progress):

        def stage(name: str) -> Callable[[float, float], None]:
            task = bar.add_task(f"{title}: {name}", total=None)
            return lambda done, total: bar.update(task, completed=done, total=total)

        yield stage
