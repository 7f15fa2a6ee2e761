"""The texts of a study: GLUE's MRPC, lines of a file, or the sentences that come with clearhead."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from clearhead.errors import InputError, MissingExtra

MRPC_COLUMNS = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
HUB = "glue:mrpc"


@dataclass(frozen=True)
class Pairs:
    """Pairs of sentences, each with the place that it was read from."""

    name: str
    pairs: tuple[tuple[str, str], ...]
    places: tuple[str, ...]


def read_pairs(source: str) -> Pairs:
    """MRPC as GLUE's tsv file, or "glue:mrpc" (the validation split, through the `datasets` library).

    Errors: InputError naming the line and what was expected; MissingExtra without `datasets`.
    """
    if source == HUB:
        return hub_pairs()
    rows = read_lines(source)
    if not rows or tuple(rows[0].split("\t")) != MRPC_COLUMNS:
        got = repr(rows[0][:80]) if rows else "an empty file"
        raise InputError(f"{source} line 1: columns", got=got, allowed=f"{', '.join(MRPC_COLUMNS)} (parted by tabs)")
    pairs: list[tuple[str, str]] = []
    places: list[str] = []
    for number, row in enumerate(rows[1:], 2):
        cells = row.split("\t")
        if len(cells) != len(MRPC_COLUMNS):
            raise InputError(
                f"{source} line {number}: columns", got=len(cells), allowed=f"{len(MRPC_COLUMNS)}, by tabs"
            )
        if not cells[3].strip() or not cells[4].strip():
            raise InputError(f"{source} line {number}: an empty sentence", allowed="two sentences")
        pairs.append((cells[3], cells[4]))
        places.append(f"{source} line {number}")
    if not pairs:
        raise InputError(f"{source}: no pair of sentences", got="only the line of columns")
    return Pairs(Path(source).name, tuple(pairs), tuple(places))


def hub_pairs() -> Pairs:
    """The validation split of MRPC from the hub. Errors: InputError where it cannot be reached."""
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise MissingExtra(
            f"{HUB} needs the library datasets", do="pip install datasets, or give a tsv file."
        ) from error
    try:
        rows = datasets.load_dataset("nyu-mll/glue", "mrpc", split="validation")
    except Exception as error:  # whatever the hub's library raises: there is no data
        got = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise InputError(f"{HUB} cannot be loaded from the hub", got=got, do="Give GLUE's tsv file.") from error
    pairs = tuple((row["sentence1"], row["sentence2"]) for row in rows)
    return Pairs(HUB, pairs, tuple(f"{HUB} row {k}" for k in range(len(pairs))))


def read_texts(source: str) -> tuple[str, ...]:
    """The lines of a file that hold more than white space. Errors: InputError where there is none."""
    lines = tuple(line.strip() for line in read_lines(source) if line.strip())
    if not lines:
        raise InputError(f"{source}: no text", got="an empty file", allowed="one text a line")
    return lines


def read_lines(source: str) -> list[str]:
    """The lines of a UTF-8 file. Errors: InputError where it cannot be read."""
    try:
        return Path(source).read_bytes().decode("utf-8-sig").replace("\r\n", "\n").rstrip("\n").split("\n")
    except OSError as error:
        raise InputError(f"{source} cannot be read", got=error.strerror or type(error).__name__) from error
    except UnicodeDecodeError as error:
        got = f"byte {error.object[error.start]:#04x} at position {error.start}"
        raise InputError(f"{source} is not UTF-8", got=got) from error


def own_pairs() -> Pairs:
    """Neighbouring sentences of the story that comes with clearhead."""
    lines = story()
    pairs = tuple(zip(lines[::2], lines[1::2], strict=True))
    return Pairs("the sentences of clearhead", pairs, tuple(f"pair {k + 1}" for k in range(len(pairs))))


def own_texts() -> tuple[str, ...]:
    """Runs of 2 to 8 sentences of that story, from every start."""
    lines = story()
    return tuple(" ".join(lines[k : k + size]) for size in range(2, 9) for k in range(0, len(lines) - size, 3))


def story() -> Sequence[str]:
    text = files("clearhead.studies").joinpath("story.txt").read_text("utf-8")
    return text.strip().split("\n")
