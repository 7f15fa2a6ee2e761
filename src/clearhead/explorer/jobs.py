"""Jobs of the server: a queue, the processes that work it off, cancel, a limit of time, the results that are kept."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import shutil
import tempfile
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from clearhead import errors
from clearhead.errors import ClearheadError, InputError, LoadError
from clearhead.explorer.worker import work

State = Literal["waiting", "running", "done", "failed", "cancelled"]
FINAL = ("done", "failed", "cancelled")
WAITING = 32
"""Jobs that may wait; one more is refused."""
REMEMBERED = 512
"""Jobs whose result is kept."""
DISK = 4 * 2**30
"""Bytes of maps that are kept on disk; beyond, the analysis that was used longest ago is forgotten."""
TICK = 0.05


class Busy(ClearheadError):
    """Too many jobs wait already."""


@dataclass
class Job:
    """One task and how far it is."""

    id: str
    task: dict[str, Any]
    state: State = "waiting"
    step: str = "waiting"
    begun: float | None = None
    ended: float | None = None
    error: str | None = None
    result: bytes | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in FINAL

    def told(self) -> dict[str, Any]:
        """What a client is told of it."""
        until = time.monotonic() if self.ended is None else self.ended
        seconds = 0.0 if self.begun is None else until - self.begun
        return {
            "id": self.id,
            "state": self.state,
            "step": self.step,
            "seconds": round(seconds, 1),
            "error": self.error,
        }


@dataclass
class Analysis:
    """A text with its model, and the files of its maps: id -> part -> path."""

    id: str
    model: str
    text: str
    pair: str | None
    probes: int | None
    folder: Path
    files: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])


class Jobs:
    """Submits, runs, cancels and remembers jobs. Every public method may be called from any thread."""

    def __init__(self, models: tuple[str, ...], *, workers: int = 1, seconds: float = 600.0, threads: int = 1) -> None:
        self.models, self.workers, self.seconds, self.threads = models, workers, seconds, threads
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._analyses: OrderedDict[str, Analysis] = OrderedDict()
        self._queue: deque[Job] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._folder = Path(tempfile.mkdtemp(prefix="clearhead-"))
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the processes, the models loaded. Errors: those of `load`."""
        processes = [Worker(self.models, self.threads) for _ in range(self.workers)]
        try:
            for process in processes:
                process.wait_until_ready()
        except ClearheadError:
            for process in processes:
                process.stop()
            self.stop()
            raise
        for process in processes:
            thread = threading.Thread(target=self._work, args=(process,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End everything that runs, and delete what was kept."""
        with self._changed:
            self._stopping = True
            for job in self._jobs.values():
                if not job.over:
                    self._end(job, "cancelled")
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ------------------------------------------------------------------------------------------- asked from outside

    def analyse(self, model: str, text: str, pair: str | None, probes: int | None) -> tuple[Analysis, Job]:
        """The analysis of a text, and the job that makes it (or made it). Errors: InputError for a model that was not
        named at the start; Busy."""
        if model not in self.models:
            raise InputError(f"no model {model!r} here", allowed=", ".join(self.models))
        name = short(model, text, pair, probes)
        with self._changed:
            if name not in self._analyses:
                self._analyses[name] = Analysis(name, model, text, pair, probes, self._folder / name)
            analysis = self._use(name)
            return analysis, self._submit(analysis, "analysis", {})

    def ask(self, analysis: str, kind: Literal["map", "interval", "points"], asked: Mapping[str, Any]) -> Job:
        """A job on an analysis that is there. Errors: KeyError where it is not; Busy."""
        with self._changed:
            return self._submit(self._use(analysis), kind, dict(asked))

    def job(self, name: str) -> Job:
        """Errors: KeyError."""
        with self._changed:
            return self._jobs[name]

    def cancel(self, name: str) -> Job:
        """End a job that waits or runs. Errors: KeyError."""
        with self._changed:
            job = self._jobs[name]
            if not job.over:
                if job in self._queue:
                    self._queue.remove(job)
                self._end(job, "cancelled")
            return job

    def array(self, analysis: str, name: str, part: str) -> np.ndarray:
        """The numbers of a map, read from disk as needed. Errors: KeyError where there are none."""
        with self._changed:
            path = self._use(analysis).files[name][part]
            return np.load(path, mmap_mode="r")

    # ------------------------------------------------------------------------------------------------ inside

    def _use(self, name: str) -> Analysis:
        self._analyses.move_to_end(name)
        return self._analyses[name]

    def _submit(self, analysis: Analysis, kind: str, asked: dict[str, Any]) -> Job:
        name = short(analysis.id, kind, asked)
        known = self._jobs.get(name)
        if known is not None and known.state not in ("failed", "cancelled"):
            self._jobs.move_to_end(name)
            return known
        if len(self._queue) >= WAITING:
            raise Busy("too many jobs wait", got=len(self._queue), allowed=f"{WAITING}", do="Try again in a moment.")
        task = {
            "kind": kind, "asked": asked, "analysis": analysis.id, "model": analysis.model, "text": analysis.text,
            "pair": analysis.pair, "probes": analysis.probes, "folder": str(analysis.folder),
        }  # fmt: skip
        job = Job(name, task)
        self._jobs[name] = job
        self._jobs.move_to_end(name)
        # What a pointer waits for goes before what a page waits for.
        (self._queue.appendleft if kind == "interval" else self._queue.append)(job)
        old = [one for one in self._jobs.values() if one.over][: max(0, len(self._jobs) - REMEMBERED)]
        for one in old:
            del self._jobs[one.id]
        self._changed.notify_all()
        return job

    def _end(self, job: Job, state: State, error: str | None = None) -> None:
        job.state, job.error, job.ended = state, error, time.monotonic()
        job.begun = job.ended if job.begun is None else job.begun

    def _work(self, process: Worker) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping)
                if self._stopping:
                    process.stop()
                    return
                job = self._queue.popleft()
                job.state, job.step, job.begun = "running", "starting", time.monotonic()
            if not process.alive:
                process.stop()
                process = Worker(self.models, self.threads)
            self._run(process, job)

    def _run(self, process: Worker, job: Job) -> None:
        """Sees a job through; ends the process where the job is cancelled or takes too long."""
        sent = False
        while True:
            with self._changed:
                if job.over:
                    process.stop()
                    return
                if time.monotonic() - (job.begun or 0) > self.seconds:
                    process.stop()
                    self._end(job, "failed", f"The job took longer than {self.seconds:.0f} s and was ended.")
                    return
            if process.ready and not sent:
                process.send(job.task)
                sent = True
            message = process.receive(TICK)
            if message is None:
                continue
            with self._changed:
                if message[0] == "ready":
                    process.ready = True
                elif message[0] == "step":
                    job.step = message[1]
                elif job.over:
                    return
                elif message[0] == "done":
                    self._keep(job, message[1])
                    return
                else:
                    self._end(job, "failed", message[2])
                    return

    def _keep(self, job: Job, result: dict[str, Any]) -> None:
        analysis = self._analyses.get(job.task["analysis"])
        if analysis is not None:
            analysis.files.update(result["files"])
        job.result = json.dumps(result["told"], allow_nan=False).encode()
        job.step = "done"
        self._end(job, "done")
        self._forget()

    def _forget(self) -> None:
        """Delete the maps that were used longest ago while there are more than `DISK` bytes of them."""
        sizes = {name: folder_size(one.folder) for name, one in self._analyses.items()}
        for name in list(self._analyses)[:-1]:
            if sum(sizes.values()) <= DISK and len(self._analyses) <= REMEMBERED:
                return
            shutil.rmtree(self._analyses.pop(name).folder, ignore_errors=True)
            del sizes[name]
            for job in [one for one in self._jobs.values() if one.task["analysis"] == name and one.over]:
                del self._jobs[job.id]


class Worker:
    """One process that computes."""

    def __init__(self, models: tuple[str, ...], threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=work, args=(other, models, threads), daemon=True)
        self._process.start()
        other.close()
        self.ready = False

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def wait_until_ready(self) -> None:
        """Errors: those of `load`, by the class of which the process told."""
        message = self.receive(None) or ("failed", "LoadError", "the worker said nothing")
        if message[0] != "ready":
            kind = getattr(errors, message[1], LoadError)
            raise kind(message[2])
        self.ready = True

    def receive(self, seconds: float | None) -> tuple[Any, ...] | None:
        """The next message, or None; a process that ended without a word has "failed"."""
        try:
            return self._connection.recv() if self._connection.poll(seconds) else None
        except (EOFError, OSError):
            self.stop()
            return "failed", "Ended", f"The worker ended (exit code {self._process.exitcode}); its log says why."

    def send(self, task: dict[str, Any]) -> None:
        try:
            self._connection.send(task)
        except OSError:
            return  # it has ended: `receive` says so

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        self._process.kill()
        self._process.join()
        self._connection.close()


def short(*parts: Any) -> str:
    """A name for what was asked: the same for the same."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def folder_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*")) if folder.is_dir() else 0
