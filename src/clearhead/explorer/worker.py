"""What computes for the server: a process of its own, so that a job can be ended at any time and the server always
answers. It loads the models that were named at the start and no other."""

from __future__ import annotations

import signal
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clearhead.errors import ClearheadError
from clearhead.progress import listening

if TYPE_CHECKING:
    from clearhead.explorer.session import Session

PAUSE = 0.2
"""Seconds between two messages of how far a step is."""
KEPT = 4
"""Traces that a worker remembers."""


def work(connection: Connection, names: tuple[str, ...], threads: int) -> None:
    """Load the models, say so, then do task after task until the connection ends.

    Messages out: ("ready",), ("step", text), ("done", result), ("failed", class of the error, its line).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends its workers itself
    import torch

    from clearhead.explorer.session import Session
    from clearhead.models.load import load

    torch.set_num_threads(threads)
    try:
        models = {name: load(name) for name in names}
    except ClearheadError as error:
        connection.send(("failed", type(error).__name__, str(error)))
        return
    connection.send(("ready",))
    sessions: OrderedDict[str, Session] = OrderedDict()
    while True:
        try:
            task: dict[str, Any] = connection.recv()
        except EOFError:
            return
        say = Saying(connection)
        try:
            name: str = task["analysis"]
            if name not in sessions:
                say("trace and proof")
                sessions[name] = Session(models[task["model"]].trace(task["text"], task["pair"]))
            sessions.move_to_end(name)
            while len(sessions) > KEPT:
                sessions.popitem(last=False)
            with listening(say.part):
                connection.send(("done", perform(sessions[name], task, say)))
        except ClearheadError as error:
            connection.send(("failed", type(error).__name__, str(error)))
        except Exception as error:  # noqa: BLE001 - the job tells of it, the log holds the traceback
            traceback.print_exc()
            connection.send(("failed", type(error).__name__, f"A defect of clearhead: {type(error).__name__}: {error}"))


class Saying:
    """Sends what is being done, and how far it is."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._step, self._said = connection, "", 0.0

    def __call__(self, step: str) -> None:
        self._step = step
        self._connection.send(("step", step))

    def part(self, done: float, total: float) -> None:
        """`done` of `total` parts of the step; said every `PAUSE`."""
        if time.monotonic() - self._said > PAUSE and done < total:
            self._said = time.monotonic()
            self._connection.send(("step", f"{self._step}: {100 * done / total:.0f} %"))


def perform(session: Session, task: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """One task: what the page is told. Arrays go to files in the folder of the task, named in "files"."""
    from clearhead.explorer.session import add_map, first_page, interval, query_key

    asked: dict[str, Any] = task["asked"]
    if task["kind"] == "analysis":
        told = first_page(session, probes=task["probes"], say=say)
        return {"told": told, "files": {name: write(session, name, Path(task["folder"])) for name in session.maps}}
    if task["kind"] == "map":
        told = add_map(session, asked["method"], asked["options"], say=say)
        return {"told": told, "files": {told["id"]: write(session, told["id"], Path(task["folder"]))}}
    if task["kind"] == "interval":
        return {"told": interval(session, **asked), "files": {}}
    return {"told": query_key(session, **asked, say=say), "files": {}}


def write(session: Session, name: str, folder: Path) -> dict[str, str]:
    """The arrays of a map as files: {"value": path, "stderr": path}."""
    folder.mkdir(exist_ok=True)
    made = session.maps[name]
    paths: dict[str, str] = {}
    for part, values in (("value", made.values), ("stderr", made.stderr)):
        if values is not None:
            path = folder / f"{len(list(folder.iterdir()))}.npy"
            np.save(path, values.astype(np.float32))
            paths[part] = str(path)
    return paths
