"""Every family: captured, proven, batched and differentiated, against plain loops and the untouched model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tiny
import torch

import clearhead as ch
from clearhead import errors
from clearhead.models.families import FAMILIES

FAMILY = pytest.mark.parametrize("family", list(FAMILIES))
WINDOWED = ("mistral", "gemma3_text")


def load(family: str, dtype: torch.dtype = torch.float64, **options: Any) -> ch.Model:
    return ch.load(tiny.tiny(family, dtype, **options))


def test_every_family_has_a_tiny_model() -> None:
    assert set(tiny.RECIPES) == set(FAMILIES)


@FAMILY
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_capture_agrees_with_the_model(family: str, dtype: torch.dtype, attention: str) -> None:
    """The states and attentions equal what transformers itself returns from its eager attention, to rounding."""
    model = load(family, dtype, attention="eager" if family == "mpnet" else attention)
    trace = model.trace(tiny.words(12))
    reference, _ = tiny.tiny(family, dtype, attention="eager")
    own = reference.base_model(**trace.inputs, output_attentions=True, output_hidden_states=True)
    assert len(trace.layers) == len(own.attentions) == model.layers
    for layer, weights in zip(trace.layers, own.attentions, strict=True):
        assert torch.equal(layer.probabilities, weights[0])  # the same kernels ran: not one bit differs
    for mine, theirs in zip(
        trace.hidden[:-1], own.hidden_states[:-1], strict=True
    ):  # their last is after the final norm
        assert torch.equal(mine, theirs[0])
    assert trace.proof.kind == "rebuilt and compared" and trace.proof.calls == model.layers
    assert trace.proof.worst < 1.5 * trace.proof.tolerance * (model.layers + 1) ** 0.5
    assert trace.precision == model.precision


@FAMILY
def test_attention_is_what_the_formula_says(family: str) -> None:
    """Head outputs by a loop over heads, queries and the keys that each may see, from q, k, v alone."""
    model = load(family)
    trace = model.trace(tiny.words(9))
    window = model.config.sliding_window if family in WINDOWED else None
    kinds = (
        getattr(model.config, "layer_types", None)
        or ["sliding_attention" if window else "full_attention"] * model.layers
    )
    for number, layer in enumerate(trace.layers):
        n = len(trace.tokens)
        causal = model.family.part == "decoder"
        reach = window if kinds[number] == "sliding_attention" and causal else None
        seen = [[j for j in range(n) if not (causal and j > i) and not (reach and i - j >= reach)] for i in range(n)]
        assert [(keys[0], keys[-1] + 1) for keys in seen] == list(
            zip(layer.visible.start, layer.visible.stop, strict=True)
        )
        if family == "mpnet":  # its position bias is not in q and k
            continue
        scale = 9**-0.5 if family == "gemma3_text" else layer.query.shape[-1] ** -0.5
        group = model.heads // model.kv_heads
        for h in range(model.heads):
            for i, keys in enumerate(seen):
                logits = [float(layer.query[h, i] @ layer.key[h // group, j]) * scale for j in keys]
                weights = np.exp(np.array(logits) - max(logits))
                weights /= weights.sum()
                output = sum(w * layer.value[h // group, j].numpy() for w, j in zip(weights, keys, strict=True))
                tolerance = 1e-6 if model.precision == "float32" else 1e-12  # softmax in float32 inside
                assert layer.head_output[h, i].numpy() == pytest.approx(output, rel=tolerance, abs=tolerance)


@FAMILY
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_batch_equals_alone(family: str, side: str, dtype: torch.dtype) -> None:
    """Lengths mixed in one padded batch, on either side; float64 too, where padding rows would become NaN."""
    hf, tokenizer = tiny.tiny(family, dtype)
    tokenizer.padding_side = side
    model = ch.load((hf, tokenizer))
    texts = [tiny.words(count, count) for count in (9, 12, 10, 1, 11)]
    eps = 2.0**-23 if model.precision == "float32" else 2.0**-52
    for text, trace in zip(texts, model.trace_many(texts, proof="full"), strict=True):
        alone = model.trace(text)
        assert trace.tokens == alone.tokens and (f"{side} padding" in trace.proof.situation) == (len(alone.tokens) > 8)
        for mine, single in zip(trace.layers, alone.layers, strict=True):
            assert mine.visible == single.visible
            # A padded batch sums in another order: rounding of each layer, measured at most 12 eps.
            torch.testing.assert_close(mine.probabilities, single.probabilities, rtol=40 * eps, atol=40 * eps)
        torch.testing.assert_close(trace.hidden, alone.hidden, rtol=100 * eps, atol=100 * eps)


@FAMILY
def test_outputs_capture_equals_full_capture(family: str) -> None:
    model = load(family, torch.float32)
    text = tiny.words(20)
    full, outputs = model.trace(text), model.trace(text, capture="outputs")
    assert all(layer.probabilities is None for layer in outputs.layers)
    for a, b in zip(full.layers, outputs.layers, strict=True):
        assert a.visible == b.visible
        torch.testing.assert_close(a.head_output, b.head_output, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(a.probabilities.square().sum(-1), b.norm_squared, rtol=1e-5, atol=1e-6)


@FAMILY
def test_output_projection_is_read_right(family: str) -> None:
    """W_O and b_O of every layer against the module itself, fed with unit vectors."""
    from clearhead.models.capture import children

    model = load(family)
    for layer in range(model.layers):
        module = children(model.layer_modules()[layer], model.family.output)[0]
        weight, bias = model.output_weight(layer), model.output_bias(layer)
        size = weight.shape[0] * weight.shape[1]
        with torch.no_grad():
            zero = module(torch.zeros(size, dtype=torch.float64))
            columns = module(torch.eye(size, dtype=torch.float64)) - zero
        torch.testing.assert_close(weight.flatten(0, 1), columns)
        torch.testing.assert_close(torch.zeros_like(zero) if bias is None else bias, zero)


@FAMILY
@pytest.mark.parametrize("embedding", ["output", "sum"])
def test_function_of_the_embedding(family: str, embedding: Any) -> None:
    """f(x) gives the traced states, and its forward derivative equals central differences."""
    model = load(family)
    trace = model.trace(tiny.words(5))
    x, f = model.from_embedding(trace, embedding)
    float32 = model.precision == "float32"
    torch.testing.assert_close(f(x), trace.hidden[1:], rtol=1e-6 if float32 else 1e-12, atol=1e-6 if float32 else 1e-12)
    direction = torch.tensor(np.random.default_rng(0).standard_normal(tuple(x.shape)))
    _, slope = torch.func.jvp(f, (x,), (direction,))
    _, backward = torch.func.vjp(f, x)
    weight = torch.tensor(np.random.default_rng(1).standard_normal(tuple(slope.shape)))
    transposed = float((backward(weight)[0].detach() * direction).sum())  # <J^T w, u> = <w, J u>
    assert transposed == pytest.approx(float((slope.detach() * weight).sum()), rel=1e-5 if float32 else 1e-10)
    if not float32:  # finite differences of a function that is float32 inside say nothing
        step = 1e-6
        differences = (f(x + step * direction) - f(x - step * direction)) / (2 * step)
        torch.testing.assert_close(slope, differences, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("parallel", [True, False])
def test_gpt_neox_with_either_kind_of_block(parallel: bool) -> None:
    """Both are proven, and they are not the same model."""
    trace = load("gpt_neox", use_parallel_residual=parallel).trace(tiny.words(9))
    assert trace.model.block(0).parallel == parallel
    assert trace.proof.compared is not None
    other = load("gpt_neox", use_parallel_residual=not parallel).trace(tiny.words(9))
    assert float((trace.hidden[-1] - other.hidden[-1]).abs().max()) > 0.1


@FAMILY
def test_block_is_read_right(family: str) -> None:
    """Run from the captured state, the block as data gives the model's next one; its values are those captured."""
    trace = load(family).trace(tiny.words(9))
    tolerance = 1e-6 if trace.precision == "float32" else 1e-13
    for number, layer in enumerate(trace.layers):
        ran = trace.replay(number)
        torch.testing.assert_close(ran.output, trace.hidden[number + 1], rtol=tolerance, atol=10 * tolerance)
        torch.testing.assert_close(ran.projected, layer.value, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "electra", "albert"])
