"""The tables of the whole corpus, made from its shards: errors, statistics, counts."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clearhead.corpus import store
from clearhead.corpus.rows import OPTIONS, write_sums
from clearhead.corpus.sums import Sums, from_rows, told

ERRORS = {"document": "int64", "place": "string", "method": "string", "kind": "string", "reason": "string"}
TABLES = ("errors.parquet", "statistics.parquet", "covariance.parquet", "lengths.parquet")


def finish(folder: Path, source: Mapping[str, Any], counts: Mapping[str, int], digest: str) -> None:
    """Write errors.parquet, the statistics and the finished manifest, unless they are there already."""
    done = {"source": dict(source), "complete": True, "counts": dict(counts), "input_sha256": digest}
    there = store.read_manifest(folder)
    if there.get("counts") == done["counts"] and there.get("input_sha256") == digest and whole(folder):
        return
    aside = folder / store.ASIDE / f"tables.{secrets.token_hex(4)}"
    with store.explained(folder):
        aside.mkdir()
        write_errors(aside / "errors.parquet", (shard for _, shard in store.all_shards(folder)))
        write_sums(aside, folded(path for path, _ in store.all_shards(folder)), told)
        for name in TABLES:
            store.sync(aside / name)
            (aside / name).replace(folder / name)
        aside.rmdir()
        store.sync(folder)
    store.write_manifest(folder, done)


def whole(folder: Path) -> bool:
    """Whether every table of the whole corpus can be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return all(pq.read_metadata(folder / name) is not None for name in TABLES)
    except (OSError, pa.ArrowException):
        return False


def write_errors(path: Path, shards: Iterable[Mapping[str, Any]]) -> None:
    """errors.parquet: one row an error, in the order of the documents; shard by shard, so that memory stays flat."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, getattr(pa, kind)()) for name, kind in ERRORS.items()])
    with pq.ParquetWriter(path, schema, **OPTIONS) as writer:
        for shard in shards:
            if shard["errors"]:
                writer.write_table(pa.Table.from_pylist(shard["errors"], schema=schema))


def folded(shards: Iterable[Path]) -> Sums:
    """The sums of all shards."""
    total = Sums()
    for path in shards:
        total.merge(read_sums(path))
    return total


def read_sums(path: Path) -> Sums:
    """The sums of a shard, or of a whole corpus."""
    import pyarrow.parquet as pq

    return from_rows(*(pq.read_table(path / name).to_pylist() for name in TABLES[1:]))
