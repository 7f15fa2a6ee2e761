"""The proof: each planted fault is caught and named, and nothing of ours stays on the model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

import clearhead as ch
from clearhead import errors
from clearhead.models import capture, tracing
from clearhead.models.capture import Recording

Fault = Callable[[Recording, ch.Model], None]


def transposed_heads(recording: Recording, model: ch.Model) -> None:
    call = recording.calls[1]
    recording.calls[1] = replace(call, probabilities=call.probabilities.flip(1))


def transposed_attention(recording: Recording, model: ch.Model) -> None:
    call = recording.calls[1]
    recording.calls[1] = replace(call, probabilities=call.probabilities.transpose(-1, -2))


def dropped_value_bias(recording: Recording, model: ch.Model) -> None:
    bias = model.hf.encoder.layer[1].attention.self.value.bias.detach()
    call = recording.calls[1]
    recording.calls[1] = replace(call, value=call.value - bias.view(1, model.heads, 1, -1))


def wrong_group_order(recording: Recording, model: ch.Model) -> None:
    """Query head h reads key-value head h % groups instead of h // groups: as if the heads were tiled."""
    call = recording.calls[1]
    order = torch.arange(model.heads) % model.kv_heads
    recording.calls[1] = replace(call, value=call.value[:, order])


def stale_tensor(recording: Recording, model: ch.Model) -> None:
    recording.calls[1] = replace(recording.calls[1], value=recording.calls[0].value)


def stale_probabilities(recording: Recording, model: ch.Model) -> None:
    recording.calls[1] = replace(recording.calls[1], probabilities=recording.calls[0].probabilities)


def one_head_scaled(recording: Recording, model: ch.Model) -> None:
    """A fault of one part in a hundred thousand in one head."""
    call = recording.calls[1]
    factor = torch.ones(model.heads, 1, 1, dtype=call.value.dtype)
    factor[0] += 1e-5
    recording.calls[1] = replace(call, probabilities=call.probabilities * factor)


def lost_call(recording: Recording, model: ch.Model) -> None:
    recording.calls.pop()


FAULTS: list[tuple[Fault, str, str]] = [
    (transposed_heads, "bert", "layer 1: what was captured does not rebuild"),
    (transposed_attention, "bert", "layer 1: what was captured does not rebuild"),
    (dropped_value_bias, "bert", "layer 1: what was captured does not rebuild"),
    (wrong_group_order, "llama", "layer 1: what was captured does not rebuild"),
    (stale_tensor, "gpt2", "layer 1: what was captured does not rebuild"),
    (stale_probabilities, "gpt2", "layer 1: what was captured does not rebuild"),
    (one_head_scaled, "mpnet", "layer 1: what was captured does not rebuild"),
    (lost_call, "distilbert", "the capture of attention ran 1 times; allowed: 2 times"),
]


