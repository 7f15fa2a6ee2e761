"""A corpus run: what is left of it, handed to an engine, finished. The one public way in is `run_corpus`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clearhead.corpus import local, store
from clearhead.corpus.dataset import Corpus
from clearhead.corpus.documents import Source, fingerprint, read
from clearhead.corpus.finish import finish
from clearhead.corpus.progress import Meter, quiet
from clearhead.corpus.settings import Shard, first_of, settings, shards
from clearhead.errors import InputError, MissingExtra

if TYPE_CHECKING:
    from clearhead.models.model import Model

Engine = Literal["local", "ray"]


def run_corpus(
    source: str | Path,
    output: str | Path,
    *,
    model: str | Path | Model = "demo",
    methods: str | list[str] | tuple[str, ...] = "effective_attention",
    column: str | None = None,
    pair_column: str | None = None,
    granularity: str = "summary",
    top: int = 8,
    heads: bool = True,
    engine: str = "local",
    workers: int = 1,
    threads: int = 1,
    batch_tokens: int = 1024,
    shard_documents: int = 128,
    limit: int | None = None,
    max_errors: int | None = None,
    dtype: str | None = None,
    seed: int = 0,
    ray_address: str | None = None,
    gpus_per_worker: float = 0.0,
    progress: bool = False,
) -> Corpus:
    """Apply methods to every document of a corpus, into a directory of Parquet files; what is there is not redone.

    `source`: a file of one text a line, .csv, .tsv, .jsonl or .parquet (with `column`, and `pair_column` for pairs),
    any of them .gz or .zst (not .parquet), a folder of .txt files, "-" for standard input, or
    "hf:name[,config]:split:column".
    `methods`: names, with options as "effective_attention:part=raw". `granularity`: "maps" (every number), "top" (the
    `top` largest keys of each query), "summary" (numbers for each token), "statistics" (for each document);
    whole-corpus statistics come with all. `heads=False`: means over heads. `batch_tokens`: of one forward pass, padding
    counted.
    `engine`: "local" or "ray", with so many `workers`, each with its own copy of the model and `threads`.
    `limit`: the first documents only. `max_errors`: the most documents that may fail before the run stops.

    Errors: InputError for an input, method, option or directory that cannot be used, a directory that holds a run of
    something else, another run in the same directory, no space, too many failed documents; MissingExtra without Ray.
    """
    chosen = settings(
        methods, granularity=granularity, top=top, heads=heads, batch_tokens=batch_tokens,
        shard_documents=shard_documents, threads=threads, seed=seed,
    )  # fmt: skip
    check_engine(engine, workers, model)
    asked, folder = Source(str(source), column, pair_column), Path(output)
    documents = first_of(read(asked), limit)
    store.check_ours(folder)
    loaded = load(model, dtype)
    origin = {
        "input": {"name": Path(asked.name).name, "column": column, "pair_column": pair_column, "limit": limit},
        "model": dict(loaded.origin),
        "settings": chosen.as_json(),
    }
    name = str(model) if isinstance(model, (str, Path)) else ""
    job = local.Job(name, dtype, chosen, folder)
    store.prepare(folder)
    with store.locked(folder):
        store.claim(folder, origin)
        store.drop_broken(folder)
        state = State(folder, max_errors)
        left = state.missing(shards(documents, chosen.shard_documents))
        first = next(left, None)
        with Meter(asked, limit, state) if progress else quiet(state) as meter:
            if first is not None:
                pending = chain([first], left)
                run = engine_of(engine, workers, job, loaded, ray_address, gpus_per_worker)
                del loaded
                for result in run(pending):
                    state.add(result)
                    meter.done(result)
        state.check_whole()
        finish(folder, origin, state.counts, state.input)
    return Corpus(folder)


def check_engine(engine: str, workers: int, model: object) -> None:
    """Errors: InputError for an engine, a number of workers, a model in memory that they cannot share; MissingExtra."""
    if engine not in ("local", "ray"):
        raise InputError("corpus: engine", got=repr(engine), allowed="local, ray")
    if workers < 1:
        raise InputError("corpus: workers", got=workers, allowed="1 or more")
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        raise MissingExtra("corpus: --engine ray needs Ray", do="pip install clearhead[ray]")
    if not isinstance(model, (str, Path)) and (engine == "ray" or workers > 1):
        raise InputError(
            "corpus: a model in memory serves one worker in this process", got=f"{workers} workers, engine {engine!r}",
            do="Name the model by hub id or folder.",
        )  # fmt: skip


def load(model: str | Path | Model, dtype: str | None) -> Model:
    """The model itself. Errors: those of `clearhead.load`; InputError for a dtype that a model in memory lacks."""
    if isinstance(model, (str, Path)):
        from clearhead.models.load import load as load_model

        return load_model(model) if dtype is None else load_model(model, dtype=dtype)
    if dtype not in (None, model.dtype):
        raise InputError("corpus: dtype of a model in memory", got=dtype, allowed=model.dtype)
    return model


def engine_of(
    engine: str, workers: int, job: local.Job, model: Model, address: str | None, gpus: float
) -> Callable[[Iterable[Shard]], Iterator[dict[str, Any]]]:
    """What turns shards into results."""
    if engine == "ray":
        from clearhead.corpus.on_ray import on_ray

        return lambda left: on_ray(left, job, workers, address, gpus)
    if workers > 1:
        return lambda left: local.in_processes(left, job, workers)
    return lambda left: local.in_this_process(left, model, job)


COUNTED = ("documents", "failed", "tokens", "halved")


@dataclass
class State:
    """What is known of a run while it goes on: counts, not documents."""

    folder: Path
    max_errors: int | None
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("shards", *COUNTED), 0))
    kept: int = 0
    """Documents that were finished before."""
    seen: int = 0
    """Shards of the input."""
    _input: Any = field(default_factory=sha256)

    @property
    def input(self) -> str:
        """sha256 of the input, shard by shard."""
        return self._input.hexdigest()

    def add(self, result: dict[str, Any]) -> None:
        """Count a finished shard. Errors: InputError where too many documents failed."""
        self.counts["shards"] += 1
        for name in COUNTED:
            self.counts[name] += result[name]
        if self.max_errors is not None and self.counts["failed"] > self.max_errors:
            worst = next(iter(result["errors"]), None)
            last = f", such as {worst['place']}: {worst['reason']}" if worst else ""
            raise InputError(
                "corpus: stopped, too many documents failed", got=f"{self.counts['failed']}{last}",
                allowed=f"--max-errors {self.max_errors}", do="Finished shards are kept.",
            )  # fmt: skip

    def missing(self, found: Iterable[Shard]) -> Iterator[Shard]:
        """The shards that are not stored yet. Errors: InputError where a stored one is of other documents."""
        for shard in found:
            mark = fingerprint(shard.documents)
            self.seen += 1
            self._input.update(mark.encode())
            there = store.read_shard(store.shard_folder(self.folder, shard.number))
            if there is None:
                yield shard
            elif there["input"] != mark:
                first, last = shard.documents[0].place, shard.documents[-1].place
                raise InputError(
                    f"corpus: the input has changed since {str(self.folder)!r} was begun",
                    got=f"other texts at {first} to {last}",
                    do="Name another directory, or bring the input back.",
                )  # fmt: skip
            else:
                self.kept += there["documents"]
                self.add(there)

    def check_whole(self) -> None:
        """Errors: InputError for an input without a document, or shorter than what is stored."""
        if not self.seen:
            raise InputError("corpus: the input holds no document", allowed="one or more")
        stored = sum(1 for _ in (self.folder / store.SHARDS).iterdir())
        if stored != self.seen or self.counts["shards"] != self.seen:
            raise InputError(
                f"corpus: the input has changed since {str(self.folder)!r} was begun",
                got=f"{self.seen} shards in the input, {stored} stored", do="Name another directory.",
            )  # fmt: skip
