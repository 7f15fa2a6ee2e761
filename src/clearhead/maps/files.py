"""Map and Table as files: .safetensors, .parquet and .json come back equal; .csv is for other programs.

Every file that comes back carries a sha256 of all that it holds, which `read` checks.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import secrets
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

import numpy as np

from clearhead.errors import InputError

T = TypeVar("T")
Kind = Literal["map", "table"]
FORMAT = 1
SUFFIXES: dict[Kind, tuple[str, ...]] = {
    "map": (".safetensors", ".parquet", ".json", ".csv"),
    "table": (".parquet", ".json", ".csv"),
}


@dataclass(frozen=True)
class Record:
    """What a file holds. `about` is JSON: all but the arrays. `columns` are one row a number, for Parquet and CSV."""

    kind: Kind
    about: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    columns: Callable[[], Mapping[str, np.ndarray]]

    @property
    def sha256(self) -> str:
        """Of `about` and the arrays, whatever the file format."""
        digest = hashlib.sha256(json.dumps(self.about, sort_keys=True).encode())
        for name, array in sorted(self.arrays.items()):
            digest.update(f"\0{name}\0{array.dtype}\0{array.shape}\0".encode())
            digest.update(json.dumps(array.tolist()).encode() if array.dtype == object else array.tobytes())
        return digest.hexdigest()

    @property
    def header(self) -> str:
        """The metadata that travels with the numbers."""
        own = {"format": FORMAT, "kind": self.kind, "arrays": list(self.arrays), "sha256": self.sha256}
        return json.dumps({**own, **self.about}, allow_nan=False)


@contextmanager
def whole_file(path: str | Path, *, overwrite: bool = False) -> Generator[BinaryIO]:
    """A file that appears under its name whole or not at all: written aside in the same folder, then renamed.

    Errors: InputError where the file exists (unless `overwrite`), or its folder does not.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"No folder {str(path.parent)!r} to write {path.name!r} into", do="Make the folder first.")
    if path.is_dir() or (path.exists() and not overwrite):
        raise InputError(f"{str(path)!r} exists already", do="Choose another name, or pass overwrite=True.")
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with aside.open("xb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def write(path: str | Path, record: Record, *, overwrite: bool) -> Path:
    """Write the record in the format of the suffix. Errors: InputError as `whole_file`, and for another suffix."""
    path = Path(path)
    _check_suffix(path, record.kind, SUFFIXES[record.kind])
    with whole_file(path, overwrite=overwrite) as handle:
        _WRITERS[path.suffix](handle, record)
    return path


def read(path: str | Path, kind: Kind, build: Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[T, Record]]) -> T:
    """What `build(about, arrays)` makes of the file: the object, and the record that it would be saved as.

    Errors: InputError naming the file, where it is absent, foreign, damaged, or changed since it was written.
    """
    path = Path(path)
    _check_suffix(path, kind, tuple(suffix for suffix in SUFFIXES[kind] if suffix in _READERS))
    if not path.is_file():
        raise InputError(f"No file {str(path)!r}")
    try:
        header, arrays = _READERS[path.suffix](path)
        found, expected = (header["format"], header["kind"]), header["sha256"]
        if found != (FORMAT, kind):
            raise InputError("format and kind", got=found, allowed=str((FORMAT, kind)))
        built, record = build(header, arrays)
    except Exception as error:  # whatever a damaged file makes the libraries raise, this file cannot be read
        what = f"{type(error).__name__}: {error}"
        raise InputError(f"{str(path)!r} cannot be read as a {kind} of clearhead", got=what) from error
    if record.sha256 != expected:
        raise InputError(f"{str(path)!r} is damaged or was changed: what it holds does not have its sha256")
    return built


def _check_suffix(path: Path, kind: Kind, allowed: tuple[str, ...]) -> None:
    if path.suffix not in allowed:
        do = "A .csv file keeps no metadata to come back from." if path.suffix == ".csv" else ""
        raise InputError(
            f"{str(path)!r}: suffix for a {kind}", got=repr(path.suffix), allowed=", ".join(allowed), do=do
        )


def _write_safetensors(handle: BinaryIO, record: Record) -> None:
    from safetensors.numpy import save

    handle.write(save(dict(record.arrays), metadata={"clearhead": record.header}))


def _read_safetensors(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return json.loads(file.metadata()["clearhead"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dict


def _write_parquet(handle: BinaryIO, record: Record) -> None:
    arrow: Any = importlib.import_module("pyarrow")  # without type stubs
    parquet: Any = importlib.import_module("pyarrow.parquet")
    table = arrow.table({name: arrow.array(values) for name, values in record.columns().items()})
    parquet.write_table(table.replace_schema_metadata({"clearhead": record.header}), handle)


def _read_parquet(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    parquet: Any = importlib.import_module("pyarrow.parquet")
    header = json.loads(parquet.read_schema(path).metadata[b"clearhead"])
    table = parquet.read_table(path, columns=header["arrays"], partitioning=None)
    columns = {name: table.column(name) for name in header["arrays"]}
    return header, {name: c.to_pylist() if c.null_count else c.to_numpy() for name, c in columns.items()}


def _write_json(handle: BinaryIO, record: Record) -> None:
    arrays = {name: array.tolist() for name, array in record.arrays.items()}
    text = json.dumps({"clearhead": json.loads(record.header), "arrays": arrays}, ensure_ascii=False, allow_nan=False)
    handle.write(text.encode())


def _read_json(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    found = json.loads(path.read_text(encoding="utf-8"))
    return found["clearhead"], found["arrays"]


def _write_csv(handle: BinaryIO, record: Record) -> None:
    import pandas as pd

    meta = record.about["meta"]
    origin = {"unit": record.about.get("unit"), "method": meta.get("method"), "model": meta.get("model")}
    columns = dict(record.columns())
    columns |= {name: value for name, value in origin.items() if value is not None and name not in columns}
    pd.DataFrame(columns).to_csv(handle, index=False, lineterminator="\n")


_WRITERS: dict[str, Callable[[BinaryIO, Record], None]] = {
    ".safetensors": _write_safetensors,
    ".parquet": _write_parquet,
    ".json": _write_json,
    ".csv": _write_csv,
}
_READERS: dict[str, Callable[[Path], tuple[dict[str, Any], dict[str, Any]]]] = {
    ".safetensors": _read_safetensors,
    ".parquet": _read_parquet,
    ".json": _read_json,
}
