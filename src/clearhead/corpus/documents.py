"""The documents of a corpus, read as a stream: lines, columns, files, standard input, or a data set of the hub.

A document that cannot be read (not UTF-8, not JSON, a missing value) is still a document: it has a number, a place and
a `problem`, so that the numbers of all others never move.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import importlib
import io
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from clearhead.errors import InputError, MissingExtra

COLUMNS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
"""Endings of files with columns; every other file holds a text a line."""
PACKED = (".gz", ".zst")
MARKS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
Value = tuple[str, Any]


@dataclass(frozen=True)
class Document:
    """One document: its number in the input, where it stands, and its text (with a second one), or why it has none."""

    number: int
    place: str
    text: str
    pair: str | None = None
    problem: str = ""


@dataclass(frozen=True)
class Source:
    """What is read: a file, a folder of .txt files, "-" or "hf:name[,config]:split:column"; columns where there are."""

    name: str
    column: str | None = None
    pair_column: str | None = None


def read(source: Source) -> Iterator[Document]:
    """The documents in order. What is wrong with the input as a whole shows before the first.

    Errors: InputError for an input that is not there, cannot be read, or lacks a column (naming those there are);
    MissingExtra where a data set of the hub is asked for without `datasets`.
    """
    found = rows_of(source)
    first = next(found, None)  # opens the file and checks its columns before anything is written

    def documents() -> Iterator[Document]:
        if first is None:
            return
        for number, (place, values) in enumerate(chain([first], found)):
            yield document(number, place, values)

    return documents()


def document(number: int, place: str, values: Any) -> Document:
    """A document from (text, pair or None); from an exception, one with its problem."""
    if isinstance(values, Exception):
        return Document(number, place, "", problem=str(values))
    text, pair = values
    for value in (text, pair):
        if value is not None and not isinstance(value, str):
            return Document(number, place, "", problem=f"not a text but {type(value).__name__}")
    if text is None:
        return Document(number, place, "", problem="no value in the column")
    for value in (text, pair or ""):
        bad = next((k for k, c in enumerate(value) if "\ud800" <= c <= "\udfff"), None)
        if bad is not None:
            code = ord(value[bad]) - 0xDC00
            what = f"byte {code:#04x}" if 0x80 <= code <= 0xFF else "half of a character"
            return Document(number, place, "", problem=f"not UTF-8: {what} at character {bad}")
    return Document(number, place, text, pair)


def rows_of(source: Source) -> Iterator[Value]:
    """(place, (text, pair) or an exception) of each document."""
    name = source.name
    if name.startswith("hf:"):
        return hub_rows(source)
    path = Path(name)
    if name != "-" and path.is_dir():
        no_columns(source)
        return folder_rows(path)
    if name != "-" and not path.is_file():
        raise InputError(f"corpus input {name!r}: no such file or folder", do='Standard input is "-".')
    suffix = "" if name == "-" else Path(path.stem if path.suffix in PACKED else path.name).suffix.lower()
    if suffix not in COLUMNS:
        no_columns(source)
        return line_rows(name)
    if source.column is None:
        raise InputError(f"corpus input {name}: which column holds the text?", do="Name it with --column.")
    if suffix == ".parquet":
        return parquet_rows(source)
    if suffix in (".jsonl", ".ndjson"):
        return json_rows(source)
    return csv_rows(source, "\t" if suffix == ".tsv" else ",")


def no_columns(source: Source) -> None:
    if source.column is not None or source.pair_column is not None:
        raise InputError(
            f"corpus input {source.name}: a column was named", got=repr(source.column or source.pair_column),
            allowed=f"columns only in {', '.join(COLUMNS)} and hf:",
        )  # fmt: skip


def opened(name: str) -> BinaryIO:
    """The bytes of a file (or standard input), unpacked, past a UTF-8 byte order mark.

    Errors: InputError where it cannot be read, or is UTF-16 or UTF-32.
    """
    raw: Any = None
    try:
        raw = unpacked(name)
        start = raw.peek(4)[:4]
        for mark, what in MARKS.items():
            if start.startswith(mark):
                raise InputError(
                    f"corpus input {name} is {what}", allowed="UTF-8", do="Convert it, such as with iconv."
                )
        if start.startswith(codecs.BOM_UTF8):
            raw.read(3)
    except (OSError, EOFError, InputError) as error:
        if raw is not None:
            raw.close()
        raise error if isinstance(error, InputError) else unreadable(name, error) from error
    return raw


def unpacked(name: str) -> Any:
    """The file to read bytes from, by its ending."""
    if name == "-":
        return sys.stdin.buffer
    if name.endswith(".gz"):
        return gzip.open(name, "rb")
    if name.endswith(".zst"):
        import pyarrow as pa

        return io.BufferedReader(pa.input_stream(name, compression="zstd"))
    return Path(name).open("rb")


def unreadable(name: str, error: BaseException) -> InputError:
    reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
    return InputError(f"corpus input {name} cannot be read", got=reason)


def lines_of(name: str) -> Iterator[bytes]:
    """The lines of a file, without their ends. Errors: InputError, also where a packed file breaks off."""
    with opened(name) as file:
        try:
            for line in file:
                yield line.rstrip(b"\n").removesuffix(b"\r")
        except (OSError, EOFError) as error:
            raise unreadable(name, error) from error


def text_of(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def line_rows(name: str) -> Iterator[Value]:
    shown = "standard input" if name == "-" else Path(name).name
    for number, line in enumerate(lines_of(name), 1):
        yield f"{shown}:{number}", (text_of(line), None)


def folder_rows(folder: Path) -> Iterator[Value]:
    """Each .txt file (packed or not) of a folder and those below it, in the order of their names."""
    found = sorted(p for p in folder.rglob("*") if p.name.removesuffix(".gz").removesuffix(".zst").endswith(".txt"))
    if not found:
        raise InputError(
            f"corpus input {str(folder)!r}: no .txt file in this folder", allowed=".txt, .txt.gz, .txt.zst"
        )
    for path in found:
        try:
            with opened(str(path)) as file:
                values: Any = (text_of(file.read()), None)
        except (InputError, OSError, EOFError) as error:
            values = error
        yield path.relative_to(folder).as_posix(), values


def picked(source: Source, row: Any) -> Any:
    return row.get(source.column), None if source.pair_column is None else row.get(source.pair_column)


def wanted(source: Source) -> list[str]:
    return [name for name in (source.column, source.pair_column) if name is not None]


def check_columns(source: Source, there: Iterable[str]) -> None:
    """Errors: InputError naming the columns that there are."""
    there = list(there)
    missing = [name for name in wanted(source) if name not in there]
    if missing:
        raise InputError(f"corpus input {source.name}: no column {missing[0]!r}", allowed=", ".join(map(repr, there)))


def csv_rows(source: Source, parted: str) -> Iterator[Value]:
    csv.field_size_limit(2**27)
    shown = Path(source.name).name
    with io.TextIOWrapper(opened(source.name), "utf-8", "surrogateescape", newline="") as file:
        quoting = csv.QUOTE_NONE if parted == "\t" else csv.QUOTE_MINIMAL
        table = csv.DictReader(file, delimiter=parted, quoting=quoting)
        try:
            check_columns(source, table.fieldnames or ())
            for row in table:
                pair_missing = source.pair_column is not None and row.get(source.pair_column) is None
                values: Any = ValueError("no value in the column of the pair") if pair_missing else picked(source, row)
                yield f"{shown}:{table.line_num}", values
        except (OSError, EOFError, csv.Error) as error:
            raise unreadable(source.name, error) from error


def json_rows(source: Source) -> Iterator[Value]:
    shown, checked = Path(source.name).name, False
    for number, line in enumerate(lines_of(source.name), 1):
        values: Any
        try:
            row = json.loads(text_of(line))
            if not isinstance(row, dict):
                raise ValueError(f"a JSON {type(row).__name__}, not an object")
            if not checked:
                check_columns(source, row)
                checked = True
            values = picked(source, row)
            if source.pair_column is not None and values[1] is None:
                values = ValueError("no value in the column of the pair")
        except InputError:
            raise
        except ValueError as error:
            values = ValueError(f"not a line of JSON: {error}")
        yield f"{shown}:{number}", values


def parquet_rows(source: Source) -> Iterator[Value]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    shown, number = Path(source.name).name, 0
    try:
        file: Any = pq.ParquetFile(source.name)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(source.name, error) from error
    with file:
        check_columns(source, file.schema_arrow.names)
        for name in wanted(source):
            kind = file.schema_arrow.field(name).type
            if pa.types.is_dictionary(kind):
                kind = kind.value_type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
                raise InputError(f"corpus input {source.name}: column {name!r}", got=str(kind), allowed="text")
        try:
            for batch in file.iter_batches(batch_size=256, columns=wanted(source)):
                columns = [plain(batch.column(name)) for name in wanted(source)]
                for row in zip(*columns, strict=True):
                    yield f"{shown} row {number}", (*row, None)[:2]
                    number += 1
        except (OSError, pa.ArrowException) as error:
            raise unreadable(source.name, error) from error


def plain(column: Any) -> list[str | None]:
    """The texts of an Arrow column; bytes that are not UTF-8 as surrogates."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    texts = column.cast(kind).cast(pa.large_binary() if kind != pa.string() else pa.binary())
    return [None if one is None else text_of(one) for one in texts.to_pylist()]


def hub_rows(source: Source) -> Iterator[Value]:
    """Rows of "hf:name[,config]:split:column" through `datasets`, as a stream."""
    parts = source.name.removeprefix("hf:").split(":")
    if len(parts) != 3 or not all(parts):
        raise InputError(f"corpus input {source.name!r}", allowed="hf:name[,config]:split:column")
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise MissingExtra(f"{source.name} needs the library datasets", do="pip install clearhead[hf]") from error
    dataset, _, config = parts[0].partition(",")
    column = Source(source.name, parts[2], source.pair_column)
    try:
        rows = datasets.load_dataset(dataset, config or None, split=parts[1], streaming=True)
    except Exception as error:  # whatever the hub's library raises: there is no data
        raise unreadable(source.name, error) from error
    for number, row in enumerate(rows):
        if number == 0:
            check_columns(column, row)
        yield f"{source.name} row {number}", picked(column, row)


def fingerprint(documents: Iterable[Document]) -> str:
    """sha256 of the texts and problems, in order."""
    digest = hashlib.sha256()
    for one in documents:
        digest.update(json.dumps([one.place, one.text, one.pair, one.problem]).encode())
    return digest.hexdigest()