@pytest.mark.parametrize(("fault", "family", "message"), FAULTS, ids=[fault.__name__ for fault, *_ in FAULTS])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_planted_fault_is_caught(
    fault: Fault, family: str, message: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ch.load(tiny.tiny(family, dtype))
    model.trace(tiny.words(8))  # sound without the fault
    record = tracing.record

    def faulty(*args: Any, **options: Any) -> Recording:
        recording = record(*args, **options)
        fault(recording, model)
        return recording

    monkeypatch.setattr(tracing, "record", faulty)
    with pytest.raises(errors.ProofError, match=message):
        model.trace(tiny.words(8))


@pytest.mark.parametrize("family", ["gpt2", "gptj", "gpt_neox", "llama", "mistral", "gemma3_text"])
def test_ignored_causal_mask_is_caught(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Self-consistent, and wrong: only the untouched model tells."""
    monkeypatch.setattr(capture, "open_blind_rows", lambda **options: None)
    with pytest.raises(errors.ProofError, match=r"depth 1: the captured states differ from the untouched model's"):
        ch.load(tiny.tiny(family)).trace(tiny.words(8))


def test_ignored_padding_mask_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "open_blind_rows", lambda **options: None)
    model = ch.load(tiny.tiny("bert"))
    model.trace(tiny.words(8))  # no padding: no mask is needed
    for trace in model.trace_many([tiny.words(8), tiny.words(7)]):  # each is right, alone, and says so
        assert "no padding" in trace.proof.situation
        assert "a batch with it failed: layer 0: what was captured does not rebuild" in trace.warnings[0]


def test_wrong_positions_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "clearhead.models.inputs.positions", lambda ids, mask, *_: torch.arange(ids.shape[1]).expand_as(ids).clone()
    )
    hf, tokenizer = tiny.tiny("gpt2")
    tokenizer.padding_side = "left"
    long, short = ch.load((hf, tokenizer)).trace_many([tiny.words(8), tiny.words(7)])
    assert re.search("a batch with it failed: depth 0: .* differ from the untouched", long.warnings[0])
    assert "no padding" in short.proof.situation


def test_wrong_row_norms_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from clearhead.models import row_norms

    def off(*args: Any) -> Tensor:
        return row_norms.chunked_norms(*args) * 1.001

    monkeypatch.setattr(tracing, "squared_row_norms", off)
    with pytest.raises(errors.ProofError, match="does not rebuild"):
        ch.load(tiny.tiny("gpt2")).trace(tiny.words(8), capture="outputs")


def test_nan_weights_are_refused_by_layer() -> None:
    model = ch.load(tiny.tiny("bert"))
    with torch.no_grad():
        model.hf.encoder.layer[1].attention.self.query.weight[0, 0] = float("nan")
    with pytest.raises(errors.ProofError, match=r"layer 1: the queries hold NaN in float32.*weights"):
        model.trace(tiny.words(4))


def everything_on(model: Any) -> dict[str, Any]:
    from transformers import AttentionInterface, AttentionMaskInterface

    return {
        "hooks": [(n, len(m._forward_hooks), len(m._forward_pre_hooks)) for n, m in model.named_modules()],
        "attention": [m.config._attn_implementation for m in model.modules() if hasattr(m, "config")],
        "training": [m.training for m in model.modules()],
        "functions": sorted(AttentionInterface._global_mapping),
        "masks": sorted(AttentionMaskInterface._global_mapping),
        "versions": [p._version for p in model.parameters()],
        "grad": torch.is_grad_enabled(),
    }


@pytest.mark.parametrize("family", ["bert", "mpnet", "gemma3_text"])
@pytest.mark.parametrize("during", ["trace", "outputs", "batch", "derivative", "error"])
def test_the_model_is_left_as_it_was(family: str, during: str) -> None:
    hf, tokenizer = tiny.tiny(family)
    hf.train()
    list(hf.modules())[3].eval()  # a mixed state must come back mixed
    model, before = ch.load((hf, tokenizer)), everything_on(hf)
    trace = model.trace(tiny.words(6))
    if during == "outputs":
        model.trace(tiny.words(6), capture="outputs")
    if during == "batch":
        model.trace_many([tiny.words(6), tiny.words(7)])
    if during == "derivative":
        x, f = model.from_embedding(trace)
        torch.func.jvp(f, (x,), (torch.ones_like(x),))
    if during == "error":
        handle = model.layer_modules()[1].register_forward_pre_hook(raise_error)
        for run in (lambda: model.trace(tiny.words(6)), lambda: model.from_embedding(trace)[1](trace.hidden[0])):
            with pytest.raises(ArithmeticError):
                run()
        handle.remove()
    assert everything_on(hf) == before


def raise_error(*_: Any) -> None:
    raise ArithmeticError("half way")


@pytest.mark.parametrize("how", ["wrapped", "in place", "one layer"])
def test_compiled_models_are_traced_uncompiled(how: str) -> None:
    """Hooks added after compilation never fire; the capture runs eagerly and equals the plain model."""
    hf, tokenizer = tiny.tiny("bert")
    plain = ch.load(tiny.tiny("bert")).trace(tiny.words(6))
    if how == "wrapped":
        compiled = run = torch.compile(hf, backend="eager")
    else:
        compiled = run = hf
        (hf if how == "in place" else hf.encoder.layer[0]).compile(backend="eager")
    with torch.no_grad():
        run(**plain.inputs)
    trace = ch.load((compiled, tokenizer)).trace(tiny.words(6))
    assert torch.equal(trace.hidden, plain.hidden)


def test_autocast_around_a_trace_changes_nothing() -> None:
    model = ch.load(tiny.tiny("bert"))
    plain = model.trace(tiny.words(6))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model.trace(tiny.words(6)).hidden, plain.hidden)


def test_quantised_projections_are_refused() -> None:
    class Adapter(torch.nn.Linear):
        pass

    hf, tokenizer = tiny.tiny("bert")
    dense = hf.encoder.layer[0].attention.output.dense
    dense.__class__ = Adapter
    with pytest.raises(errors.UnsupportedModel, match=re.escape("a Adapter; allowed: a plain linear layer")):
        ch.load((hf, tokenizer)).trace(tiny.words(4))
