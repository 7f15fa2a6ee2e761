"""Pieces, characters and words: what each token of a text stands for.

A *word* is a maximal run of characters that are not white space in the original text (`str.split`). A piece belongs
to the words whose characters it touches; the tokenizer's own word numbers are not used (they follow its pre-tokenizer,
which may call a whole text one word, or one Chinese character a word).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clearhead.errors import InputError

TEXT, TEMPLATE, TYPED = "text", "template", "typed"
Span = tuple[int, int]

_SPACE_MARKS = frozenset("▁Ġ")
"""How SentencePiece and byte-level BPE write a space in a piece."""
_DELETABLE = ("Mn", "Cc", "Cf", "Cn", "Co")
"""Unicode categories that normalisers delete: accents and variation selectors, controls, joiners, unassigned."""
_SPELLED = {" ": "␣", "\n": "⏎", "\t": "⇥"}


@dataclass(frozen=True)
class Word:
    """A maximal run of non-space characters, `text[span]` of its segment, and the pieces that touch it.

    `pieces` is empty where the tokenizer deleted every character of the word. `origin` is "typed" where all its pieces
    are special tokens that the user wrote, else "text".
    """

    text: str
    span: Span
    segment: int
    pieces: tuple[int, ...]
    origin: str


@dataclass(frozen=True)
class Tokens:
    """The tokens of one text (or pair of texts), each with the characters that it stands for.

    Also the labels of a `Map` axis; after `Map.by_word()` each entry is a word and `ids` is None.
    Errors: InputError where the fields differ in length or a span lies outside its text.
    """

    text: str
    pair: str | None
    ids: tuple[int, ...] | None
    pieces: tuple[str, ...]
    """The tokenizer's own piece strings (or the words)."""
    spans: tuple[Span | None, ...]
    """Characters [start, stop) in `text` or `pair`; None for a token that the tokenizer's template added."""
    segments: tuple[int, ...]
    """0 for a token of `text`, 1 for a token of `pair`."""
    origin: tuple[str, ...]
    """"text", "template" (added by the tokenizer) or "typed" (a special token that the user wrote in the text)."""

    def __post_init__(self) -> None:
        fields = {"pieces": self.pieces, "spans": self.spans, "segments": self.segments, "origin": self.origin}
        if self.ids is not None:
            fields["ids"] = self.ids
        sizes = {name: len(values) for name, values in fields.items()}
        if len(set(sizes.values())) > 1:
            raise InputError("Tokens: every field holds one entry a token", got=sizes)
        texts = [self.text] if self.pair is None else [self.text, self.pair]
        for i, (span, segment) in enumerate(zip(self.spans, self.segments, strict=True)):
            if not 0 <= segment < len(texts):
                raise InputError(f"Tokens: segment of token {i}", got=segment, allowed="0, or 1 where there is a pair")
            if span is not None and not 0 <= span[0] <= span[1] <= len(texts[segment]):
                allowed = f"0 <= start <= stop <= {len(texts[segment])}"
                raise InputError(f"Tokens: span of token {i}", got=span, allowed=allowed)

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def labels(self) -> tuple[str, ...]:
        """What a reader sees for each token, never empty and never invisible.

        The characters of the text that it stands for, without white space around them (so `[UNK]` shows its text);
        white space alone as ␣ ⏎ ⇥; the piece itself where the characters are not its own: template tokens, and pieces
        that share a character, such as the bytes of an emoji.
        """
        texts = (self.text, self.pair or "")
        touching = [np.zeros(len(text), dtype=int) for text in texts]
        for span, segment in zip(self.spans, self.segments, strict=True):
            if span is not None:
                touching[segment][span[0] : span[1]] += 1
        labels: list[str] = []
        for piece, span, segment in zip(self.pieces, self.spans, self.segments, strict=True):
            start, stop = span or (0, 0)
            under = texts[segment][start:stop]
            shared = any(n > 1 and not c.isspace() for n, c in zip(touching[segment][start:stop], under, strict=True))
            labels.append(_visible(piece if shared or not under else under))
        return tuple(labels)

    def take(self, positions: Sequence[int]) -> Tokens:
        """The tokens at these positions, of the same text."""
        return Tokens(
            self.text,
            self.pair,
            None if self.ids is None else tuple(self.ids[i] for i in positions),
            tuple(self.pieces[i] for i in positions),
            tuple(self.spans[i] for i in positions),
            tuple(self.segments[i] for i in positions),
            tuple(self.origin[i] for i in positions),
        )

    def words(self) -> tuple[Word, ...]:
        """The words of the text, then those of the pair. Template tokens and white space are in none of them."""
        found = [
            (segment, match)
            for segment, text in enumerate([self.text] if self.pair is None else [self.text, self.pair])
            for match in re.finditer(r"\S+", text)
        ]
        word_at = {0: np.full(len(self.text), -1), 1: np.full(len(self.pair or ""), -1)}
        for number, (segment, match) in enumerate(found):
            word_at[segment][match.start() : match.end()] = number
        pieces: list[list[int]] = [[] for _ in found]
        for i, (span, segment) in enumerate(zip(self.spans, self.segments, strict=True)):
            if span is not None:
                touched = np.unique(word_at[segment][span[0] : span[1]])
                for number in touched[touched >= 0]:
                    pieces[number].append(i)
        return tuple(
            Word(
                match.group(),
                match.span(),
                segment,
                tuple(own),
                TYPED if own and all(self.origin[i] == TYPED for i in own) else TEXT,
            )
            for (segment, match), own in zip(found, pieces, strict=True)
        )

    def by_word(self) -> tuple[Tokens, Any]:
        """(entries, weights): the words as tokens, and the share of each piece that belongs to each of them.

        `weights` [entry, piece] is a sparse array (`scipy.sparse.csr_array`) whose columns sum to 1: nothing is lost. A
        piece that touches k words gives 1/k to each; a piece that touches none (template tokens, white space alone)
        stays as an entry of its own. A word without any piece has no entry. Entries stand in the order of their pieces.
        """
        from scipy.sparse import csr_array  # pyright: ignore[reportMissingTypeStubs]

        groups: list[tuple[tuple[int, ...], Word | None]] = [(w.pieces, w) for w in self.words() if w.pieces]
        shares = Counter(piece for pieces, _ in groups for piece in pieces)
        groups += [((piece,), None) for piece in range(len(self)) if piece not in shares]
        groups.sort(key=lambda group: group[0][0])  # stable: words that share a first piece stay in reading order
        rows = [row for row, (pieces, _) in enumerate(groups) for _ in pieces]
        columns = [piece for pieces, _ in groups for piece in pieces]
        values = [1.0 / max(shares[piece], 1) for piece in columns]
        entries = Tokens(
            self.text,
            self.pair,
            None,
            tuple(word.text if word else self.pieces[pieces[0]] for pieces, word in groups),
            tuple(word.span if word else self.spans[pieces[0]] for pieces, word in groups),
            tuple(word.segment if word else self.segments[pieces[0]] for pieces, word in groups),
            tuple(word.origin if word else self.origin[pieces[0]] for pieces, word in groups),
        )
        return entries, csr_array((values, (rows, columns)), shape=(len(groups), len(self)))


