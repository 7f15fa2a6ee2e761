"""The three real models: proof on real text, tokens of real tokenizers, and Figure 1a's shape. Run by `make models`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

import clearhead as ch
from clearhead import errors

pytestmark = pytest.mark.models
GEMMA = "gemma/gemma-3-270m-q4_k_m.gguf"


@pytest.fixture(scope="module")
def gemma(real_models: Path) -> ch.Model:
    return ch.load(real_models / GEMMA)  # its metadata is parsed in Python: the slow part of this file


@pytest.fixture(scope="module")
def mpnet(real_models: Path) -> ch.Model:
    return ch.load(real_models / "mpnet")


@pytest.fixture(scope="module")
def paragraphs(shared: Path) -> list[str]:
    lines = (shared / "data" / "wikitext2" / "wiki.test.raw").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if len(line) > 200]


@pytest.mark.parametrize(("name", "lengths"), [("minilm", (3, 60, 300)), ("mpnet", (3, 60, 300))])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_encoders_are_proven(
    real_models: Path, paragraphs: list[str], name: str, lengths: tuple[int, ...], dtype: str
) -> None:
    model = ch.load(real_models / name, dtype=dtype)
    for words in lengths:
        text = " ".join(" ".join(paragraphs).split()[:words])
        for capture in ("full", "outputs"):
            proof = model.trace(text, capture=capture, proof="full").proof
            assert proof.compared is not None and proof.calls == model.layers and proof.precision == dtype
            assert max(proof.rebuilt) < proof.tolerance / 2


def test_gemma_is_proven_within_and_beyond_its_window(gemma: ch.Model, paragraphs: list[str]) -> None:
    assert (gemma.layers, gemma.heads, gemma.kv_heads, gemma.head_width) == (18, 4, 1, 256)
    short = gemma.trace(paragraphs[0][:300])
    long = gemma.trace(" ".join(paragraphs)[:3500], capture="outputs")
    assert len(long.tokens) > 512 and "longer than its window" in long.proof.situation
    assert not long.layers[0].visible.everything and long.layers[0].visible != long.layers[5].visible
    for trace in (short, long):
        assert trace.proof.compared is not None
        assert max(trace.proof.compared) < 5e-5  # measured: 6e-6 at 729 tokens, activations to 1e5


def test_decompositions_of_real_blocks(mpnet: ch.Model, gemma: ch.Model, paragraphs: list[str]) -> None:
    """Every method proves its blocks, and DecompX its parts, or it raises; Gemma's norms reach 1e5."""
    for model in (mpnet, gemma):
        trace = model.trace(paragraphs[0][:200])
        for method in (ch.vector_norms, ch.residual_norms, ch.mixing_ratio, ch.globenc, ch.alti, ch.decompx):
            assert method(trace).values.shape[0] == model.layers
        without, with_residual = (ch.mixing_ratio(trace, kind=kind) for kind in ("Attn-N", "AttnRes-N"))
        assert (with_residual.values < without.values).mean() > 0.9  # the residual is the token's own


def test_next_token_of_gemma_in_parts(gemma: ch.Model) -> None:
    """Its language head on the loaded base: the parts of the most likely next token sum to its logit."""
    with torch.device("meta"):
        hf: Any = tf.Gemma3ForCausalLM(gemma.config)
    hf.model, hf.lm_head = gemma.hf, torch.nn.Linear(1, 1, bias=False)
    hf.lm_head.weight = gemma.hf.embed_tokens.weight
    trace = ch.load((hf.eval(), gemma.tokenizer)).trace("Berlin is the capital of Germany. Paris is the capital of")
    found = ch.decompx(trace, of="logits")
    assert gemma.tokenizer.decode(list(found.coords["target"])) == " France"
    assert float(found.values.sum()) == pytest.approx(found.meta["logits"][0], rel=1e-5)


def test_gemma_layer_0_has_the_rank_of_its_distinct_tokens(gemma: ch.Model, paragraphs: list[str]) -> None:
    """Values carry no position there: repeated tokens give equal rows, so n <= d_v does not make the rank n."""
    trace = gemma.trace(paragraphs[0][:330])
    distinct, count = len(set(trace.tokens.ids or ())), len(trace.tokens)
    assert distinct < count <= 256
    table = ch.attention_identifiability(trace)
    layer = np.asarray(table["layer"])
    assert set(np.asarray(table["rank"])[layer == 0]) == {distinct}
    assert set(np.asarray(table["verdict"])[layer == 0]) == {"not identifiable"}
    moved = np.abs(ch.effective_attention(trace, part="null").values[0]).max()
    assert moved > 0.1


