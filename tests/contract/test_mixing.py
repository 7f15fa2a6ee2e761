"""Rollout, flow, value zeroing and Shapley against loops from their definitions, laws, and what they refuse."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead import errors, linalg
from clearhead.methods.registry import methods
from tests.tiny import RECIPES, tiny, words

EVERY = pytest.mark.parametrize("family", RECIPES)
DECODERS = ("gpt2", "gptj", "gpt_neox", "llama", "mistral", "qwen2", "gemma3_text")
VALUES = ("self.value", "attention.value", "v_lin", "attn.v", "v_proj", "c_attn", "query_key_value")


def traced(family: str, tokens: int = 6, dtype: torch.dtype = torch.float64, **changes: Any) -> ch.Trace:
    return ch.load(tiny(family, dtype, **changes)).trace(words(tokens))


def means(trace: ch.Trace) -> np.ndarray:
    return np.stack([layer.probabilities.double().numpy().sum(0) / len(layer.probabilities) for layer in trace.layers])  # type: ignore[union-attr, arg-type]


def chained(layers: np.ndarray, residual: float) -> np.ndarray:
    """Sums over all paths: R_l[i, j] = sum_k A~_l[i, k] R_{l-1}[k, j]."""
    n = layers.shape[-1]
    below = [[float(i == j) for j in range(n)] for i in range(n)]
    found = []
    for layer in layers:
        mixed = [[(1 - residual) * layer[i, k] + residual * (i == k) for k in range(n)] for i in range(n)]
        below = [[sum(mixed[i][k] * below[k][j] for k in range(n)) for j in range(n)] for i in range(n)]
        found.append(below)
    return np.array(found)


def maximal_flow(capacities: np.ndarray, query: int, key: int) -> float:
    """Augmenting paths, shortest first, on a dictionary of residual capacities."""
    layers, n = len(capacities), capacities.shape[-1]
    left: dict[tuple[Any, Any], float] = {}
    for level, i, k in itertools.product(range(layers), range(n), range(n)):
        left[(level + 1, i), (level, k)] = float(capacities[level, i, k])
        left.setdefault(((level, k), (level + 1, i)), 0.0)
    total, source, sink = 0.0, (layers, query), (0, key)
    while True:
        came: dict[Any, Any] = {source: None}
        queue = [source]
        for node in queue:
            near = [(level, k) for level in (node[0] - 1, node[0] + 1) if 0 <= level <= layers for k in range(n)]
            for other in near:
                if other not in came and left[node, other] > 1e-15:
                    came[other] = node
                    queue.append(other)
        if sink not in came:
            return total
        path, node = [], sink
        while came[node] is not None:
            path.append((came[node], node))
            node = came[node]
        step = min(left[edge] for edge in path)
        for a, b in path:
            left[a, b] -= step
            left[b, a] += step
        total += step


@EVERY
def test_rollout_is_the_sum_over_paths(family: str) -> None:
    trace = traced(family)
    for residual in (0.5, 0.2):
        found = ch.attention_rollout(trace, residual=residual)
        np.testing.assert_allclose(found.values, chained(means(trace), residual), rtol=1e-12, atol=1e-15)
        # Families that take the softmax in float32 have rows that sum to 1 only to 1e-7.
        np.testing.assert_allclose(
            found.values.sum(-1), 1, rtol=0, atol=1e-14 if trace.precision == "float64" else 1e-6
        )
        raw = ch.effective_attention(trace, part="raw")
        np.testing.assert_allclose(raw.rollout(residual=residual).values, found.values, rtol=1e-12, atol=1e-15)
    assert raw.rollout().meta["rollout"] == {"residual": 0.5}
    if family in DECODERS:
        assert not np.triu(found.values[-1], 1).any()


@EVERY
def test_each_method_chains_with_its_own_residual(family: str) -> None:
    trace = traced(family)
    for method, residual in ((ch.value_zeroing, 0.0), (ch.globenc, 0.0), (ch.residual_norms, 0.0)):
        found = method(trace)
        expected = chained(found.values, residual)
        np.testing.assert_allclose(found.rollout().values, expected, rtol=1e-11, atol=1e-300)
        assert not np.allclose(found.rollout(residual=0.5).values, expected)  # the residual is not counted twice
    layer = ch.decompx(trace, of="blocks")
    np.testing.assert_allclose(layer.rollout().values, chained(layer.values, 0.0), rtol=1e-11, atol=1e-300)


def test_what_may_not_be_chained() -> None:
    trace = traced("bert")
    raw = ch.effective_attention(trace, part="raw")
    refused: list[tuple[ch.Map, str]] = [
        (raw.rollout(), "chained already"),
        (ch.attention_rollout(trace), "chained already"),
        (ch.attention_flow(trace), "not shares"),
        (ch.effective_attention(trace, part="null"), "not shares"),
        (ch.vector_norms(trace), "not shares"),
        (ch.decompx(trace), "not shares"),
        (ch.value_zeroing(trace, raw=True), "not shares"),
        (ch.hidden_token_attribution(trace), "not shares"),
        (raw.sel(layer=1), "its axes"),
        (raw[1:], "layers are left out"),
        (raw.sel(query=[0, 1]), "queries are not its keys"),
        (raw.by_word(), "words already"),
        (replace(raw, stderr=0 * raw.values), "estimates"),
    ]
    for found, reason in refused:
        with pytest.raises(errors.NotDefined, match=reason):
            found.rollout()
        with pytest.raises(errors.NotDefined, match=reason):
            found.rollout(residual=0.5)
    for residual in (-0.1, 1.5, math.nan, True, "half"):
        with pytest.raises(errors.InputError, match="residual"):
            raw.rollout(residual=residual)  # type: ignore[arg-type]
    bare = replace(raw, meta={})
    with pytest.raises(errors.InputError, match="names no method"):
        bare.rollout()
    assert (bare.rollout(residual=0.5).values == raw.rollout().values).all()


@pytest.mark.parametrize("suffix", [".safetensors", ".parquet", ".json"])
def test_a_map_from_a_file_still_knows(tmp_path: Path, suffix: str) -> None:
    found = ch.value_zeroing(traced("gpt2"))
    read = ch.Map.load(found.save(tmp_path / f"map{suffix}"))
    assert read.rollout().equals(found.rollout())
    with pytest.raises(errors.NotDefined, match="not shares"):
        ch.Map.load(ch.vector_norms(traced("gpt2")).save(tmp_path / f"norms{suffix}")).rollout()


def test_every_method_says_how_it_is_chained() -> None:
    said = {name: method.residual for name, method in methods().items() if method.residual is not None}
    assert said.items() >= {
        "alti": 0.0, "effective_attention": 0.5, "globenc": 0.0, "residual_norms": 0.0, "value_zeroing": 0.0,
    }.items()  # fmt: skip
    for name in ("attention_flow", "attention_rollout", "decompx", "hidden_token_attribution", "vector_norms"):
        assert name not in said


@EVERY
def test_flow_is_maximal(family: str) -> None:
    trace = traced(family, tokens=4)
    found = ch.attention_flow(trace)
    n = len(trace.tokens)
    capacities = 0.5 * means(trace) + 0.5 * np.eye(n)
    for layer, query, key in itertools.product(range(len(capacities)), range(n), range(n)):
        expected = maximal_flow(capacities[: layer + 1], query, key)
        assert found.values[layer, query, key] == pytest.approx(expected, rel=0, abs=1e-14)
    rollout = ch.attention_rollout(trace).values
    assert (found.values >= rollout - 1e-7).all()  # rollout is one flow, with each edge at most its capacity
    if family in DECODERS:
        assert not np.triu(found.values[-1], 1).any()
    part = ch.attention_flow(trace, layer=1, query=2)
    assert part.dims == ("layer", "query", "key")
    assert part.coords["layer"] == (1,)
    assert part.coords["query"] == (2,)
    np.testing.assert_array_equal(part.values[0, 0], found.values[1, 2])


def test_flow_of_more_layers() -> None:
    """Six layers, each of its own: the order of the layers counts."""
    random = torch.rand(6, 4, 4, generator=torch.Generator().manual_seed(0)).double() ** 4
    capacities = random / random.sum(-1, keepdim=True)
    found = linalg.max_flows(capacities, [2, 5], [0, 3]).numpy()
    for (row, layer), (col, query), key in itertools.product(enumerate((2, 5)), enumerate((0, 3)), range(4)):
        expected = maximal_flow(capacities.numpy()[: layer + 1], query, key)
        assert found[row, col, key] == pytest.approx(expected, rel=0, abs=1e-14)


def test_flow_refuses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    trace = traced("bert")
    options: list[dict[str, Any]] = [{"layer": 2}, {"query": -1}, {"residual": 1.1}, {"layer": True}]
    for wrong in options:
        with pytest.raises(errors.InputError, match="attention_flow"):
            ch.attention_flow(trace, **wrong)
    monkeypatch.setattr("clearhead.methods.attention_flow.SECONDS_TO_SAY", -1.0)
    ch.attention_flow(trace)
    assert "flows, about" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ortools.graph.python", None)
    with pytest.raises(errors.MissingExtra, match=r"pip install clearhead\[flow\]"):
        ch.attention_flow(trace)


def zeroed(trace: ch.Trace, family: str) -> np.ndarray:
    """The whole model run again for each layer and token, in its own attention, with a hook on the value projection."""
    model: Any = trace.model
    n, layers = len(trace.tokens), model.layer_modules()
    distances = np.zeros((len(layers), n, n))
    inputs = {name: tensor for name, tensor in trace.inputs.items() if name != "position_ids"}
    for layer, key in itertools.product(range(len(layers)), range(n)):
        seen: list[np.ndarray] = []
        calls: list[int] = []
        module = layers[layer]
        turn = sum(other is module for other in layers[:layer])  # a shared module is called more than once

        def zero(_: Any, args: Any, output: torch.Tensor, key: int = key, calls: Any = calls, turn: int = turn) -> Any:
            calls.append(1)
            if len(calls) != turn + 1:
                return output
            output = output.clone()
            if family == "gpt2":
                output[0, key, 2 * output.shape[-1] // 3 :] = 0
            elif family == "gpt_neox":
                output[0, key].unflatten(-1, (model.heads, 3, -1))[:, 2] = 0
            else:
                output[0, key] = 0
            return output

        (values,) = (child for name, child in module.named_modules() if name.endswith(VALUES))
        hooks = [
            values.register_forward_hook(zero),
            module.register_forward_hook(
                lambda m, a, o, s=seen: s.append((o[0] if isinstance(o, tuple) else o)[0].numpy())
            ),
        ]
        with torch.no_grad():
            model.hf.base_model(**inputs)
        for hook in hooks:
            hook.remove()
        assert len(calls) > turn
        for query in range(n):
            a, b = seen[turn][query], trace.hidden[layer + 1][query].numpy()
            distances[layer, query, key] = 1 - a @ b / math.sqrt((a @ a) * (b @ b))
    return distances


@EVERY
def test_value_zeroing_is_a_run_without_the_value(family: str) -> None:
    """Against the model's own default attention (fused where the family has it)."""
    trace = traced(family)
    expected = zeroed(trace, family)
    assert expected.max() > 1e-3  # the zeroing acts
    found = ch.value_zeroing(trace, raw=True)
    np.testing.assert_allclose(found.values, expected, rtol=0, atol=1e-14 if trace.precision == "float64" else 1e-6)
    shares = ch.value_zeroing(trace)
    assert shares.values.dtype == np.float64
    np.testing.assert_allclose(shares.values, found.values / found.values.sum(-1, keepdims=True), rtol=1e-15)
    if family in DECODERS:
        assert not np.triu(shares.values[-1], 1).any()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_value_zeroing_acts_in_every_attention(attention: str) -> None:
    own = ch.value_zeroing(traced("bert", attention=attention), raw=True)
    assert (own.values > 1e-9).all()
    np.testing.assert_allclose(own.values, zeroed(traced("bert", attention=attention), "bert"), rtol=0, atol=1e-14)


