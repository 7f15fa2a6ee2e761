"""Methods by gradients against central differences of the model itself, their laws, and what they refuse."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

import clearhead as ch
from clearhead import errors
from clearhead.target import Named, read_target, spelled
from tests.tiny import RECIPES, tiny, word_tokenizer, words

EVERY = pytest.mark.parametrize("family", RECIPES)
DOUBLE = pytest.mark.parametrize("family", ["bert", "albert", "mpnet", "gpt2"])
"""Families that are float64 throughout, so that differences mean something."""
CAUSAL = ("gpt2", "gptj", "gpt_neox", "llama", "mistral", "qwen2", "gemma3_text")
METHODS = pytest.mark.parametrize(
    "method",
    [ch.gradient_norm, ch.input_x_gradient, ch.integrated_gradients, ch.attention_attribution, ch.relevance],
    ids=lambda one: one.__name__,
)
STEP = 1e-5
STEPS = {"bert": 10, "mpnet": 10, "gpt2": 32}
"""Points with which the sum is complete."""
OTHER = words(4, 3)


def traced(family: str, tokens: int = 4, dtype: torch.dtype = torch.float64) -> ch.Trace:
    return ch.load(tiny(family, dtype, attention="eager")).trace(words(tokens))


def target_of(family: str) -> Any:
    return "next:w7" if family in CAUSAL else ch.SimilarTo(OTHER)


def number(trace: ch.Trace, family: str, *, logit: bool = False) -> float:
    """The target, from the plain model and its inputs."""
    model: Any = trace.model
    with torch.no_grad():
        if family in CAUSAL:
            logits = model.hf(**model.tokenizer(trace.tokens.text, return_tensors="pt")).logits[0, -1]
            index = model.tokenizer.convert_tokens_to_ids("w7")
            return float(logits[index] if logit else logits.softmax(-1)[index])
        states = model.hf(**model.tokenizer(trace.tokens.text, return_tensors="pt")).last_hidden_state[0].mean(0)
    return float(states @ OTHERS[family] / states.norm() / OTHERS[family].norm())


OTHERS: dict[str, torch.Tensor] = {}


@pytest.fixture(autouse=True)
def others(request: pytest.FixtureRequest) -> None:
    """The pooled states of the text that targets are similar to, before anything is changed."""
    family = request.node.callspec.params.get("family") if hasattr(request.node, "callspec") else None
    if family in ("bert", "albert", "mpnet"):
        model = ch.load(tiny(family, torch.float64, attention="eager"))
        with torch.no_grad():
            states = model.hf(**model.tokenizer(OTHER, return_tensors="pt")).last_hidden_state  # type: ignore[operator]
        OTHERS[family] = states[0].mean(0)


def slopes(x: torch.Tensor, f: Callable[[torch.Tensor], float]) -> np.ndarray:
    """Central differences of f at x, entry by entry."""
    found = np.zeros(x.shape)
    for at in np.ndindex(*x.shape):
        more, less = x.clone(), x.clone()
        more[at] += STEP
        less[at] -= STEP
        found[at] = (f(more) - f(less)) / (2 * STEP)
    return found


def with_vectors(trace: ch.Trace, f: Callable[[], float]) -> Callable[[torch.Tensor], float]:
    """f while the first block reads other token vectors (by a hook)."""
    model: Any = trace.model

    def run(x: torch.Tensor) -> float:
        seen: list[bool] = []

        def put(module: Any, args: Any) -> Any:
            if seen:
                return None
            seen.append(True)
            return (x[None], *args[1:])

        handle = model.layer_modules()[0].register_forward_pre_hook(put)
        try:
            return f()
        finally:
            handle.remove()

    return run


def with_attention(
    monkeypatch: pytest.MonkeyPatch, layer: int, f: Callable[[], float]
) -> Callable[[torch.Tensor], float]:
    """f while the softmax of one layer gives other weights."""

    def run(weights: torch.Tensor) -> float:
        calls: list[int] = []
        own = torch.nn.functional.softmax

        def softmax(*args: Any, **kwargs: Any) -> torch.Tensor:
            calls.append(1)
            return weights[None] if len(calls) == layer + 1 else own(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(torch.nn.functional, "softmax", softmax)
            found = f()
        assert len(calls) > layer
        return found

    return run


# ------------------------------------------------------------------------------------------------ against definitions


@DOUBLE
def test_gradients_by_token_vectors(family: str) -> None:
    trace = traced(family)
    x = trace.hidden[0]
    expected = slopes(x, with_vectors(trace, lambda: number(trace, family)))
    norm = ch.gradient_norm(trace, target=target_of(family))
    np.testing.assert_allclose(norm.values, np.linalg.norm(expected, axis=-1), rtol=1e-6, atol=1e-9)
    signed = ch.input_x_gradient(trace, target=target_of(family))
    np.testing.assert_allclose(signed.values, (expected * x.numpy()).sum(-1), rtol=1e-6, atol=1e-8)
    assert norm.meta["value"] == pytest.approx(number(trace, family), rel=1e-12)


@pytest.mark.parametrize("family", list(STEPS))
def test_attention_attribution_by_differences(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced(family, 3)
    found = ch.attention_attribution(trace, target=target_of(family), steps=STEPS[family])
    points, shares = np.polynomial.legendre.leggauss(STEPS[family])
    for layer in (len(trace.layers) - 1,):
        weights = trace.layers[layer].probabilities
        assert weights is not None
        f = with_attention(monkeypatch, layer, lambda: number(trace, family))
        assert f(weights) == pytest.approx(number(trace, family), rel=1e-9)
        mean = np.zeros(weights.shape)
        for point, share in zip(points, shares, strict=True):
            mean += share / 2 * slopes((point + 1) / 2 * weights, f)
        np.testing.assert_allclose(found.values[layer], weights.numpy() * mean, rtol=1e-5, atol=1e-8)
        change = f(weights) - f(torch.zeros_like(weights))
        assert found.meta["completeness"][layer]["change"] == pytest.approx(change, rel=1e-9)


@DOUBLE
def test_relevance_by_differences(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced(family, 3)
    found = ch.relevance(trace, target=target_of(family))
    n = len(trace.tokens)
    whole = [[float(i == j) for j in range(n)] for i in range(n)]
    for layer, captured in enumerate(trace.layers):
        weights = captured.probabilities
        assert weights is not None
        steep = slopes(weights, with_attention(monkeypatch, layer, lambda: number(trace, family, logit=True)))
        heads, below = len(weights), [row[:] for row in whole]
        for i in range(n):
            for j in range(n):
                for k in range(n):
                    mean = sum(max(0.0, steep[h, i, k] * float(weights[h, i, k])) for h in range(heads)) / heads
                    whole[i][j] += mean * below[k][j]
        np.testing.assert_allclose(found.values[layer], whole, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("baseline", ["mean", "zero"])
def test_integrated_gradients_is_the_integral(baseline: Any) -> None:
    """Against a midpoint sum of the definition, on the model's own graph through a hook."""
    trace = traced("bert", 4)
    model: Any = trace.model
    x = trace.hidden[0]
    start = torch.zeros_like(x) if baseline == "zero" else x.mean(0).expand_as(x)
    inputs = model.tokenizer(trace.tokens.text, return_tensors="pt")
    total = torch.zeros_like(x)
    steps = 800
    for k in range(steps):
        at = (start + (k + 0.5) / steps * (x - start)).requires_grad_()
        handle = model.layer_modules()[0].register_forward_pre_hook(lambda module, args, at=at: (at[None], *args[1:]))
        model.hf(**inputs).last_hidden_state[0, :, 3].sum().backward(inputs=[at])
        handle.remove()
        total += at.grad / steps
    expected = ((x - start) * total).sum(-1).detach()

    def third(output: Any) -> torch.Tensor:
        return output.last_hidden_state[:, :, 3].sum(-1)

    found = ch.integrated_gradients(trace, target=third, baseline=baseline)
    np.testing.assert_allclose(found.values, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
    assert found.meta["options"]["target"] == "third"


# ------------------------------------------------------------------------------------------------------------ laws


@EVERY
def test_laws(family: str) -> None:
    trace = traced(family, 6)
    target = target_of(family)
    if family == "gemma3_text":  # the output of its attention is normalised by itself, so F jumps at A = 0
        with pytest.raises(errors.NotDefined, match="normalises the output of its attention"):
            ch.attention_attribution(trace, target=target)
    attribution = ch.attention_attribution(
        trace, target=target, variant="published" if family == "gemma3_text" else "correct"
    )
    for layer, told in zip(attribution.values, attribution.meta["completeness"], strict=True):
        assert told["change"] != 0
        assert told["total"] == pytest.approx(layer.sum(), rel=1e-6, abs=told["rounding"])
        if family != "gemma3_text":
            assert abs(layer.sum() - told["change"]) <= max(1e-3 * abs(told["change"]), told["rounding"])
    found = ch.relevance(trace, target=target)
    assert (found.values >= np.eye(len(trace.tokens))).all()
    whole = ch.integrated_gradients(trace, target=target)
    met = whole.meta["completeness"]
    assert abs(whole.values.sum() - met["change"]) <= max(1e-2 * abs(met["change"]), met["rounding"])
    assert (ch.gradient_norm(trace, target=target).values > 0).all() or family in CAUSAL
    if family in CAUSAL:
        future = np.triu(np.ones((len(trace.tokens),) * 2, bool), 1)
        assert (attribution.values[..., future] == 0).all()
        assert (found.values[:, future] == 0).all()


@EVERY
def test_the_scale_of_the_vectors(family: str) -> None:
    """input_x_gradient sums to the derivative of F by a common scale of all vectors."""
    trace = traced(family, 5)
    found = ch.input_x_gradient(trace, target=target_of(family))
    goal = trace.model.goal(trace, target_of(family))
    run, step = trace.model.outcome(trace, goal, 0), 1e-2
    with torch.no_grad():
        a, b, c, d = (float(run(trace.hidden[:1] * (1 + k * step))) for k in (-2, -1, 1, 2))
    assert found.values.sum() == pytest.approx((a - 8 * b + 8 * c - d) / (12 * step), rel=1e-2, abs=1e-4)


# ---------------------------------------------------------------------------------------------------------- targets


def test_spellings() -> None:
    assert read_target("class:1") == Named("class", 1)
    assert read_target("class:POSITIVE") == Named("class", "POSITIVE")
    assert read_target("next: Paris") == Named("next", " Paris")
    assert read_target('next:" Paris"') == Named("next", " Paris")
    assert read_target("next:12") == Named("next", 12)
    assert read_target("next:'12'") == Named("next", "12")
    assert read_target("similar:a: b") == ch.SimilarTo("a: b")
    for wrong in ("", "1", "like:x", "class:", "next: ", "similar", True, 1.5, [1]):
        with pytest.raises(errors.InputError, match="target; got"):
            read_target(wrong)  # type: ignore[arg-type]
    every: list[Any] = [None, 3, "class:1", ch.SimilarTo("x", "last"), ch.Goal("g", "first", len), len]
    told = [None, 3, "class:1", "similar:x (last state)", "g", "len"]
    assert [spelled(one) for one in every] == json.loads(json.dumps(told))


def classifier() -> ch.Model:
    config = tf.BertConfig(
        vocab_size=70, hidden_size=12, num_attention_heads=3, intermediate_size=17, num_hidden_layers=2, num_labels=3
    )
    torch.manual_seed(0)
    config.id2label = {0: "bad", 1: "even", 2: "good"}
    return ch.load((tf.BertForSequenceClassification(config).double().eval(), word_tokenizer("bert")))


def test_one_target_in_every_spelling() -> None:
    model = classifier()
    trace = model.trace(words(5))
    likely = int(model.head(trace).logits.argmax())
    label = ("bad", "even", "good")[likely]
    spellings: list[Any] = [None, likely, f"class:{likely}", f"class:{label}"]
    maps = [ch.gradient_norm(trace, target=one) for one in spellings]
    assert all(np.array_equal(one.values, maps[0].values) for one in maps)
    assert [one.meta["options"]["target"] for one in maps] == spellings
    assert {one.meta["target"] for one in maps} == {f"probability of class {likely}"}
    other = ch.gradient_norm(trace, target=(likely + 1) % 3)
    assert not np.allclose(other.values, maps[0].values)
    similar = [ch.relevance(trace, target=one).values for one in (f"similar:{OTHER}", ch.SimilarTo(OTHER))]
    assert np.array_equal(*similar)
    parts = ch.decompx(trace, of="logits", target=f"class:{label}")
    assert parts.coords["target"] == (likely,)
    with pytest.raises(errors.NotDefined, match="no logit"):
        ch.decompx(trace, of="logits", target=f"similar:{OTHER}")


WRONG: list[tuple[Any, type[Exception], str]] = [
    ("class:3", errors.InputError, "target; got 'class:3'; allowed: 0 to 2"),
    ("class:fair", errors.InputError, "no class of that label; got 'fair'; allowed: 0 to 2, or bad, even, good"),
    ("next:w1", errors.NotDefined, "a next token of a BertForSequenceClassification"),
    (lambda output: output.logits, errors.InputError, r"got shape \(1, 3\); allowed: one finite number a text"),
    (lambda output: 1.0, errors.InputError, "got float; allowed: one finite number a text"),
]


@pytest.mark.parametrize(("target", "kind", "match"), WRONG)
def test_wrong_targets(target: Any, kind: type[Exception], match: str) -> None:
    model = classifier()
    with pytest.raises(kind, match=match):
        ch.gradient_norm(model.trace(words(4)), target=target)


def test_tokens_as_targets() -> None:
    trace = traced("gpt2", 5)
    index = int(trace.model.tokenizer.convert_tokens_to_ids("w7"))  # type: ignore[attr-defined]
    maps = [ch.gradient_norm(trace, target=one) for one in (index, "next:w7", "next: w7", f"next:{index}")]
    assert all(np.array_equal(one.values, maps[0].values) for one in maps)
    for wrong, match in (("next:w1 w2", "is not one token; got 'w1' [+] 'w2'"), ("next:new", "not in the vocabulary")):
        with pytest.raises(errors.InputError, match=match):
            ch.gradient_norm(trace, target=wrong)
    with pytest.raises(errors.NotDefined, match="a class of a GPT2LMHeadModel"):
        ch.gradient_norm(trace, target="class:1")


@METHODS
def test_a_model_without_a_head_asks_for_a_target(method: Any) -> None:
    with pytest.raises(errors.NotDefined, match=r"Give a target: 'similar:TEXT'"):
        method(traced("bert"))


# ------------------------------------------------------------------------------------------- proof, and what is refused


@METHODS
def test_what_is_not_the_models_is_refused(method: Any) -> None:
    trace = traced("bert")
    part = trace.part()
    moved = part.hidden.clone()
    moved[:-1, 1, 0] += 1e-3
    wrong = replace(trace, parts={part.name: replace(part, hidden=moved)})
    with pytest.raises(errors.ProofError, match="does not give the untouched model's cosine"):
        method(wrong, target=f"similar:{OTHER}")


@pytest.mark.parametrize("method", [ch.attention_attribution, ch.relevance])
def test_attention_that_is_not_the_models_is_refused(method: Any) -> None:
    trace = traced("bert")
    part = trace.part()
    weights = part.layers[1].probabilities
    assert weights is not None
    layers = (part.layers[0], replace(part.layers[1], probabilities=weights.roll(1, -1)))
    with pytest.raises(errors.ProofError, match="attention of block 1 does not give"):
        method(replace(trace, parts={part.name: replace(part, layers=layers)}), target=f"similar:{OTHER}")
    bare = trace.model.trace(words(4), capture="outputs")  # type: ignore[attr-defined]
    with pytest.raises(errors.NotDefined, match="recorded"):
        method(bare, target=f"similar:{OTHER}")


@pytest.mark.parametrize("family", ["bert", "albert", "mpnet", "gpt2"])
def test_the_model_is_left_as_it_was(family: str) -> None:
    hf, tokenizer = tiny(family)
    model = ch.load((hf, tokenizer))
    hf.train()
    before = [(dict(module.__dict__), module.training) for module in hf.modules()]
    kind = hf.config._attn_implementation
    trace, calls = model.trace(words(4)), []

    def breaks(output: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("on purpose")
        return (output.logits if family == "gpt2" else output.last_hidden_state).sum((1, 2))

    with pytest.raises(RuntimeError, match="on purpose"):
        ch.relevance(trace, target=breaks)
    ch.relevance(trace, target=target_of(family))
    for module, (kept, training) in zip(hf.modules(), before, strict=True):
        assert "forward" not in module.__dict__
        assert module.training == training
        assert len(module._forward_hooks) == len(kept["_forward_hooks"])
        assert len(module._forward_pre_hooks) == len(kept["_forward_pre_hooks"])
    assert hf.config._attn_implementation == kind
    assert all(parameter.grad is None for parameter in hf.parameters())


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (ch.attention_attribution, {"layer": 2}, "layer; got 2; allowed: 0 to 1"),
    (ch.attention_attribution, {"steps": 0}, "steps; got 0"),
    (ch.attention_attribution, {"variant": "new"}, "variant; got 'new'"),
    (ch.attention_attribution, {"variant": "published", "steps": 4}, "its own 64 steps; got steps=4"),
    (ch.integrated_gradients, {"baseline": "pad"}, "baseline; got 'pad'; allowed: 'mean', 'zero'"),
    (ch.integrated_gradients, {"steps": 1.5}, "steps; got 1.5"),
]


@pytest.mark.parametrize(("method", "options", "match"), REFUSED)
def test_wrong_options(method: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(errors.InputError, match=match):
        method(traced("bert"), **options)


def test_what_is_not_complete_is_refused() -> None:
    trace = traced("bert", 6)
    with pytest.raises(errors.NotDefined, match=r"do not sum to F\(A\) - F\(0\)"):
        ch.attention_attribution(trace, target=f"similar:{OTHER}", steps=1)
    with pytest.raises(errors.NotDefined, match=r"with 2 steps the values do not sum .* Give more steps, or baseline="):
        ch.integrated_gradients(trace, target=f"similar:{OTHER}", steps=2, baseline="zero")


def test_without_captum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "captum", None)
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(errors.MissingExtra, match=r"needs captum. pip install clearhead\[captum\]"):
        ch.integrated_gradients(traced("bert"), target=f"similar:{OTHER}")


# ---------------------------------------------------------------------------------------- heads, trees, and comparison


def test_one_layer_alone() -> None:
    trace, target = traced("bert", 5), f"similar:{OTHER}"
    found = ch.attention_attribution(trace, target=target)
    alone = ch.attention_attribution(trace, target=target, layer=1)
    assert alone.coords["layer"] == (1,)
    np.testing.assert_allclose(alone.values[0], found.values[1], rtol=1e-12)


def test_head_importance() -> None:
    model = ch.load(tiny("bert", torch.float64))
    traces = [model.trace(words(4, seed)) for seed in range(3)]
    found = ch.head_importance(traces, target=f"similar:{OTHER}")
    for layer, head in np.ndindex(2, 3):
        expected = 0.0
        for trace in traces:
            values = ch.attention_attribution(trace, target=f"similar:{OTHER}").values[layer, head]
            expected += max(float(value) for row in values for value in row)
        assert found.values[layer, head] == pytest.approx(expected, rel=1e-12)
    for wrong in ([], traces[0], [traces[0], traced("bert")]):
        with pytest.raises(errors.InputError, match="head_importance"):
            ch.head_importance(wrong)  # type: ignore[arg-type]


def test_attribution_tree() -> None:
    trace = traced("bert", 3)  # five tokens
    made = ch.attention_attribution(trace, target=f"similar:{OTHER}")
    values = np.zeros((2, 3, 5, 5))
    values[1, 0, 2, 1], values[1, 1, 2, 3], values[1, 2, 2, 4] = 1.0, 0.5, 0.3  # 0.3 is under 0.4 x the largest
    values[0, 0, 1, 0], values[0, 1, 3, 2], values[0, 2, 4, 3] = 0.8, 0.9, 0.7  # 2 is in already, 4 is not
    tree = ch.attribution_tree(replace(made, values=values))
    assert tree.meta["root"] == 2
    edges = list(zip(*(tree[name].tolist() for name in ("layer", "parent", "child", "attribution")), strict=True))
    assert edges == [(1, 2, 1, 1.0), (1, 2, 3, 0.5), (0, 1, 0, 0.8)]
    with pytest.raises(errors.InputError, match="threshold"):
        ch.attribution_tree(made, threshold=1.5)
    with pytest.raises(errors.InputError, match="the map"):
        ch.attribution_tree(ch.relevance(trace, target=f"similar:{OTHER}"))
    with pytest.raises(errors.NotDefined, match="no weight of layer 0"):
        ch.attribution_tree(replace(made, values=-np.abs(made.values)))


def test_compare_gives_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier()
    names = ["gradient_norm", "input_x_gradient", "attention_attribution", "relevance", "alti"]
    found = ch.compare(model, [words(5), words(6)], names, target="class:2", removal="mask", exact_hta=False)
    assert set(found.table["method"].tolist()) == {*names, "random"}
    asked: list[Any] = []
    from clearhead.methods import registry

    own = registry.find("gradient_norm")

    def spy(trace: ch.Trace, *, target: Any = None) -> ch.Map:
        asked.append(target)
        return own.function(trace, target=target)

    monkeypatch.setitem(registry._METHODS, "gradient_norm", replace(own, function=spy))
    ch.compare(model, [words(5)], ["gradient_norm"], target="class:2", removal="mask", exact_hta=False)
    assert {one if isinstance(one, str) else one.name for one in asked} == {"probability of class 2"}