def test_gemma_in_float64_has_the_precision_of_float32(real_models: Path) -> None:
    model = ch.load(real_models / GEMMA, dtype="float64")
    trace = model.trace("The cat sat on the mat.")
    assert model.dtype == "float64" and trace.precision == "float32"


def test_gemma_doubled_start_is_told(gemma: ch.Model, shared: Path) -> None:
    with np.load(shared / "cases" / "18_special_tokens.npz") as right:
        trace = gemma.trace("<bos>Hello")
        assert trace.tokens.ids == tuple(right["gemma_ids"])
        assert [{"text": 0, "template": 1, "typed": 2}[o] for o in trace.tokens.origin] == right[
            "gemma_special"
        ].tolist()
        assert [list(span or (-1, -1)) for span in trace.tokens.spans] == right["gemma_spans"].tolist()
    assert "stands there twice" in trace.warnings[0]


@pytest.mark.parametrize("name", ["minilm", "gemma"])
def test_words_of_hard_texts(name: str, demo_model: ch.Model, gemma: ch.Model, shared: Path) -> None:
    """Emoji, flags, Chinese, Devanagari, accents, URLs, right-to-left: words and their pieces, exactly."""
    model = demo_model if name == "minilm" else gemma
    rows: list[dict[str, Any]] = json.loads((shared / "cases" / "19_words.json").read_text(encoding="utf-8"))
    for row in rows:
        trace = model.trace(row["text"])
        assert list(trace.tokens.pieces) == row[name]["pieces"]
        assert [[word.text, list(word.pieces)] for word in trace.tokens.words()] == row[name]["words"]
        by_word = ch.effective_attention(trace, part="raw").by_word()
        np.testing.assert_allclose(by_word.values.sum(-1), 1.0, atol=1e-5)


def test_pearson_by_length_has_the_shape_of_figure_1a(real_models: Path, paragraphs: list[str]) -> None:
    """d_v = 64: raw and effective attention are equal up to 64 tokens, and part company beyond.

    In float64: at exactly 64 tokens the 64 x 64 values have singular values down to 1e-6 of the largest, below what
    float32 can tell from zero (there r = .995, and the certificate calls those heads uncertain).
    """
    mpnet = ch.load(real_models / "mpnet", dtype="float64")
    words = " ".join(paragraphs[:40]).split()
    found: dict[int, list[float]] = {48: [], 64: [], 96: [], 128: []}
    for length, values in found.items():
        for start in range(0, 300, 100):
            text = words[start:]
            trace = exactly(mpnet, text, length)
            raw, effective = (ch.effective_attention(trace, part=part).values for part in ("raw", "effective"))
            flat = raw.reshape(-1, length * length), effective.reshape(-1, length * length)
            values.append(float(np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(*flat, strict=True)])))
    mean = {length: float(np.mean(values)) for length, values in found.items()}
    print("Pearson r by length:", {length: round(r, 3) for length, r in mean.items()})
    assert mean[48] > 0.9995 and mean[64] > 0.9995
    assert mean[96] < 0.6 and mean[128] < mean[96]


def exactly(model: ch.Model, words: list[str], length: int) -> ch.Trace:
    """The trace of the first words that make exactly so many tokens (a word cut short where it must be)."""
    text = ""
    for word in words:
        longer = f"{text} {word}".strip()
        if len(model.tokenizer(longer).input_ids) > length:
            break
        text = longer
    while len(model.tokenizer(text).input_ids) < length:
        text += " a"
    return model.trace(text)


def test_long_text_of_mpnet_is_refused(mpnet: ch.Model) -> None:
    with pytest.raises(errors.InputError, match=r"got 602 tokens; allowed: at most 512"):
        mpnet.trace("cat dog " * 300)


def test_batch_of_real_texts_equals_alone(mpnet: ch.Model, paragraphs: list[str]) -> None:
    texts = [p[: 100 + 40 * k] for k, p in enumerate(paragraphs[:8])]
    for text, trace in zip(texts, mpnet.trace_many(texts), strict=True):
        torch.testing.assert_close(trace.hidden, mpnet.trace(text).hidden, rtol=1e-4, atol=1e-5)
        assert not trace.warnings
