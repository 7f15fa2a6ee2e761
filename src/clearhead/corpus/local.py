"""Shards on this machine: in this process, or in worker processes that each load the model once."""

from __future__ import annotations

import multiprocessing as mp
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearhead.corpus.settings import Settings, Shard
from clearhead.errors import InputError

if TYPE_CHECKING:
    from clearhead.models.model import Model

IN_FLIGHT = 2
"""Shards handed out for each worker: one at work, one waiting."""
ATTEMPTS = 3
"""Workers that a shard may lose before the run stops: one that always kills its worker would never end."""
Result = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What every worker needs to know."""

    source: str
    """The model, as for `load`."""
    dtype: str | None
    settings: Settings
    folder: Path


def in_this_process(shards: Iterable[Shard], model: Model, job: Job) -> Iterator[Result]:
    """Shard by shard. Yields what each shard.json says."""
    import torch

    from clearhead.corpus.work import work

    before = torch.get_num_threads()
    torch.set_num_threads(job.settings.threads)
    try:
        for shard in shards:
            yield work(shard, model, job.settings, job.folder)
    finally:
        torch.set_num_threads(before)


def in_processes(shards: Iterable[Shard], job: Job, workers: int) -> Iterator[Result]:
    """Shards over worker processes, in the order in which they are done; a lost worker's shards are done again.

    Errors: InputError where a shard loses its worker ATTEMPTS times, and those of `load` and `work`.
    """
    left, attempts = iter(shards), dict[int, int]()
    again: list[Shard] = []
    context = processes()
    while True:
        pool = ProcessPoolExecutor(workers, context, initializer=start, initargs=(job,))
        running: dict[Future[Result], Shard] = {}
        try:
            while True:
                while len(running) < IN_FLIGHT * workers:
                    shard = again.pop() if again else next(left, None)
                    if shard is None:
                        break
                    running[pool.submit(one, shard)] = shard
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    shard = running[future]
                    result = future.result()
                    del running[future]
                    yield result
        except BrokenProcessPool:
            again += running.values()
            count_lost(running.values(), attempts)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def processes() -> Any:
    """How workers are started: from one server that has loaded the libraries, or anew where there is no such thing."""
    if "forkserver" not in mp.get_all_start_methods():
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(
        ["pandas", "transformers.modeling_utils", "clearhead.models.load", "clearhead.corpus.work"]
    )
    return context


def count_lost(shards: Iterable[Shard], attempts: dict[int, int]) -> None:
    """Errors: InputError where one of the shards was under way each time that a worker was lost."""
    for shard in shards:
        attempts[shard.number] = attempts.get(shard.number, 0) + 1
        if attempts[shard.number] >= ATTEMPTS:
            first, last = shard.documents[0].place, shard.documents[-1].place
            raise InputError(
                f"corpus: a worker process was lost {ATTEMPTS} times with shard {shard.number} ({first} to {last})",
                do="Often memory is short: use fewer --workers or --batch-tokens. Finished shards are safe.",
            )


_own: dict[str, Any] = {}
"""What a worker process holds: its model and job. Set once, by `start`."""


def start(job: Job) -> None:
    """Load the model in a worker process, which ends when its parent does."""
    follow_parent()
    _own.update(job=job, work=worker(job))


def follow_parent() -> None:
    """End this process as soon as its parent is gone: nobody would collect its work."""
    parent = mp.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def worker(job: Job) -> Callable[[Shard], Result]:
    """The worker function with its model loaded. Errors: those of `load`."""
    import torch

    from clearhead.corpus.work import work
    from clearhead.models.load import load

    torch.set_num_threads(job.settings.threads)
    model = load(job.source) if job.dtype is None else load(job.source, dtype=job.dtype)
    return lambda shard: work(shard, model, job.settings, job.folder)


def one(shard: Shard) -> Result:
    """A shard, in a worker process."""
    return _own["work"](shard)
