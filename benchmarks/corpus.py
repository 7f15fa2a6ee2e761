"""Corpus runs: against the loop that a user would write, two workers against one, Ray against local, and memory.

The demo model on GLUE's MRPC (development pairs) where ../shared has it, else on neighbouring sentences of the story
that comes with clearhead; effective attention, one thread a worker. Rates of engines are taken between the first and
the last shard, so that starting and loading do not count. The loop traces one text, applies the method, and appends
its Map to a list; a run stores summaries of every token and the statistics as well.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.table import line
from clearhead.corpus.documents import Source, read
from clearhead.corpus.local import Job, in_processes
from clearhead.corpus.run import engine_of, run_corpus
from clearhead.corpus.settings import settings, shards
from clearhead.corpus.store import prepare
from clearhead.methods.effective_attention import effective_attention
from clearhead.models.load import load
from clearhead.studies.data import own_pairs, read_pairs

MRPC = Path(__file__).parents[2] / "shared" / "data" / "mrpc" / "dev.tsv"
PAIRS, SHARD = 384, 32
ENGINES = (("local", 1), ("local", 2), ("ray", 2))


def main() -> None:
    found = read_pairs(str(MRPC)).pairs if MRPC.is_file() else own_pairs().pairs
    pairs = (found * (PAIRS // len(found) + 1))[:PAIRS]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "pairs.jsonl"
        path.write_text("".join(json.dumps({"a": a, "b": b}) + "\n" for a, b in pairs), "utf-8")
        against_the_loop(pairs[:256], folder, path)
        rates = {(engine, workers): rate(engine, workers, path, folder) for engine, workers in ENGINES if there(engine)}
        two, one = rates["local", 2], rates["local", 1]
        told("two workers against one", two, one, 1.8)
        if ("ray", 2) in rates:
            told("Ray against local, two workers", rates["ray", 2], two, 0.9)
        memory(pairs[:32], folder)


def told(what: str, ours: float, baseline: float, least: float) -> None:
    ratio = ours / baseline
    line(
        what,
        f"{ours:.3g} documents/s",
        f"{baseline:.3g} documents/s",
        f"{ratio:.3g}x",
        f"at least {least:g}x",
        ratio >= least,
    )


def there(engine: str) -> bool:
    return engine != "ray" or importlib.util.find_spec("ray") is not None


def against_the_loop(pairs: tuple[tuple[str, str], ...], folder: Path, path: Path) -> None:
    """Documents/s of a run on one worker in this process, model loaded, and of the loop."""
    import torch

    torch.set_num_threads(1)
    model = load("demo")
    maps = [effective_attention(model.trace(*pairs[0]))]
    start = time.perf_counter()
    maps = [effective_attention(model.trace(*pair)) for pair in pairs]
    loop = len(maps) / (time.perf_counter() - start)
    options: Any = {"column": "a", "pair_column": "b", "model": model}
    run_corpus(path, folder / "warm", **options, limit=4)
    start = time.perf_counter()
    run_corpus(path, folder / "ours", **options, granularity="statistics", limit=len(pairs))
    ours = len(pairs) / (time.perf_counter() - start)
    told("one worker against the loop over texts", ours, loop, 4)
    start = time.perf_counter()
    with torch.inference_mode():
        for batch in batches(model, pairs):
            model.hf(**batch)
    limit = len(pairs) / (time.perf_counter() - start)
    line("the same against its limit, the forward passes of the model alone", f"{ours:.3g} documents/s",
         f"{limit:.3g} documents/s", f"{ours / limit:.3g}x", "", True)  # fmt: skip


def batches(model: Any, pairs: tuple[tuple[str, str], ...]) -> Iterator[Any]:
    """Of as many tokens as those of a run, longest first."""
    lengths = {pair: len(model.tokens_of(*pair)) for pair in pairs}
    left = sorted(pairs, key=lambda pair: -lengths[pair])
    while left:
        count = max(1, settings("effective_attention").batch_tokens // lengths[left[0]])
        yield model.tokenizer(*zip(*left[:count], strict=True), padding=True, return_tensors="pt")
        left = left[count:]


def rate(engine: str, workers: int, path: Path, folder: Path) -> float:
    """Documents/s between the first and the last shard."""
    chosen = settings("effective_attention", shard_documents=SHARD)
    job = Job("demo", None, chosen, folder / f"{engine}{workers}")
    prepare(job.folder)
    groups = shards(read(Source(str(path), "a", "b")), SHARD)
    run = (
        engine_of("ray", workers, job, load("demo"), None, 0.0)(groups)
        if engine == "ray"
        else in_processes(groups, job, workers)
    )
    moments = [(time.perf_counter(), result["documents"]) for result in run]
    # The first shards of all workers come together: count from the last of them.
    first = moments[workers - 1][0]
    return sum(documents for _, documents in moments[workers:]) / (moments[-1][0] - first)


def memory(pairs: tuple[tuple[str, str], ...], folder: Path) -> None:
    """Peak memory of a run over the pairs, and over the same a hundred times (in processes of their own)."""
    found: list[float] = []
    for times in (1, 100):
        path = folder / f"times{times}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for _ in range(times):
                file.writelines(json.dumps({"a": a.split()[0], "b": b.split()[0]}) + "\n" for a, b in pairs)
        command = [sys.executable, "-m", "benchmarks.corpus", str(path), str(folder / f"memory{times}")]
        found.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]))
    ratio = found[1] / found[0]
    line("peak memory, input 100 times as long", f"{found[1]:.0f} MiB", f"{found[0]:.0f} MiB", f"{ratio:.3g}x",
         "at most 1.1x", ratio <= 1.1)  # fmt: skip


def peak(path: str, output: str) -> None:
    run_corpus(path, output, column="a", pair_column="b", granularity="statistics", shard_documents=SHARD)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    peak(*sys.argv[1:]) if sys.argv[1:] else main()
