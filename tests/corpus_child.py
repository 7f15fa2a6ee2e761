"""A corpus run in a process of its own, to be killed by a test; the fork server has loaded torch before."""

from __future__ import annotations

import multiprocessing as mp
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
from tiny import WORDS, tiny

OPTIONS: dict[str, Any] = {
    "methods": "effective_attention,attention_rollout",
    "shard_documents": 20,
    "batch_tokens": 400,
}


def save_tiny(folder: Path, family: str = "bert") -> Path:
    """A tiny random model as a folder that `load` reads."""
    model, tokenizer = tiny(family)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def texts(count: int, seed: int = 0) -> list[str]:
    """Texts of 1 to 30 words."""
    draw = np.random.default_rng(seed)
    return [" ".join(f"w{k}" for k in draw.integers(0, WORDS, draw.integers(1, 30))) for _ in range(count)]


def run(options: dict[str, Any]) -> None:
    """A run, in the process that is killed."""
    import torch

    from clearhead.corpus.run import run_corpus

    torch.set_num_threads(1)
    run_corpus(**options)


def killed_runs(kills: int, step: int, seed: int, options: dict[str, Any]) -> list[int]:
    """Start a run `kills` times, each killed (SIGKILL) at a random moment; then once undisturbed.

    The moment: up to a fifth of a second after it has stored 0 to `step` shards more; one time in five, any moment of
    its start. Returns the number of shards that were stored after each kill; a run that ends before is none.
    """
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["corpus_warm"])
    draw, found = random.Random(seed), list[int]()
    shards = Path(options["output"]) / "shards"
    for _ in range(kills):
        early, wanted = draw.random() < 0.2, stored(shards) + draw.randint(0, step)
        process = context.Process(target=run, args=(options,))
        process.start()
        while process.is_alive() and not early and not (stored(shards) >= wanted and any_aside(shards)):
            time.sleep(0.01)
        process.join(draw.uniform(0, 0.2))
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            found.append(stored(shards))
    process = context.Process(target=run, args=(options,))
    process.start()
    process.join()
    assert process.exitcode == 0
    return found


def stored(shards: Path) -> int:
    return len(list(shards.iterdir())) if shards.is_dir() else 0


def any_aside(shards: Path) -> bool:
    """Whether a shard is being written."""
    return any((shards.parent / "aside").iterdir())
