"""A running server: real processes, a tiny random model, a free port."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny as tiny_models

uvicorn = pytest.importorskip("uvicorn", reason="the extra `explorer` is not installed")


@dataclass
class Running:
    """A server that answers at `url` for `models`."""

    url: str
    models: tuple[str, ...]
    jobs: Any

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120)

    def finished(self, client: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
        """The job once it has ended."""
        until = time.monotonic() + 120
        while job["state"] in ("waiting", "running"):
            assert time.monotonic() < until, job
            time.sleep(0.05)
            job = client.get(f"/api/jobs/{job['id']}").json()
        return job

    def analysed(self, client: httpx.Client, text: str = "w1 w2 w3 w1 w4", **more: Any) -> tuple[str, dict[str, Any]]:
        """(id of the analysis, what the page is told)."""
        body = {"model": self.models[0], "text": text, "probes": 2} | more
        started = client.post("/api/analyses", json=body).json()
        job = self.finished(client, started["job"])
        assert job["state"] == "done", job
        return started["analysis"], client.get(f"/api/jobs/{job['id']}/result").json()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk: BERT, 2 layers of 3 heads of width 4."""
    folder = tmp_path_factory.mktemp("tiny-bert")
    model, tokenizer = tiny_models.tiny("bert")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def running(models: tuple[str, ...], **options: Any) -> Iterator[Running]:
    """Start a server in a thread; stop it and all its processes at the end."""
    from clearhead.explorer.jobs import Jobs
    from clearhead.explorer.server import HOST, application

    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    jobs = Jobs(models, **options)
    server = uvicorn.Server(uvicorn.Config(application(jobs, port), host=HOST, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 120
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < until
        time.sleep(0.05)
    yield Running(f"http://{HOST}:{port}", models, jobs)
    server.should_exit = True
    thread.join(timeout=60)
    assert not thread.is_alive()


@pytest.fixture(scope="session")
def server(tiny_folder: Path) -> Iterator[Running]:
    yield from running((str(tiny_folder),), seconds=120)
