"""The Parquet files of a shard: rows, documents, tokens, statistics. Long form, one number a row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from clearhead.corpus.documents import Document
from clearhead.corpus.settings import Settings
from clearhead.corpus.summaries import Summary
from clearhead.corpus.sums import Sums
from clearhead.maps import Map
from clearhead.trace import Trace

if TYPE_CHECKING:
    from clearhead.corpus.work import Done

NUMBERS = {"document": "int64", "layer": "int16", "head": "int16", "query": "int32", "key": "int32"}
VALUES = ("value", "stderr")
AT_ONCE = 2**20
"""Rows gathered before they are written: what a shard holds in memory at most, with one batch."""
OPTIONS: dict[str, Any] = {"compression": "zstd", "compression_level": 3}


@dataclass(frozen=True)
class Block:
    """Some rows: a column is an array, one number for all rows, or None where it is empty."""

    columns: Mapping[str, Any]
    rows: int


class Writer:
    """Writes the files of one shard. A context manager, since files are open in it."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path, self.settings = path, settings
        self._blocks: list[Block] = []
        self._tokens: list[dict[str, Any]] = []
        self._meta: dict[int, dict[str, Any]] = {}
        self._proof: dict[int, float] = {}
        self._rows: Any = None
        self._waiting = 0

    def __enter__(self) -> Writer:
        import pyarrow as pa
        import pyarrow.parquet as pq

        word = pa.dictionary(pa.int16(), pa.string())
        kinds = {name: getattr(pa, kind)() for name, kind in NUMBERS.items()}
        kinds = {"document": kinds.pop("document"), "method": word, **kinds, "summary": word}
        self._schema = pa.schema([*kinds.items(), *((name, pa.float64()) for name in VALUES)])
        self._rows = pq.ParquetWriter(
            self.path / "rows.parquet", self._schema, use_dictionary=list(kinds),  # pyright: ignore[reportArgumentType]

            column_encoding=dict.fromkeys(VALUES, "BYTE_STREAM_SPLIT"), **OPTIONS,
        )  # fmt: skip
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self._flush()
        self._rows.close()

    def map(self, document: Document, method: str, result: Map) -> None:
        """The numbers of a Map: all, or of each query the `top` keys of largest absolute weight, the largest first."""
        if self.settings.granularity not in ("maps", "top"):
            return
        values, stderr, dims = result.values, result.stderr, list(result.dims)
        if "head" in dims and not self.settings.heads:
            axis = dims.index("head")
            values, dims = values.mean(axis), [dim for dim in dims if dim != "head"]
            stderr = None
        about = {"dims": dims, "shape": values.shape, "dtype": values.dtype.name, "unit": result.unit}
        coords = {dim: list(result.coords[dim]) for dim in dims}
        self._meta.setdefault(document.number, {})[method] = {**about, "coords": coords, "meta": result.meta}
        kept: Any = slice(None)
        if self.settings.granularity == "top" and dims[-1] == "key":
            kept = largest(values, self.settings.top)
        index = dict(zip(dims, np.indices(values.shape, sparse=True), strict=True))
        labels = {
            dim: np.broadcast_to(labelled(coords[dim], at), values.shape).ravel()[kept] for dim, at in index.items()
        }
        columns = {dim: column for dim, column in labels.items() if dim in NUMBERS}
        columns["value"] = values.ravel()[kept]
        if stderr is not None:
            columns["stderr"] = stderr.ravel()[kept]
        rest = [dim for dim in dims if dim not in NUMBERS]
        if rest:
            named = [[f"{dim} {label}" for label in labels[dim]] for dim in rest]
            columns["summary"] = np.array([", ".join(row) for row in zip(*named, strict=True)], dtype=object)
        self._add(document, method, columns)

    def summaries(self, document: Document, method: str, found: Iterable[Summary]) -> None:
        """Each summary for each token; with granularity "statistics" its mean over the tokens that have it."""
        for one in found:
            values = one.values
            if one.heads and not self.settings.heads:
                values = values.mean(1, keepdims=True)
            tokens = one.tokens and self.settings.granularity != "statistics"
            if one.tokens and not tokens:
                there = np.isfinite(values)
                count = there.sum(-1, keepdims=True)
                total = np.where(there, values, 0.0).sum(-1, keepdims=True)
                values = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
            layer, head, token = (at.ravel() for at in np.indices(values.shape))
            kept = np.isfinite(values).ravel()
            columns: dict[str, Any] = {"value": values.ravel()[kept], "summary": one.name}
            if one.layers is not None:
                columns["layer"] = np.array(one.layers)[layer][kept]
            if one.heads and self.settings.heads:
                columns["head"] = head[kept]
            if tokens:
                columns["query"] = token[kept]
            self._add(document, method, columns)

    def tokens(self, document: Document, trace: Trace) -> None:
        """The tokens of a document, and how exactly its trace was rebuilt."""
        self._proof[document.number] = trace.proof.worst
        if self.settings.granularity == "statistics":
            return
        tokens, labels = trace.tokens, trace.tokens.labels
        for position, (piece, span) in enumerate(zip(tokens.pieces, tokens.spans, strict=True)):
            start, stop = span or (None, None)
            self._tokens.append({
                "document": document.number, "token": position, "label": labels[position], "piece": piece,
                "id": None if tokens.ids is None else tokens.ids[position], "start": start, "stop": stop,
                "segment": tokens.segments[position], "origin": tokens.origin[position],
            })  # fmt: skip

    def documents(self, documents: Sequence[Document], done: Done) -> None:
        """documents.parquet and tokens.parquet."""
        import pyarrow as pa

        failed: dict[int, int] = {}
        for error in done.errors:
            failed[error["document"]] = failed.get(error["document"], 0) + 1
        rows = [
            {
                "document": one.number, "place": one.place, "text": one.text, "pair": one.pair,
                "tokens": done.lengths.get(one.number), "proof": self._proof.get(one.number),
                "errors": failed.get(one.number, 0), "meta": meta_text(self._meta.get(one.number)),
            }
            for one in documents
        ]  # fmt: skip
        table(self.path / "documents.parquet", rows, {
            "document": pa.int64(), "place": pa.string(), "text": pa.string(), "pair": pa.string(),
            "tokens": pa.int32(), "proof": pa.float64(), "errors": pa.int16(), "meta": pa.string(),
        })  # fmt: skip
        if self.settings.granularity != "statistics":
            kinds = {name: pa.int32() for name in ("token", "id", "start", "stop", "segment")}
            kinds |= dict.fromkeys(("label", "piece", "origin"), pa.string())
            order = ("token", "label", "piece", "id", "start", "stop", "segment", "origin")
            rows = sorted(self._tokens, key=lambda row: (row["document"], row["token"]))
            table(self.path / "tokens.parquet", rows, {"document": pa.int64(), **{name: kinds[name] for name in order}})

    def sums(self, sums: Sums) -> None:
        """statistics.parquet, covariance.parquet and lengths.parquet of the shard."""
        write_sums(self.path, sums)

    def _add(self, document: Document, method: str, columns: Mapping[str, Any]) -> None:
        size = len(columns["value"])
        if size:
            self._blocks.append(Block({"document": document.number, "method": method, **columns}, size))
        self._waiting += size
        if self._waiting >= AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._blocks:
            arrays = [column(self._blocks, one.name, one.type) for one in self._schema]
            self._rows.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
            self._blocks, self._waiting = [], 0


