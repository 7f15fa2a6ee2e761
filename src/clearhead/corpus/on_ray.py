"""Shards on Ray: the same worker function in an actor pool of Ray Data. The one file that knows Ray.

Each actor loads the model once and stores its shards itself, so the directory must be one that all nodes share. The
driver hands shards out in waves: it holds one wave of texts, never the corpus. Where a node or an actor is lost, Ray
runs its shards again; a shard that was stored meanwhile stays as it is.
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import socket
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

from clearhead.corpus.local import Job, Result, worker
from clearhead.corpus.settings import Shard
from clearhead.errors import ClearheadError, InputError, MissingExtra

LISTENS = 5.0
"""Seconds in which a cluster must answer; Ray itself would try for minutes."""
WAVE = 256
"""Shards for each worker in a wave; with 128 documents a shard, a model is loaded once in 32,768 documents."""
STORE_BYTES = 200 * 2**20
"""Object store of a cluster that this starts: only texts and counts pass through it."""


class Worker:
    """An actor: the model, and the worker function on it."""

    def __init__(self, job: Job) -> None:
        self.work = worker(job)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"result": [pickle.dumps(self._one(data)) for data in batch["shard"]]}

    def _one(self, data: bytes) -> Result | str:
        try:
            return self.work(pickle.loads(data))
        except ClearheadError as error:  # no space left: the driver stops with this line; Ray would only try again
            return str(error)


def on_ray(shards: Iterable[Shard], job: Job, workers: int, address: str | None, gpus: float) -> Iterator[Result]:
    """Shards over actors, in the order in which they are done.

    Errors: MissingExtra without Ray; InputError where the cluster cannot be reached or a worker could not go on.
    """
    job, left = replace(job, folder=job.folder.absolute()), iter(shards)
    first = list(islice(left, WAVE * workers))
    if not first:
        return
    with cluster(address, workers * job.settings.threads) as ray:
        wave = first
        while wave:
            yield from one_wave(ray, wave, job, workers, gpus)
            wave = list(islice(left, WAVE * workers))


def one_wave(ray: Any, wave: list[Shard], job: Job, workers: int, gpus: float) -> Iterator[Result]:
    """A wave of shards through an actor pool."""
    items = [{"shard": pickle.dumps(shard)} for shard in wave]
    data = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        Worker,
        fn_constructor_args=(job,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(workers, len(items))),
        num_cpus=job.settings.threads,
        **({"num_gpus": gpus} if gpus else {}),
    )
    for row in data.iter_rows():
        result = pickle.loads(row["result"])
        if isinstance(result, str):
            raise InputError(f"a worker on Ray stopped: {result}")
        yield result


@contextmanager
def cluster(address: str | None, cpus: int) -> Generator[Any]:
    """Ray, connected to `address`, or to a cluster on this machine that ends with the run; one that the program has
    joined already is used as it is. Errors: MissingExtra without Ray; InputError where it cannot be reached."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray: Any = importlib.import_module("ray")
        importlib.import_module("ray.data")
    except ImportError as error:
        raise MissingExtra("corpus: --engine ray needs Ray", do="pip install clearhead[ray]") from error
    check_listens(address)
    joined = ray.is_initialized()
    own = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    options = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if not joined:
            ray.init(address=address, **options) if address else ray.init(address="local", **options, **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"corpus: Ray at {address or 'this machine'} cannot be reached", got=reason,
            do="A cluster that asks for a token needs RAY_AUTH_MODE=token here, and its token in ~/.ray/auth_token."
            if address else "",
        ) from error  # fmt: skip
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield ray
    finally:
        if not joined:
            ray.shutdown()


def check_listens(address: str | None) -> None:
    """Errors: InputError where nobody listens at an address of the form host:port (others are Ray's own affair)."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), LISTENS).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"corpus: nobody listens at {address}", got=error,
            allowed="host:port of the head of a Ray cluster, or auto on one of its machines",
        ) from error  # fmt: skip
