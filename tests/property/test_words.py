"""Words of any text, through the kinds of tokenizers that there are, against a walk over the pieces' own bytes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from clearhead.tokens import Tokens, make_tokens

CORPUS = ["The quick brown fox can't jump over the lazy dog; hello world, naïve café, 你好 我爱北京 नमस्ते"] * 3
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TEXTS = st.text(
    st.one_of(
        st.sampled_from(" \t\n\u00a0\u3000abeéT.'–你好門💜🥰\u200d\ufe0f\u0301한ﬁ½▁Ġש"),
        st.characters(exclude_categories=("Cs",)),
    ),
    min_size=1,
    max_size=16,
)


@cache
def byte_level(trim: bool) -> Any:
    """As GPT-2 (a space belongs to the span of the piece after it) or RoBERTa (it does not)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=trim)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    return tokenizer


@cache
def sentence_piece(prepended: bool) -> Any:
    """BPE over ▁ with bytes for what it does not know, as Llama (▁ put before the text) or Gemma."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    steps = [normalizers.Prepend("▁")] if prepended else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    special = ["<unk>", *BYTES]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=["▁"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS[0].split(), trainer)
    return tokenizer


@cache
def word_piece() -> Any:
    """As an uncased BERT: lower case, accents stripped, one piece a Chinese character, [UNK]."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@cache
def unigram() -> Any:
    """As T5: a ▁ before the text, and unknown characters fused."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=120, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def tokens_by(tokenizer: Any, text: str) -> Tokens:
    found = tokenizer.encode(text, add_special_tokens=False)
    n = len(found.ids)
    return make_tokens(text, None, found.ids, found.tokens, found.offsets, [False] * n, [0] * n, [False] * n)


BYTE_OF = {  # how byte-level BPE writes a byte: printable Latin-1 as itself, the others from U+0100 on
    char: byte
    for others in [[b for b in range(256) if not (33 <= b <= 126 or 161 <= b <= 172 or b >= 174)]]
    for byte in range(256)
    for char in [chr(256 + others.index(byte)) if byte in others else chr(byte)]
}


def bytes_of(piece: str, kind: str) -> bytes:
    if kind == "byte level":
        return bytes(BYTE_OF[char] for char in piece)
    return bytes([BYTES.index(piece)]) if piece in BYTES else piece.replace("▁", " ").encode()


def words_by_bytes(text: str, pieces: tuple[str, ...], kind: str, prefix: str) -> list[tuple[str, tuple[int, ...]]]:
    """The oracle: no offsets, no spans; each byte of the text has a piece and a word."""
    owners = [i for i, piece in enumerate(pieces) for _ in bytes_of(piece, kind)]
    assert b"".join(bytes_of(piece, kind) for piece in pieces) == (prefix + text).encode()
    owners = owners[len(prefix.encode()) :]
    words: list[tuple[str, list[int]]] = []
    inside = False
    for char in text:
        held, owners = owners[: len(char.encode())], owners[len(char.encode()) :]
        if char.isspace():
            inside = False
            continue
        if not inside:
            words.append(("", []))
        inside = True
        words[-1] = (words[-1][0] + char, words[-1][1] + held)
    return [(word, tuple(dict.fromkeys(held))) for word, held in words]


@given(TEXTS)
@example("I ❤\ufe0f you 👨\u200d👩\u200d👧 so much")
@example("  two  spaces\tand\nlines ")
@example("𓀀🥰 我爱北京")
@pytest.mark.parametrize("trim", [False, True])
def test_words_of_byte_level_bpe(trim: bool, text: str) -> None:
    tokens = tokens_by(byte_level(trim), text)
    prefix = " " if trim and not text.startswith(" ") else ""
    if bytes_of("".join(tokens.pieces), "byte level") != (prefix + text).encode():
        prefix = ""  # some white space before the text counts as the space that is put before it
    right = words_by_bytes(text, tokens.pieces, "byte level", prefix)
    assert [(word.text, word.pieces) for word in tokens.words()] == right


@given(TEXTS)
@example("I ❤\ufe0f you 👨\u200d👩\u200d👧 so much")
@example("你好  world ")
@example("𓀀🥰 我爱北京")
@pytest.mark.parametrize("prepended", [False, True])
def test_words_of_sentence_piece_with_bytes(prepended: bool, text: str) -> None:
    assume("▁" not in text)  # which the oracle, reading pieces, cannot tell from a space; see the unit test
    tokens = tokens_by(sentence_piece(prepended), text)
    right = words_by_bytes(text, tokens.pieces, "sentence piece", " " if prepended else "")
    assert [(word.text, word.pieces) for word in tokens.words()] == right


WORDS = [
    *("The", "fox", "can't", "café", "cafe\u0301", "naïve", "你好门", "한국", "½", "…", "[UNK]", "שלום", "नमस्ते"),
    *("❤\ufe0f", "👨\u200d👩\u200d👧", "x\u200by"),
]


@given(st.lists(st.sampled_from(WORDS), min_size=1))
def test_words_of_word_piece_are_those_of_each_word_alone(words: list[str]) -> None:
    """WordPiece never reads over white space, so the pieces of a word are those that it has alone."""
    tokens = tokens_by(word_piece(), "  ".join(words))
    assert [word.text for word in tokens.words()] == words
    for word in tokens.words():
        alone = word_piece().encode(word.text, add_special_tokens=False).tokens
        assert [tokens.pieces[i] for i in word.pieces] == alone


@given(TEXTS)
@pytest.mark.parametrize("kind", ["gpt2", "roberta", "llama", "gemma", "t5"])
def test_nothing_of_a_text_is_lost(kind: str, text: str) -> None:
    """Words and the white space between them are the text; every piece is in the entries, exactly once in all."""
    tokenizer = {
        "gpt2": lambda: byte_level(False),
        "roberta": lambda: byte_level(True),
        "llama": lambda: sentence_piece(True),
        "gemma": lambda: sentence_piece(False),
        "t5": unigram,
    }[kind]()
    tokens = tokens_by(tokenizer, text)
    rebuilt, reached = "", 0
    for word in tokens.words():
        gap = text[reached : word.span[0]]
        assert not gap.strip()
        rebuilt, reached = rebuilt + gap + word.text, word.span[1]
    assert rebuilt + text[reached:] == text
    assert [word.text for word in tokens.words()] == text.split()
    assert all(word.pieces for word in tokens.words())  # these tokenizers delete nothing
    entries, weights = tokens.by_word()
    assert np.allclose(weights.sum(axis=0), 1, atol=1e-15, rtol=0)  # at most 16 shares of 1/k each
    assert (weights.toarray() > 0).any(axis=1).all()
    assert len(entries) == weights.shape[0]
    assert all(tokens.labels)
    assert not any(label.isspace() for label in tokens.labels)