def labelled(labels: Sequence[Any], index: np.ndarray) -> np.ndarray:
    return np.array(labels, dtype=object if any(isinstance(x, str) for x in labels) else int)[index]


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Positions in the flattened array of the `count` largest absolute values along the last axis; ties: the first."""
    order = np.argsort(-np.abs(values), axis=-1, kind="stable")[..., :count]
    size = values.shape[-1]
    return (np.arange(values.size // size)[:, None] * size + order.reshape(-1, order.shape[-1])).ravel()


def column(blocks: Sequence[Block], name: str, kind: Any) -> Any:
    """One Arrow column out of the blocks."""
    import pyarrow as pa

    parts = [block.columns.get(name) for block in blocks]
    sizes = [block.rows for block in blocks]
    if name in ("method", "summary"):
        return words(parts, sizes, kind)
    missing = np.repeat([part is None for part in parts], sizes)
    filled = [np.broadcast_to(0 if part is None else part, size) for part, size in zip(parts, sizes, strict=True)]
    values = np.concatenate(filled).astype(kind.to_pandas_dtype())
    return pa.array(values, type=kind, mask=missing)


def words(parts: Sequence[Any], sizes: Sequence[int], kind: Any) -> Any:
    """A column of words that repeat."""
    import pyarrow as pa

    codes: dict[str, int] = {}
    found: list[np.ndarray] = []
    for part, size in zip(parts, sizes, strict=True):
        if isinstance(part, np.ndarray):
            found.append(np.array([codes.setdefault(word, len(codes)) for word in part]))
        else:
            code = -1 if part is None else codes.setdefault(part, len(codes))
            found.append(np.full(size, code))
    index = np.concatenate(found).astype(np.int16)
    dictionary = pa.array(list(codes), type=pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(index, mask=index < 0), dictionary).cast(kind)


def table(path: Path, rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, Any]) -> None:
    """Write rows as Parquet, whole rows at once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [pa.array([row[name] for row in rows], type=kind) for name, kind in kinds.items()]
    pq.write_table(pa.Table.from_arrays(columns, names=list(kinds)), path, **OPTIONS)


def write_sums(path: Path, sums: Sums, told: Any = None) -> None:
    """The three files of sums; `told(row)` adds columns to the statistics."""
    import pyarrow as pa

    rows = [{**row, **(told(row) if told else {})} for row in sums.rows()]
    words = dict.fromkeys(("method", "summary"), pa.string())
    kinds = words | {"layer": pa.int16(), "head": pa.int16(), "documents": pa.int64(), "values": pa.int64()}
    extra = [name for name in (rows[0] if rows else ()) if name not in SUMS]
    kinds |= dict.fromkeys(extra, pa.float64()) | dict.fromkeys(("least", "largest"), pa.float64())
    kinds |= {"sum": pa.string(), "squares": pa.string(), "bins": pa.list_(pa.int32()), "counts": pa.list_(pa.int64())}
    table(path / "statistics.parquet", rows, kinds)
    pairs = {"method": pa.string(), "layer": pa.int16(), "a": pa.string(), "b": pa.string(), "documents": pa.int64()}
    pairs |= {"covariance": pa.float64(), **dict.fromkeys(("sum_a", "sum_b", "sum_ab"), pa.string())}
    table(path / "covariance.parquet", list(sums.pair_rows()), pairs)
    lengths = {"method": pa.string(), "tokens": pa.int32(), "documents": pa.int64()}
    table(path / "lengths.parquet", list(sums.length_rows()), lengths | {"mean": pa.float64(), "sum": pa.string()})


SUMS = (
    "method",
    "summary",
    "layer",
    "head",
    "documents",
    "values",
    "sum",
    "squares",
    "least",
    "largest",
    "bins",
    "counts",
)


def meta_text(meta: Mapping[str, Any] | None) -> str | None:
    """What a Map says of itself beside its numbers, as JSON."""
    return None if meta is None else json.dumps(meta)
