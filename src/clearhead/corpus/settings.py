"""What a run was asked to do: all that its numbers depend on but the model's weights and the input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, get_args

from clearhead import engine
from clearhead.corpus.documents import Document
from clearhead.errors import InputError
from clearhead.methods.registry import find

Granularity = Literal["maps", "top", "summary", "statistics"]
SHARD_CHARACTERS = 2**20
"""A shard is closed early where its texts reach so many characters."""


@dataclass(frozen=True)
class Asked:
    """A method with its options; `label` stands in the column `method`: "alti", "effective_attention:part=raw"."""

    label: str
    name: str
    options: Mapping[str, Any]

    def options_of(self, document: int, seed: int) -> dict[str, Any]:
        """Its options for one document: a method that draws numbers draws others for each (seed + number)."""
        if "seed" not in find(self.name).options:
            return dict(self.options)
        return {**self.options, "seed": int(self.options.get("seed", seed)) + document}


@dataclass(frozen=True)
class Settings:
    """What the rows are. `batch_tokens`: the most tokens, padding counted, of one forward pass. `threads` of each
    worker: sums over other numbers of threads round otherwise, so they belong to what a run is."""

    methods: tuple[Asked, ...]
    granularity: Granularity = "summary"
    top: int = 8
    heads: bool = True
    batch_tokens: int = 1024
    shard_documents: int = 128
    threads: int = 1
    seed: int = 0

    def as_json(self) -> dict[str, Any]:
        """For the manifest; `top` only where it matters."""
        return {
            "methods": {one.label: {"method": one.name, "options": dict(one.options)} for one in self.methods},
            "granularity": self.granularity,
            **({"top": self.top} if self.granularity == "top" else {}),
            "heads": self.heads,
            "batch_tokens": self.batch_tokens,
            "shard_documents": self.shard_documents,
            "threads": self.threads,
            "seed": self.seed,
        }


def settings(
    methods: str | Sequence[str],
    *,
    granularity: str = "summary",
    top: int = 8,
    heads: bool = True,
    batch_tokens: int = 1024,
    shard_documents: int = 128,
    threads: int = 1,
    seed: int = 0,
) -> Settings:
    """Settings from what a user gives. Errors: InputError for an unknown method or option (naming the nearest)."""
    if granularity not in get_args(Granularity):
        raise InputError("corpus: granularity", got=repr(granularity), allowed=", ".join(get_args(Granularity)))
    numbers = {"top": top, "batch_tokens": batch_tokens, "shard_documents": shard_documents, "threads": threads}
    for name, value in numbers.items():
        if value < 1:
            raise InputError(f"corpus: {name}", got=value, allowed="1 or more")
    specs = methods.split(",") if isinstance(methods, str) else list(methods)
    asked = tuple(asked_for(spec.strip()) for spec in specs)
    labels = [one.label for one in asked]
    if not asked or len(set(labels)) < len(labels):
        raise InputError("corpus: methods", got=", ".join(labels) or "none", allowed="one or more, each once")
    return Settings(asked, granularity, top, heads, batch_tokens, shard_documents, threads, seed)  # pyright: ignore[reportArgumentType]


def asked_for(spec: str) -> Asked:
    """ "name" or "name:option=value:option=value". Errors: InputError."""
    name, *options = spec.split(":")
    method = find(name)
    given = engine.parse_options(method, options)
    return Asked(":".join([name, *(f"{key}={value}" for key, value in sorted(given.items()))]), name, given)


@dataclass(frozen=True)
class Shard:
    """Documents that are worked on, stored and redone together. A pure function of the input and `shard_documents`."""

    number: int
    documents: tuple[Document, ...]


def shards(documents: Iterable[Document], most: int) -> Iterator[Shard]:
    """The documents in groups of `most`, or of SHARD_CHARACTERS characters where that comes first."""
    number, group, size = 0, list[Document](), 0
    for one in documents:
        group.append(one)
        size += len(one.text) + len(one.pair or "")
        if len(group) == most or size >= SHARD_CHARACTERS:
            yield Shard(number, tuple(group))
            number, group, size = number + 1, [], 0
    if group:
        yield Shard(number, tuple(group))


def first_of(documents: Iterable[Document], limit: int | None) -> Iterator[Document]:
    """The first `limit` documents, or all."""
    return iter(documents) if limit is None else islice(documents, limit)