def _visible(label: str) -> str:
    """The label without white space around it; where nothing of it can be seen, its characters spelled."""
    if any(c.isprintable() and not c.isspace() for c in label):
        return label.strip()
    return "".join(_SPELLED.get(c, f"<U+{ord(c):04X}>") for c in label) or "∅"


def make_tokens(
    text: str,
    pair: str | None,
    ids: Sequence[int],
    pieces: Sequence[str],
    offsets: Sequence[Span],
    template: Sequence[bool],
    segments: Sequence[int],
    typed: Sequence[bool],
) -> Tokens:
    """Tokens from what a tokenizer gave: `offsets` in characters of `text` or `pair`, by `segments`.

    A piece that is only space marks keeps no character but white space (some tokenizers give the mark that they put
    before a text the place of its first character). Errors: InputError for a piece without a place, and for the first
    character of the text that no piece stands for; the characters that normalisers delete or join to the one before
    need none, and belong to the word around them.
    """
    spans: list[Span | None] = []
    for i, (piece, (start, stop), added, segment) in enumerate(zip(pieces, offsets, template, segments, strict=True)):
        under = ((pair or "") if segment else text)[start:stop]
        marks = piece.isspace() or (_SPACE_MARKS.issuperset(piece) and _SPACE_MARKS.isdisjoint(under))
        if start == stop and not marks and not added:
            raise InputError(f"The tokenizer gives piece {i}, {piece!r}, no character of the text", got=(start, stop))
        space = len(under) - len(under.lstrip())
        spans.append(None if added else (start, start + space if marks else stop))
    origin = tuple(TEMPLATE if a else TYPED if t else TEXT for a, t in zip(template, typed, strict=True))
    tokens = Tokens(text, pair, tuple(ids), tuple(pieces), tuple(spans), tuple(segments), origin)
    _check_rebuilds(tokens, "text", text, 0)
    if pair is not None:
        _check_rebuilds(tokens, "pair", pair, 1)
    return tokens


def _check_rebuilds(tokens: Tokens, name: str, text: str, segment: int) -> None:
    covered = np.zeros(len(text), dtype=bool)
    for span, own in zip(tokens.spans, tokens.segments, strict=True):
        if span is not None and own == segment:
            covered[span[0] : span[1]] = True
    for i in np.flatnonzero(~covered).tolist():
        if not _needs_no_piece(text, i, covered):
            raise InputError(
                f"{name}: the tokenizer has no piece for character {i}, {text[i]!r} (U+{ord(text[i]):04X})",
                got=f"pieces for {int(covered.sum())} of {len(text)} characters",
                allowed="a tokenizer whose pieces and offsets cover every character",
            )


def _needs_no_piece(text: str, i: int, covered: np.ndarray) -> bool:
    """True for white space and for what normalisers delete, join to the character before, or write as one quote."""
    char = text[i]
    if char.isspace() or char == "\ufffd" or unicodedata.category(char) in _DELETABLE:
        return True
    if char in "`'" and any(covered[k] and text[k] == char for k in (i - 1, i + 1) if 0 <= k < len(text)):
        return True  # `` and '' become "
    before = np.flatnonzero(covered[:i])
    return before.size > 0 and len(unicodedata.normalize("NFKC", text[before[-1] : i + 1])) == 1
