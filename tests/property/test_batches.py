"""Any mixture of lengths, any padding side: each Trace of a batch equals its text traced alone."""

from __future__ import annotations

from functools import cache

import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch


@cache
def model(family: str, side: str) -> ch.Model:
    hf, tokenizer = tiny.tiny(family, torch.float64)
    tokenizer.padding_side = side
    return ch.load((hf, tokenizer))


@given(
    st.sampled_from(["bert", "mpnet", "gpt2", "mistral"]),
    st.sampled_from(["left", "right"]),
    st.lists(st.text("w1w2 w3w4 w5", min_size=1, max_size=60).filter(str.strip), min_size=1, max_size=6),
)
def test_batch_equals_alone(family: str, side: str, texts: list[str]) -> None:
    subject = model(family, side)
    eps = 2.0**-23 if subject.precision == "float32" else 2.0**-52
    for text, trace in zip(texts, subject.trace_many(texts), strict=True):
        alone = subject.trace(text)
        assert trace.tokens == alone.tokens and not trace.warnings
        torch.testing.assert_close(trace.hidden, alone.hidden, rtol=100 * eps, atol=100 * eps)
        for mine, single in zip(trace.layers, alone.layers, strict=True):
            assert mine.visible == single.visible
            torch.testing.assert_close(mine.probabilities, single.probabilities, rtol=100 * eps, atol=100 * eps)