def test_pairs(family: str) -> None:
    model = load(family)
    trace = model.trace("w1 w2 w3", "w3 w4")
    text = [s for s, origin in zip(trace.tokens.segments, trace.tokens.origin, strict=True) if origin == "text"]
    assert text == [0, 0, 0, 1, 1]
    assert "pair" in trace.proof.situation
    if model.family.segments:
        types = trace.inputs["token_type_ids"][0].tolist()
        assert types == [0, 0, 0, 0, 0, 1, 1, 1]


def test_each_situation_is_compared_once() -> None:
    model = load("mistral")
    kinds = [model.trace(tiny.words(count)).proof for count in (3, 4, 20, 20)]
    assert [proof.kind for proof in kinds] == ["rebuilt and compared", "rebuilt", "rebuilt and compared", "rebuilt"]
    assert "longer than its window" in kinds[2].situation and "longer" not in kinds[0].situation
    assert model.trace(tiny.words(3), proof="full").proof.kind == "rebuilt and compared"
    with torch.no_grad():
        model.hf.model.layers[0].mlp.up_proj.weight.mul_(1.5)  # another model now: what was compared no longer counts
    assert model.trace(tiny.words(3)).proof.kind == "rebuilt and compared"


def test_unfollowed_switches_are_refused_by_name() -> None:
    for family, change in [
        ("bert", {"is_decoder": True}),
        ("gpt2", {"reorder_and_upcast_attn": True}),
        ("gemma3_text", {"use_bidirectional_attention": True}),
    ]:
        with pytest.raises(errors.UnsupportedModel, match=next(iter(change))):
            load(family, **change)
