"""A finished (or unfinished) corpus directory, opened to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clearhead.corpus import store
from clearhead.errors import InputError, NotDefined
from clearhead.maps import Map
from clearhead.tokens import Tokens

if TYPE_CHECKING:
    import pandas as pd

KINDS = ("rows", "documents", "tokens")


@dataclass(frozen=True)
class Corpus:
    """The directory of a run. Made by `open_corpus` and `run_corpus`; reads what is asked for, nothing more."""

    folder: Path

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What the run is of: model, settings, input, versions; `complete`, and `counts` once it is."""
        return store.read_manifest(self.folder)

    @property
    def methods(self) -> list[str]:
        """As in the column `method`."""
        return list(self.manifest["source"]["settings"]["methods"])

    def files(self, kind: str = "rows") -> list[Path]:
        """The Parquet files of all finished shards: "rows", "documents" or "tokens"."""
        if kind not in KINDS:
            raise InputError("Corpus: no such files", got=repr(kind), allowed=", ".join(KINDS))
        found = [path / f"{kind}.parquet" for path, _ in store.all_shards(self.folder)]
        return [path for path in found if path.exists()]

    def to_pandas(self, kind: str = "rows") -> pd.DataFrame:
        """All rows (or documents, or tokens) in memory. Errors: InputError where the granularity keeps none."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        files = self.files(kind)
        if not files:
            raise InputError(
                f"{str(self.folder)!r} holds no {kind}", got=f"{len(self.files('documents'))} finished shards"
            )
        return pa.concat_tables(pq.read_table(path) for path in files).to_pandas()

    def _table(self, name: str) -> pd.DataFrame:
        import pandas as pd

        path = self.folder / f"{name}.parquet"
        if not path.is_file():
            raise NotDefined(f"{name} of the whole corpus come with its last shard", do="Run the same command again.")
        return pd.read_parquet(path)

    @property
    def errors(self) -> pd.DataFrame:
        """What failed: document, place, method (None: the document itself), kind, reason; also of an unfinished run."""
        import pandas as pd

        rows = [error for _, shard in store.all_shards(self.folder) for error in shard["errors"]]
        return pd.DataFrame(rows, columns=["document", "place", "method", "kind", "reason"])

    @property
    def statistics(self) -> pd.DataFrame:
        """Mean, deviation and quantiles over all tokens, by method, summary, layer and head. Errors: NotDefined."""
        return self._table("statistics")

    @property
    def covariance(self) -> pd.DataFrame:
        """Of the summaries, over documents, by method and layer. Errors: NotDefined."""
        return self._table("covariance")

    @property
    def lengths(self) -> pd.DataFrame:
        """Pearson r of raw and effective attention by the number of tokens, mean over documents. Errors: NotDefined."""
        return self._table("lengths")

    def maps(self, document: int) -> dict[str, Map]:
        """The Maps of a document by method, as they were computed; with "top", NotDefined.

        Errors: InputError for a document that is not there, or that failed.
        """
        if self.manifest["source"]["settings"]["granularity"] != "maps":
            raise NotDefined("Corpus.maps needs every number", do='Run with granularity "maps".')
        import pyarrow.parquet as pq

        path = self._shard_of(document)
        only = [("document", "=", document)]
        (about,) = pq.read_table(path / "documents.parquet", filters=only).to_pylist()
        if about["meta"] is None:
            raise InputError(
                f"Corpus.maps: document {document} has none", got=f"{about['errors']} errors", do="See .errors."
            )
        tokens = tokens_of(about, pq.read_table(path / "tokens.parquet", filters=only).to_pylist())
        rows = pq.read_table(path / "rows.parquet", filters=only)
        method = np.array(rows.column("method").to_pylist(), dtype=object)
        found: dict[str, Map] = {}
        for name, fields in json.loads(about["meta"]).items():
            part = rows.filter(method == name)
            found[name] = rebuilt(fields, part, tokens)
        return found

    def _shard_of(self, document: int) -> Path:
        for path, shard in store.all_shards(self.folder):
            if shard["first"] <= document < shard["first"] + shard["documents"]:
                return path
        raise InputError("Corpus: no such document in the finished shards", got=document)

    def __repr__(self) -> str:
        from clearhead.corpus.status import status

        return status(self.folder)


def tokens_of(about: Mapping[str, Any], rows: list[dict[str, Any]]) -> Tokens:
    """The Tokens of a document from its rows."""

    def column(name: str) -> tuple[Any, ...]:
        return tuple(row[name] for row in rows)

    spans = tuple(
        None if start is None else (start, stop) for start, stop in zip(column("start"), column("stop"), strict=True)
    )
    ids = None if None in column("id") else column("id")
    return Tokens(about["text"], about["pair"], ids, column("piece"), spans, column("segment"), column("origin"))


def rebuilt(fields: Mapping[str, Any], rows: Any, tokens: Tokens) -> Map:
    """A Map from its rows, which stand in the order of its values."""
    shape, dtype = fields["shape"], fields["dtype"]
    stderr = rows.column("stderr")
    return Map(
        rows.column("value").to_numpy().astype(dtype).reshape(shape),
        tuple(fields["dims"]),
        tokens={dim: tokens for dim in ("query", "key") if dim in fields["dims"]},
        unit=fields["unit"],
        meta=fields["meta"],
        stderr=None if stderr.null_count else stderr.to_numpy().astype(dtype).reshape(shape),
        coords={dim: tuple(labels) for dim, labels in fields["coords"].items()},
    )


def open_corpus(folder: str | Path) -> Corpus:
    """The directory of a corpus run, to read. Errors: InputError where it is none."""
    corpus = Corpus(Path(folder))
    _ = corpus.manifest
    return corpus
