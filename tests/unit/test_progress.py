"""How far a long computation is: who says it, who hears it."""

from multiprocessing import Pipe
from typing import Any

import pytest

import clearhead as ch
from clearhead import progress
from clearhead.explorer import worker
from clearhead.methods.registry import methods
from tests.tiny import tiny, words

LAYERED = (
    "alti", "attention_flow", "attention_identifiability", "decompx", "effective_attention",
    "effective_attention_summary", "globenc", "mixing_ratio", "residual_norms", "value_zeroing", "vector_norms",
)  # fmt: skip


@pytest.fixture(scope="module")
def trace() -> Any:
    return ch.load(tiny("bert")).trace(words(5))


@pytest.mark.parametrize("name", LAYERED)
def test_methods_say_which_layer_they_have_done(name: str, trace: Any) -> None:
    heard: list[tuple[float, float]] = []
    with progress.listening(lambda done, total: heard.append((done, total))):
        methods()[name].function(trace)
    layers = len(trace.layers)
    assert heard == [(k, layers) for k in range(1, layers + 1)]


def test_nobody_listens_after_an_error() -> None:
    heard: list[float] = []

    def fail() -> None:
        with progress.listening(lambda done, total: heard.append(done)):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    progress.report(1, 2)
    assert heard == []


def test_the_server_tells_parts_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = Pipe()
    say = worker.Saying(other)
    say("decompx")
    monkeypatch.setattr(worker, "PAUSE", -1.0)
    say.part(1, 4)
    monkeypatch.setattr(worker, "PAUSE", 1e9)
    say.part(2, 4)  # too soon after the last one
    monkeypatch.setattr(worker, "PAUSE", -1.0)
    say.part(3, 4)
    say.part(4, 4)  # "done" follows
    told = [ours.recv() for _ in range(3)]
    assert told == [("step", "decompx"), ("step", "decompx: 25 %"), ("step", "decompx: 75 %")]
    assert not ours.poll()
