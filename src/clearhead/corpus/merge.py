"""Several complete directories as one: the same model and settings, other texts."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from clearhead.corpus import store
from clearhead.corpus.dataset import Corpus
from clearhead.corpus.finish import finish
from clearhead.corpus.rows import OPTIONS
from clearhead.errors import InputError

NUMBERED = ("rows.parquet", "documents.parquet", "tokens.parquet")


def merge(folders: Sequence[str | Path], output: str | Path) -> Corpus:
    """A new directory with the documents of all, numbered on in the order given; statistics are added exactly.

    Errors: InputError for a directory that is not complete, that differs in model or settings (naming how), and for an
    output that exists.
    """
    parts, target = [Path(folder) for folder in folders], Path(output)
    sources = [checked(folder) for folder in parts]
    for folder, source in zip(parts[1:], sources[1:], strict=True):
        wanted = ("model", "settings")
        different = list(store.differences({k: sources[0][k] for k in wanted}, {k: source[k] for k in wanted}))
        if different:
            raise InputError(f"corpus merge: {str(folder)!r} is of something else", got="; ".join(different))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"corpus merge: output {str(target)!r} exists already", do="Name a new directory.")
    source = {**sources[0], "input": {"merged": [one["input"] for one in sources]}}
    store.prepare(target)
    with store.locked(target):
        store.claim(target, source)
        counts: dict[str, int] = dict.fromkeys(("shards", "documents", "failed", "tokens", "halved"), 0)
        digest = sha256()
        for folder in parts:
            first = counts["documents"]
            for path, shard in store.all_shards(folder):
                moved = renumbered(shard, counts["shards"], first)
                store.write_shard(
                    target, counts["shards"], lambda to, at=path, by=first, got=moved: copy(at, to, by, got)
                )
                digest.update(shard["input"].encode())
                for name in counts:
                    counts[name] += 1 if name == "shards" else shard[name]
        finish(target, source, counts, digest.hexdigest())
    return Corpus(target)


def checked(folder: Path) -> dict[str, Any]:
    """What a complete directory is of. Errors: InputError where it is not complete."""
    manifest = store.read_manifest(folder)
    shards = sum(1 for _ in store.all_shards(folder))
    if not manifest["complete"] or shards != manifest["counts"]["shards"]:
        raise InputError(f"corpus merge: {str(folder)!r} is not complete", do="Finish its run first.")
    return manifest["source"]


def renumbered(shard: dict[str, Any], number: int, by: int) -> dict[str, Any]:
    errors = [{**error, "document": error["document"] + by} for error in shard["errors"]]
    kept = {name: value for name, value in shard.items() if name != "files"}
    return {**kept, "shard": number, "first": shard["first"] + by, "errors": errors}


def copy(at: Path, to: Path, by: int, about: dict[str, Any]) -> dict[str, Any]:
    """Copy the files of a shard, `by` added to the numbers of its documents."""
    import pyarrow.parquet as pq

    pc: Any = importlib.import_module("pyarrow.compute")  # its functions are made when it loads
    for path in sorted(at.glob("*.parquet")):
        if by == 0 or path.name not in NUMBERED:
            shutil.copyfile(path, to / path.name)
            continue
        with pq.ParquetFile(path) as file, pq.ParquetWriter(to / path.name, file.schema_arrow, **OPTIONS) as writer:
            for batch in file.iter_batches():
                place = batch.schema.get_field_index("document")
                writer.write_batch(batch.set_column(place, "document", pc.add(batch.column(place), by)))
    return about
