"""Texts: what is refused, what is told, and that one bad text costs no other."""

from __future__ import annotations

from typing import Any

import pytest
import tiny

import clearhead as ch
from clearhead import errors


@pytest.fixture(scope="module")
def model() -> ch.Model:
    return ch.load(tiny.tiny("bert"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing to read; got an empty text"),
        (" \n\t\u2003", "only white space"),
        (None, "must be a string; got NoneType"),
        (b"bytes", "must be a string; got bytes"),
        (["w1", "w2"], "must be a string; got list.*trace_many"),
        ("w1 \ud800 w2", r"lone surrogate\) at position 3; got '\\ud800'"),
    ],
)
def test_texts_that_are_refused(model: ch.Model, text: Any, message: str) -> None:
    with pytest.raises(errors.InputError, match=message) as caught:
        model.trace(text)
    assert "\n" not in str(caught.value)
    with pytest.raises(errors.InputError):
        model.trace("w1", text if text is not None else 3)


def test_a_long_text_names_both_lengths_and_a_cut_that_fits(model: ch.Model) -> None:
    text = tiny.words(63)
    with pytest.raises(
        errors.InputError, match=r"got 65 tokens; allowed: at most 64\. Cut it \(text\[:(\d+)\] fits\)"
    ) as caught:
        model.trace(text)
    cut = int(str(caught.value).split("text[:")[1].split("]")[0])
    assert len(model.trace(text[:cut]).tokens) == 64
    with pytest.raises(errors.InputError, match="got 67 tokens.*Shorten the texts"):
        model.trace(text, "w1")


def test_one_bad_text_costs_no_other(model: ch.Model) -> None:
    texts: list[Any] = ["w1 w2", "", "w3", tiny.words(90), ("w4", "w5"), 7]
    found = model.trace_many(texts, errors="return")
    assert [isinstance(item, errors.InputError) for item in found] == [False, True, False, True, False, True]
    assert str(found[3]).startswith("text 3: ")
    assert found[4].tokens.pair == "w5"  # type: ignore[union-attr]
    with pytest.raises(errors.InputError, match="^text 1: "):
        model.trace_many(texts)
    with pytest.raises(errors.InputError, match="got one string"):
        model.trace_many("w1 w2")
    assert model.trace_many([]) == []


@pytest.mark.parametrize("option", ["capture", "proof"])
def test_options_are_checked(model: ch.Model, option: str) -> None:
    with pytest.raises(errors.InputError, match=f"no such {option}; got 'everything'"):
        model.trace("w1", **{option: "everything"})


def test_a_special_token_twice_is_told() -> None:
    llama = ch.load(tiny.tiny("llama"))
    trace = llama.trace("<bos> w1")
    assert trace.tokens.origin == ("template", "typed", "text")
    assert trace.warnings == (
        "the text itself writes '<bos>', which the tokenizer has added already: it now stands there twice",
    )
    assert llama.trace("w1").warnings == ()


def test_a_typed_padding_token_is_read_as_the_model_reads_it() -> None:
    """RoBERTa gives the padding id as position to every padding token, those in the text too."""
    trace = ch.load(tiny.tiny("roberta")).trace("w1 <pad> w2")
    assert trace.inputs["position_ids"][0].tolist() == [2, 3, 1, 4, 5]
    assert trace.proof.compared is not None


def test_tokens_keep_their_characters(demo_model: ch.Model) -> None:
    text = "Unbelievable 🙂 naïve café!"
    tokens = demo_model.trace(text).tokens
    assert [word.text for word in tokens.words()] == text.split()
    assert tokens.origin[0] == tokens.origin[-1] == "template"
