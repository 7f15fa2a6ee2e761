"""Hidden states and token vectors of many texts, written once to disk and read as memory maps.

One folder: `depth_L.npy` for every depth and `targets.npy`, float32 [token, width]; `source.json`, what they came from;
and `features.json`, [depths, texts done], so that a killed run goes on from there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
import torch
from torch import Tensor

from clearhead.errors import ClearheadError, InputError, NotDefined, TextTooLong
from clearhead.maps.kept import claim, save_json
from clearhead.progress import Progress
from clearhead.tokens import TEXT, Tokens
from clearhead.trace import Embedding, Trace

if TYPE_CHECKING:
    from clearhead.trace import Tracer

Text = str | tuple[str, str]
CHUNK = 32
"""Texts traced at a time: what a killed run has to do again."""
NEEDED = 2
"""Tokens that a text must have for a nearest neighbour to mean anything."""


def no_progress(done: float, total: float) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Features:
    """The states of many texts. Made by `write_features`."""

    folder: Path
    depths: int
    offsets: tuple[int, ...] = field(repr=False)
    """[example + 1]: the tokens of example e are offsets[e] .. offsets[e + 1]."""
    classes: dict[str, np.ndarray] = field(repr=False)
    """[token] booleans by class: special, punctuation, repeated in its example, first or later piece of its word, and
    parts of speech where they were given. A token may be in several."""
    meta: dict[str, Any] = field(repr=False)
    """Where they came from: model, versions, embedding, fingerprint of the texts, positions of those skipped."""

    @property
    def tokens(self) -> int:
        return self.offsets[-1]

    @property
    def examples(self) -> int:
        return len(self.offsets) - 1

    def states(self, depth: int) -> Tensor:
        """[token, width] at a depth, a memory map. Errors: InputError for a depth out of range."""
        if not 0 <= depth < self.depths:
            raise InputError("features: no such depth", got=depth, allowed=f"0 to {self.depths - 1}")
        return mapped(self.folder / f"depth_{depth}.npy")

    @property
    def targets(self) -> Tensor:
        """The token vectors [token, width] that predictions are compared with."""
        return mapped(self.folder / "targets.npy")

    def rows(self, examples: Sequence[int]) -> Tensor:
        """Positions of all tokens of these examples."""
        return torch.cat([torch.arange(self.offsets[e], self.offsets[e + 1]) for e in examples])


def mapped(path: Path) -> Tensor:
    """A float32 file as a tensor on its memory map (copy on write: the file is never changed)."""
    return torch.from_numpy(np.load(path, mmap_mode="c"))


def write_features(
    model: Tracer,
    texts: Sequence[Text],
    folder: str | Path,
    *,
    embedding: Embedding = "output",
    long: Literal["error", "skip"] = "error",
    parts_of_speech: Sequence[Sequence[str]] | None = None,
    progress: Progress = no_progress,
) -> Features:
    """Trace every text (or pair), proven, and write its states to `folder`; a finished folder is read, not made again.

    `embedding`: token vectors as the first block reads them ("output") or as the embedding normalisation does ("sum").
    `long="skip"` leaves out texts beyond the model's limit; `meta["skipped"]` has their positions. `parts_of_speech`: a
    tag for each white-space word of each text (of the pair after the first), for rates by class.

    Errors: InputError for an unusable text (named by its position), for no texts, tags that do not match the words, a
    folder that holds the features of something else, or a full disk (what is written stays and is gone on from);
    NotDefined where token vectors and states differ in width (embedding="sum" in ELECTRA, ALBERT).
    """
    folder = Path(folder)
    kept = usable(model, texts, long=long)
    chosen = [texts[index] for index, _ in kept]
    offsets = [0, *np.cumsum([len(tokens) for _, tokens in kept]).tolist()]
    skipped = sorted(set(range(len(texts))) - {index for index, _ in kept})
    source: dict[str, Any] = {**model.origin, "embedding": embedding, "texts": fingerprint(chosen), "skipped": skipped}
    classes = all_classes([tokens for _, tokens in kept])
    if parts_of_speech is not None:
        classes |= speech_classes(kept, parts_of_speech)
    claim(folder, source)
    state = folder / "features.json"
    depths, done = json.loads(state.read_text()) if state.is_file() else (0, 0)
    while done < len(chosen):
        traces = model.trace_many(chosen[done : done + CHUNK])
        states = [torch.cat([trace.hidden, targets_of(trace, embedding)[None]]) for trace in traces]
        depths = len(states[0]) - 1
        for index, values in enumerate(torch.cat(states, 1).float().cpu().numpy()):
            append(folder / column(index, depths), values, at=offsets[done], total=offsets[-1])
        done += len(traces)
        save_json(state, [depths, done])
        progress(done, len(chosen))
    return Features(folder, depths, tuple(offsets), classes, source)


def usable(
    model: Tracer, texts: Sequence[Text], *, long: Literal["error", "skip"] = "error", names: Sequence[str] = ()
) -> list[tuple[int, Tokens]]:
    """(position, tokens) of the texts that can be used: all, or with `long="skip"` those within the model's limit.

    Errors: InputError naming the first that cannot (by `names`, else by position): unreadable, or of a single token.
    """
    if long not in ("error", "skip"):
        raise InputError("probes: long", got=repr(long), allowed="'error', 'skip'")
    if isinstance(texts, str) or not texts:
        raise InputError("probes: texts", got="one string" if texts else "none", allowed="a list of texts or pairs")
    found: list[tuple[int, Tokens]] = []
    for index, text in enumerate(texts):
        try:
            tokens = model.tokens_of(*((text,) if isinstance(text, str) else text))
            if len(tokens) < NEEDED:
                raise InputError("a text of one token has no nearest neighbour to find", got=repr(text), allowed="two")
        except ClearheadError as error:
            if long == "skip" and isinstance(error, TextTooLong):
                continue
            error.args = (f"{names[index] if names else f'text {index}'}: {error.args[0]}",)
            raise
        found.append((index, tokens))
    if not found:
        raise InputError("probes: every text is longer than the model's limit", got=f"{len(texts)} texts")
    return found


def column(index: int, depths: int) -> str:
    """The file of a depth; after the last, that of the token vectors."""
    return f"depth_{index}.npy" if index < depths else "targets.npy"


def append(path: Path, values: np.ndarray, *, at: int, total: int) -> None:
    """Write rows [at, at + len(values)) of a .npy file of `total` rows; what stood behind them is dropped.

    Plain writes, not a memory map: there a full disk would kill the process instead of raising.
    Errors: InputError where they cannot be written.
    """
    try:
        with path.open("r+b" if at else "wb") as file:
            start = header(file, (total, values.shape[1])) + at * values.shape[1] * values.itemsize
            file.seek(start)
            file.truncate()
            file.write(values.tobytes())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        need = total * values.shape[1] * values.itemsize
        raise InputError(
            f"features: {str(path)!r} cannot be written", got=error.strerror or type(error).__name__,
            do=f"Its folder needs {need / 1e6:.0f} MB for each depth; what is written there will be gone on from.",
        ) from error  # fmt: skip


def header(file: BinaryIO, shape: tuple[int, int]) -> int:
    """Write the header of a float32 .npy file; returns its length."""
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.tell()


def targets_of(trace: Trace, embedding: Embedding) -> Tensor:
    """The token vectors of a trace. Errors: NotDefined where they differ in width from the states."""
    if embedding == "output":
        return trace.hidden[0]
    vectors = trace.model.from_embedding(trace, embedding)[0]
    if vectors.shape != trace.hidden[0].shape:
        raise NotDefined(
            "features: token vectors and hidden states differ in width",
            got=f"{vectors.shape[-1]} and {trace.hidden.shape[-1]}", do="Use embedding='output'.",
        )  # fmt: skip
    return vectors


def all_classes(texts: Sequence[Tokens]) -> dict[str, np.ndarray]:
    """[token] booleans by class, over all texts."""
    found = [token_classes(tokens) for tokens in texts]
    return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


def token_classes(tokens: Tokens) -> dict[str, np.ndarray]:
    """The classes of each token of one text."""
    ids = np.array(tokens.ids)
    special = np.array([origin != TEXT for origin in tokens.origin])
    readable = np.array([any(c.isalnum() for c in label) for label in tokens.labels])
    first = np.isin(np.arange(len(ids)), [word.pieces[0] for word in tokens.words() if word.pieces])
    _, which, counts = np.unique(ids, return_inverse=True, return_counts=True)
    return {
        "special": special,
        "punctuation": ~special & ~readable,
        "repeated piece": ~special & (counts[which] > 1),
        "first piece of a word": ~special & first,
        "later piece of a word": ~special & ~first,
    }


def speech_classes(texts: Sequence[tuple[int, Tokens]], tags: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """[token] booleans by part of speech. Errors: InputError where tags and words differ in number."""
    labels: list[str] = []
    for index, tokens in texts:
        words = tokens.words()
        given = tags[index] if index < len(tags) else ()
        if len(given) != len(words):
            raise InputError(f"text {index}: parts of speech", got=f"{len(given)} tags", allowed=f"{len(words)} words")
        of = {piece: tag for word, tag in zip(words, given, strict=True) for piece in word.pieces}
        labels += [of.get(piece, "") for piece in range(len(tokens))]
    return {tag: np.array(labels) == tag for tag in sorted(set(labels) - {""})}


def fingerprint(texts: Sequence[Text]) -> str:
    """sha256 of the texts, in order."""
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()
