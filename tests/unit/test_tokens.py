"""Tokens: labels, words, what each piece stands for, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from clearhead.errors import InputError
from clearhead.tokens import Tokens, make_tokens

ADDED = ("[CLS]", "[SEP]", "<bos>")


def made(text: str, pieces: Sequence[str], offsets: Sequence[tuple[int, int]], pair: str | None = None) -> Tokens:
    """Tokens of `text`; pieces in `ADDED` at (0, 0) are the template's; after the first [SEP] comes the pair."""
    template = [piece in ADDED and offset == (0, 0) for piece, offset in zip(pieces, offsets, strict=True)]
    ends = [i for i, piece in enumerate(pieces) if piece == "[SEP]" and template[i]]
    segments = [int(pair is not None and i > ends[0]) for i in range(len(pieces))]
    typed = [piece in ADDED and not added for piece, added in zip(pieces, template, strict=True)]
    return make_tokens(text, pair, range(len(pieces)), pieces, offsets, template, segments, typed)


# ------------------------------------------------------------------ words


@pytest.fixture(scope="module")
def word_cases(shared: Path) -> list[dict[str, object]]:
    return json.loads((shared / "cases" / "19_words.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("tokenizer", ["minilm", "gemma"])
def test_words_are_those_of_the_cases(word_cases: list[dict[str, object]], tokenizer: str) -> None:
    for case in word_cases:
        text, right = str(case["text"]), case[tokenizer]
        assert isinstance(right, dict)
        tokens = made(text, right["pieces"], [tuple(offset) for offset in right["offsets"]])
        words = tokens.words()
        assert [[word.text, list(word.pieces)] for word in words] == right["words"], text
        assert [word.text for word in words if not word.pieces] == right["empty_words"]
        held = [piece for word in words for piece in word.pieces]
        orphans = [i for i, origin in enumerate(tokens.origin) if origin != "template" and i not in held]
        assert orphans == right["orphan_pieces"]
        assert sorted({piece for piece in held if held.count(piece) > 1}) == right["shared_pieces"]


def test_special_tokens_of_the_cases(shared: Path) -> None:
    """The template's tokens are no words; those that the user typed are."""
    case = np.load(shared / "cases" / "18_special_tokens.npz")
    for name, text, pieces, words in (
        ("minilm", "[CLS] a [SEP] b", ["[CLS]", "[CLS]", "a", "[SEP]", "b", "[SEP]"], ["[CLS]", "a", "[SEP]", "b"]),
        ("gemma", "<bos>Hello", ["<bos>", "<bos>", "Hello"], ["<bos>Hello"]),
    ):
        offsets = [(max(a, 0), max(b, 0)) for a, b in case[f"{name}_spans"].tolist()]
        tokens = made(text, pieces, offsets)
        assert [("text", "template", "typed")[kind] for kind in case[f"{name}_special"]] == list(tokens.origin)
        assert [list(span or (-1, -1)) for span in tokens.spans] == case[f"{name}_spans"].tolist()
        assert [word.text for word in tokens.words()] == words
        assert tokens.by_word()[0].pieces == (pieces[0], *words, *(["[SEP]"] if name == "minilm" else []))
    assert [word.origin for word in made("[CLS] a", ["[CLS]", "[CLS]", "a"], [(0, 0), (0, 5), (6, 7)]).words()] == [
        "typed",
        "text",
    ]


def test_words_of_a_pair_keep_to_their_text() -> None:
    pieces = ["[CLS]", "a", "cat", "[SEP]", "a", "ca", "##t", "[SEP]"]
    offsets = [(0, 0), (0, 1), (2, 5), (0, 0), (0, 1), (2, 4), (4, 5), (0, 0)]
    tokens = made("a cat", pieces, offsets, pair="a cat")
    assert [(w.text, w.segment, w.pieces) for w in tokens.words()] == [
        ("a", 0, (1,)),
        ("cat", 0, (2,)),
        ("a", 1, (4,)),
        ("cat", 1, (5, 6)),
    ]
    entries, weights = tokens.by_word()
    assert entries.labels == ("[CLS]", "a", "cat", "[SEP]", "a", "cat", "[SEP]")
    assert entries.segments == (0, 0, 0, 0, 1, 1, 1)
    assert weights.toarray().argmax(axis=0).tolist() == [0, 1, 2, 3, 4, 5, 5, 6]


def test_bytes_of_one_emoji_belong_to_one_word() -> None:
    tokens = made(
        "a 🥰!", ["a", "Ġ", "ð", "Ł", "¥", "°", "!"], [(0, 1), (1, 2), (2, 3), (2, 3), (2, 3), (2, 3), (3, 4)]
    )
    assert [(word.text, word.pieces) for word in tokens.words()] == [("a", (0,)), ("🥰!", (2, 3, 4, 5, 6))]
    assert tokens.by_word()[1].toarray().tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [0, 1, 0, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 1, 1],
    ]
    assert tokens.labels == ("a", "␣", "ð", "Ł", "¥", "°", "!")


def test_a_piece_of_two_words_is_divided_between_them() -> None:
    tokens = made("by the way", ["by▁the", "▁w", "ay"], [(0, 6), (6, 8), (8, 10)])
    assert [word.pieces for word in tokens.words()] == [(0,), (0,), (1, 2)]
    entries, weights = tokens.by_word()
    assert entries.pieces == ("by", "the", "way")
    assert weights.toarray().tolist() == [[0.5, 0, 0], [0.5, 0, 0], [0, 1, 1]]


def test_by_word_of_words_changes_nothing() -> None:
    words, _ = made("by the way", ["[CLS]", "by▁the", "▁w", "ay"], [(0, 0), (0, 6), (6, 8), (8, 10)]).by_word()
    again, weights = words.by_word()
    assert again == words
    assert (weights.toarray() == np.eye(4)).all()


def test_a_word_that_the_normaliser_deleted_has_no_piece_and_no_entry() -> None:
    tokens = made("a \u200b b", ["a", "b"], [(0, 1), (4, 5)])
    assert [(word.text, word.pieces) for word in tokens.words()] == [("a", (0,)), ("\u200b", ()), ("b", (1,))]
    assert tokens.by_word()[0].pieces == ("a", "b")


# ------------------------------------------------------------------ labels


def test_labels_are_what_a_reader_sees() -> None:
    pieces = ["[CLS]", "[UNK]", "▁cats", "▁▁", "\t", "<0x0A>", "##ed", "[SEP]"]
    tokens = made("門 cats  \t\ned", pieces, [(0, 0), (0, 1), (1, 6), (6, 8), (8, 9), (9, 10), (10, 12), (0, 0)])
    assert tokens.labels == ("[CLS]", "門", "cats", "␣␣", "⇥", "⏎", "ed", "[SEP]")


def test_a_label_is_never_invisible() -> None:
    tokens = made("a\u200d\x1cb", ["a", "\u200d", "Ĝ", "b", ""], [(0, 1), (1, 2), (2, 3), (3, 4), (4, 4)])
    assert tokens.labels == ("a", "<U+200D>", "<U+001C>", "b", "∅")


def test_pieces_that_share_a_character_keep_their_own_names() -> None:
    """½ is read as three pieces; of ❤️ two bytes of the heart and one piece that reaches into the next character."""
    assert made("½", ["1", "⁄", "2"], [(0, 1)] * 3).labels == ("1", "⁄", "2")
    assert made("❤\ufe0f", ["â", "Ŀ¤ï", "¸ı"], [(0, 1), (0, 2), (1, 2)]).labels == ("â", "Ŀ¤ï", "¸ı")


# ------------------------------------------------------------------ make_tokens


def test_the_mark_before_a_text_takes_no_character_from_it() -> None:
    tokens = made("你好", ["▁", "你", "好"], [(0, 1), (0, 1), (1, 2)])
    assert tokens.spans == ((0, 0), (0, 1), (1, 2))
    assert tokens.labels == ("▁", "你", "好")
    assert [word.pieces for word in tokens.words()] == [(1, 2)]


def test_a_mark_that_is_in_the_text_is_text() -> None:
    tokens = made("▁ Ġ", ["▁", "Ġ"], [(0, 1), (2, 3)])
    assert [(word.text, word.pieces) for word in tokens.words()] == [("▁", (0,)), ("Ġ", (1,))]


@pytest.mark.parametrize(
    ("text", "pieces", "offsets", "message"),
    [
        ("a 门 b", ["a", "b"], [(0, 1), (4, 5)], r"text: the tokenizer has no piece for character 2, '门' \(U\+95E8\)"),
        ("one two", ["one"], [(0, 3)], r"no piece for character 4, 't' .*got pieces for 3 of 7 characters"),
        ("it's", ["it", "s"], [(0, 2), (3, 4)], r'no piece for character 2, "\'"'),
        ("ab", ["ab", "x"], [(0, 2), (2, 2)], r"piece 1, 'x', no character of the text; got \(2, 2\)"),
        ("ab", ["ab"], [(0, 3)], r"span of token 0; got \(0, 3\); allowed: 0 <= start <= stop <= 2"),
        ("ab", ["ab"], [(2, 0)], r"span of token 0"),
    ],
)
def test_what_does_not_rebuild_the_text_is_refused(
    text: str, pieces: list[str], offsets: list[tuple[int, int]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        made(text, pieces, offsets)


def test_a_lost_character_of_the_pair_is_named_as_the_pairs() -> None:
    with pytest.raises(InputError, match=r"pair: the tokenizer has no piece for character 1, 'y'"):
        made("a", ["[CLS]", "a", "[SEP]", "x", "[SEP]"], [(0, 0), (0, 1), (0, 0), (0, 1), (0, 0)], pair="xy")


@pytest.mark.parametrize(
    ("text", "pieces", "offsets"),
    [
        ("cafe\u0301", ["cafe"], [(0, 4)]),  # accent stripped
        ("❤\ufe0f", ["[UNK]"], [(0, 1)]),  # variation selector
        ("a\u200db\x07\ufffd", ["ab"], [(0, 3)]),  # joiner, control, replacement character
        ("\u1112\u1161\u11ab", ["한"], [(0, 1)]),  # jamo composed to one syllable
        ("\uff76\uff9e", ["ガ"], [(0, 1)]),  # half-width katakana and its mark
        ("``q''", ['"', "q", '"'], [(1, 2), (2, 3), (3, 4)]),  # ALBERT's quotes
    ],
)
def test_characters_that_normalisers_take_need_no_piece(
    text: str, pieces: list[str], offsets: list[tuple[int, int]]
) -> None:
    (word,) = made(text, pieces, offsets).words()
    assert word.text == text
    assert word.pieces == tuple(range(len(pieces)))


def test_fields_of_different_length_are_refused() -> None:
    with pytest.raises(InputError, match=r"one entry a token; got {'pieces': 1, 'spans': 2"):
        Tokens("a", None, None, ("a",), ((0, 1), None), (0,), ("text",))
    with pytest.raises(InputError, match="segment of token 0; got 1"):
        Tokens("a", None, None, ("a",), ((0, 1),), (1,), ("text",))


def test_take_keeps_text_and_order() -> None:
    tokens = made("by the way", ["by", "the", "way"], [(0, 2), (3, 6), (7, 10)]).take([2, 0])
    assert (tokens.pieces, tokens.ids, tokens.spans, tokens.text) == (
        ("way", "by"),
        (2, 0),
        ((7, 10), (0, 2)),
        "by the way",
    )