def test_a_zeroing_that_does_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: what follows attention is run as if no value had been taken out."""
    from clearhead.linalg import zeroing

    after = zeroing.after_attention
    trace = traced("bert")

    def idle(block: Any, x: torch.Tensor, attention: torch.Tensor) -> tuple[Any, ...]:
        (ran,) = (r for r in map(trace.replay, (0, 1)) if torch.isin(x, r.x).all())
        return (*after(block, ran.x, ran.attention)[:-1], ran.output[(x[:, None] == ran.x).all(-1).int().argmax(-1)])

    monkeypatch.setattr(zeroing, "after_attention", idle)
    with pytest.raises(errors.NotDefined, match="no value turns the state"):
        ch.value_zeroing(trace)


def test_value_zeroing_leaves_the_model_alone() -> None:
    hf, tokenizer = tiny("bert", torch.float64)
    before = {name: tensor.clone() for name, tensor in hf.state_dict().items()}
    trace = ch.load((hf, tokenizer)).trace(words(6))
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in hf.modules()]
    ch.value_zeroing(trace)
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in hf.modules()]
    assert all((tensor == before[name]).all() for name, tensor in hf.state_dict().items())


def test_value_zeroing_in_float32_is_that_of_its_own_numbers() -> None:
    """From a float32 trace: relative to the float64 model, as near as float32 states allow, and float64 itself."""
    found = ch.value_zeroing(traced("bert", dtype=torch.float32))
    assert found.values.dtype == np.float64
    np.testing.assert_allclose(found.values, ch.value_zeroing(traced("bert")).values, rtol=0, atol=1e-5)


def shapley(attention: np.ndarray, pair: Callable[[float, float], float]) -> np.ndarray:
    """The definition: marginal worth over all orders, by coalitions."""
    n = len(attention)

    def worth(players: tuple[int, ...]) -> float:
        if len(players) == 1:
            return float(attention[players[0], players[0]])
        return sum(pair(attention[i, j], attention[j, i]) for i, j in itertools.combinations(players, 2))

    values = np.zeros(n)
    for player in range(n):
        others = [k for k in range(n) if k != player]
        for size in range(n):
            weight = math.factorial(size) * math.factorial(n - size - 1) / math.factorial(n)
            for players in itertools.combinations(others, size):
                values[player] += weight * (worth(tuple(sorted((*players, player)))) - worth(players))
    return values


@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_shapley_is_the_mean_over_orders(family: str, tokens: int) -> None:
    trace = traced(family, tokens=tokens)
    for pair, function in (("max", max), ("sum", lambda a, b: a + b)):
        found = ch.attention_shapley(trace, pair=pair)  # type: ignore[arg-type]
        expected = [shapley(attention, function) for attention in means(trace)]
        np.testing.assert_allclose(found.values, expected, rtol=0, atol=1e-14)
    with pytest.raises(errors.InputError, match="pair"):
        ch.attention_shapley(trace, pair="min")  # type: ignore[arg-type]


def test_methods_need_the_attention() -> None:
    trace = ch.load(tiny("bert")).trace(words(4), capture="outputs")
    for method in (ch.attention_rollout, ch.attention_flow, ch.value_zeroing, ch.attention_shapley):
        with pytest.raises(errors.NotDefined, match="the attention itself"):
            method(trace)


@pytest.mark.parametrize("batch", [2**10, 2**27])
def test_batches_of_value_zeroing_change_nothing(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    from clearhead.linalg import zeroing

    trace = traced("gemma3_text", tokens=9)  # windowed
    whole = ch.value_zeroing(trace).values
    monkeypatch.setattr(zeroing, "CHUNK_BYTES", batch)
    np.testing.assert_allclose(ch.value_zeroing(trace).values, whole, rtol=1e-9, atol=1e-15)
