"""hidden_token_attribution: its laws on every family, and oracles that share no line with it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import processors
from torch import Tensor

import clearhead as ch
from clearhead import errors, progress
from tests.tiny import RECIPES, tiny, words

# Exact norms in float64: a few thousand roundings a tangent and layer, gains near 1. Parts that families keep in
# float32 (softmax, RMSNorm) leave 1e-7 each.
EXACT = {"float64": 1e-10, "float32": 1e-5}
DECODERS = ("gpt2", "gptj", "gpt_neox", "llama", "mistral", "qwen2", "gemma3_text")


def traced(family: str, text: str | None = None, **changes: Any) -> ch.Trace:
    return ch.load(tiny(family, torch.float64, **changes)).trace(text or words(5))


@contextmanager
def leaf_at(module: torch.nn.Module, found: list[Tensor], *, output: bool) -> Iterator[None]:
    """Makes the first input (or the output) of a module a leaf that gradients reach."""

    def put(state: Tensor) -> Tensor:
        found.append(state.detach().clone().requires_grad_())
        return found[0]

    def before(module: Any, args: Any) -> Any:
        return (put(args[0]), *args[1:])

    def after(module: Any, args: Any, out: Any) -> Any:
        return put(out)

    hook = module.register_forward_hook(after) if output else module.register_forward_pre_hook(before)
    try:
        yield
    finally:
        hook.remove()


def one_reverse_pass_a_number(hf: Any, ids: Tensor, entry: torch.nn.Module, layers: Any, *, output: bool) -> Tensor:
    """Blocks [layer, query, key, out, in] by one gradient for each output number: the slowest obvious way."""
    states: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda m, a, out: states.append(out[0] if isinstance(out, tuple) else out))
        for layer in layers
    ]
    found: list[Tensor] = []
    with leaf_at(entry, found, output=output):
        hf(input_ids=ids)
    for hook in hooks:
        hook.remove()
    n, width = ids.shape[1], states[0].shape[-1]
    blocks = torch.zeros(len(states), n, n, width, found[0].shape[-1], dtype=torch.float64)
    for layer, state in enumerate(states):
        for query in range(n):
            for out in range(width):
                blocks[layer, query, :, out] = torch.autograd.grad(state[0, query, out], found[0], retain_graph=True)[
                    0
                ][0]
    return blocks


def shares(norms: Tensor) -> np.ndarray:
    return np.stack([[row / row.sum() for row in layer] for layer in norms.numpy()])


@pytest.mark.parametrize(("family", "embedding"), [("bert", "output"), ("bert", "sum"), ("gpt2", "output")])
def test_equals_one_reverse_pass_a_number(family: str, embedding: Any) -> None:
    trace = traced(family)
    hf, _ = tiny(family, torch.float64, attention="eager")
    entry, layers, output = (
        (hf.transformer.drop, hf.transformer.h, True)
        if family == "gpt2"
        else (hf.embeddings, hf.encoder.layer, True)
        if embedding == "output"
        else (hf.embeddings.LayerNorm, hf.encoder.layer, False)
    )
    blocks = one_reverse_pass_a_number(hf, trace.inputs["input_ids"], entry, layers, output=output)
    exact = ch.hidden_token_attribution(trace, probes=None, embedding=embedding)
    assert np.abs(exact.values - shares(blocks.square().sum((-1, -2)).sqrt())).max() < EXACT["float64"]
    spectral = ch.hidden_token_attribution(trace, probes=None, embedding=embedding, norm="spectral")
    truth = shares(torch.tensor(np.linalg.svd(blocks.numpy(), compute_uv=False)[..., 0]))
    assert np.abs(spectral.values - truth).max() < EXACT["float64"]
    power = ch.hidden_token_attribution(trace, probes=4, embedding=embedding, norm="spectral")
    assert np.abs(power.values - truth).max() < 1e-6
    assert power.stderr is None
    assert np.abs(truth - exact.values).max() > 1e-3  # the two norms do differ


@pytest.mark.parametrize("family", RECIPES)
def test_every_family(family: str) -> None:
    """Rows sum to 1, the future is exactly 0, and forward mode equals reverse mode on the model as it is traced."""
    trace = traced(family)
    exact = ch.hidden_token_attribution(trace, probes=None).values
    estimate = ch.hidden_token_attribution(trace, probes=4, seed=3)
    for values in (exact, estimate.values):
        assert np.abs(values.sum(-1) - 1).max() < 1e-12
        assert (values >= 0).all()
        future = np.triu(np.ones(values.shape[1:], dtype=bool), 1)
        assert (values[:, future] == 0).all() if family in DECODERS else (values > 0).all()
    x, f = trace.model.from_embedding(trace, "output")
    jacobian = torch.autograd.functional.jacobian(f, x)
    truth = shares(jacobian.square().sum((2, 4)).sqrt())
    assert np.abs(exact - truth).max() < EXACT[trace.precision]
    # not an oracle of the estimate, only a bound on a blunder: 4 probes of 12 to 24 are off by a share of its size
    assert 1e-6 < np.abs(estimate.values - exact).mean() < 0.1
    assert estimate.stderr is not None
    assert (estimate.stderr[:, future] == 0).all() == (family in DECODERS)


def test_sum_and_output_differ_only_where_a_norm_lies_between() -> None:
    def gap(family: str) -> float:
        trace = traced(family)
        one, two = (ch.hidden_token_attribution(trace, probes=None, embedding=e).values for e in ("output", "sum"))
        return float(np.abs(one - two).max())

    assert gap("bert") > 1e-3
    assert gap("albert") > 1e-3  # there x has another width than the states
    assert gap("gpt2") == gap("llama") == 0


def test_all_probes_are_exact_and_a_seed_gives_the_same_numbers() -> None:
    trace = traced("bert")
    exact = ch.hidden_token_attribution(trace, probes=None)
    for asked in (12, 16):  # the width of x, and more
        every = ch.hidden_token_attribution(trace, probes=asked, seed=5)
        assert np.abs(every.values - exact.values).max() < EXACT["float64"]
        assert every.meta["options"]["probes"] == 12
        assert every.stderr is not None
        assert not every.stderr.any()
    assert exact.stderr is None
    first = ch.hidden_token_attribution(trace, probes=3, seed=1)
    assert first.equals(ch.hidden_token_attribution(trace, probes=3, seed=1))
    assert np.abs(first.values - ch.hidden_token_attribution(trace, probes=3, seed=2).values).max() > 1e-3


def test_debias_subtracts_the_jackknifes_bias() -> None:
    trace = traced("bert")
    plain = ch.hidden_token_attribution(trace, probes=3)
    corrected = ch.hidden_token_attribution(trace, probes=3, debias=True)
    assert np.abs(corrected.values.sum(-1) - 1).max() < 1e-12
    assert 0 < np.abs(corrected.values - plain.values).max() < 0.1
    assert np.array_equal(corrected.stderr, plain.stderr)  # type: ignore[arg-type]


def test_meta_and_labels() -> None:
    trace = traced("bert")
    got = ch.hidden_token_attribution(trace, probes=3, seed=9, embedding="sum")
    assert got.dims == ("layer", "query", "key")
    assert got.tokens == {"query": trace.tokens, "key": trace.tokens}
    options = {"probes": 3, "norm": "frobenius", "embedding": "sum", "seed": 9, "debias": False}
    assert got.meta["options"] == options
    assert got.meta["seed"] == 9
    assert "jackknife" in got.meta["stderr"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probes": 1}, "got 1; allowed: None, or a whole number from 2"),
        ({"probes": 0}, "got 0"),
        ({"probes": True}, "got True"),
        ({"probes": 4.0}, "got 4.0"),
        ({"norm": "l2"}, "'frobenius', 'spectral'"),
        ({"seed": -1}, "seed; got -1"),
        ({"seed": "a"}, "seed; got 'a'"),
        ({"embedding": "input"}, "'output', 'sum'"),
        ({"probes": None, "debias": True}, "debias; got an exact norm"),
        ({"norm": "spectral", "debias": True}, "debias; got an exact norm"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InputError) as caught:
        ch.hidden_token_attribution(traced("bert"), **options)
    assert message in str(caught.value)


@dataclass(frozen=True)
class Elsewhere:
    """A model that, run from its token vectors, does not do what was traced."""

    model: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def from_embedding(self, trace: Any, embedding: Any) -> Any:
        x, f = self.model.from_embedding(trace, embedding)
        return x, lambda x: f(x) * torch.tensor([1.0, 1.001]).reshape(2, 1, 1)


def test_a_model_that_runs_otherwise_from_its_vectors_is_refused() -> None:
    trace = traced("bert")
    with pytest.raises(errors.ProofError, match=r"layer 1, run from the token vectors.*relative error 1\.0e-03"):
        ch.hidden_token_attribution(replace(trace, model=Elsewhere(trace.model)))  # pyright: ignore[reportArgumentType]


def state_of(hf: torch.nn.Module) -> list[Any]:
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for m in hf.modules()]
    return [hooks, hf.config._attn_implementation, [p.requires_grad for p in hf.parameters()]]  # type: ignore[union-attr]


@pytest.mark.parametrize("options", [{"probes": 4}, {"probes": None}, {"norm": "spectral"}])
def test_ctrl_c_leaves_nothing_on_the_model(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearhead.linalg.jacobian.CACHED", 1)  # chunks of 8 tangents
    hf, tokenizer = tiny("bert", torch.float64)
    hf.train()
    trace = ch.load((hf, tokenizer)).trace(words(5))
    before, calls = state_of(hf), []
    truth = ch.hidden_token_attribution(trace, **options)

    def interrupt(module: Any, args: Any) -> None:
        calls.append(1)
        if len(calls) == 4:  # the proof, the plan, the first chunk, the second
            raise KeyboardInterrupt

    hook = hf.encoder.layer[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        ch.hidden_token_attribution(trace, **options)
    hook.remove()
    assert len(calls) == 4
    assert state_of(hf) == before
    assert torch.is_grad_enabled()
    assert ch.hidden_token_attribution(trace, **options).equals(truth)


def test_progress_only_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced("bert")
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    ch.hidden_token_attribution(trace, probes=3)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    ch.hidden_token_attribution(trace, probes=3)
    out, err = capsys.readouterr()
    assert out == ""
    assert "hidden_token_attribution" in err
    monkeypatch.setattr(progress, "PATIENCE", 60.0)
    ch.hidden_token_attribution(trace, probes=3)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "folder", "ids", "embedding", "tolerance"),
    [
        ("gpt2", "01_gpt2_left_padding", "ids_gpt2", "output", 1e-6),
        ("gpt2", "01_gpt2_left_padding", "ids_gpt2", "sum", 1e-6),
        ("llama", "02_llama_left_padding", "ids_llama", "output", 1e-5),  # its norms are float32 inside
        ("bert_afterln", "03_bert_right_padding", "ids_bert", "output", 1e-6),
        ("bert", "03_bert_right_padding", "ids_bert", "sum", 1e-6),
    ],
)
def test_case_22(shared: Path, name: str, folder: str, ids: str, embedding: Any, tolerance: float) -> None:
    with np.load(shared / "cases" / "22_hta_causal.npz") as arrays:
        known, truth, wrong = list(arrays[ids]), arrays[f"hta_{name}"], arrays.get(f"wrong_last_{name}")
    model = ch.load(shared / "cases" / "models" / folder, dtype="float64")
    if name == "llama":  # its tokenizer adds <bos>, which the case leaves out
        model.tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing("$A")
    trace = model.trace(model.tokenizer.decode(known, skip_special_tokens=name.startswith("bert")))
    assert list(trace.tokens.ids or ()) == known
    got = ch.hidden_token_attribution(trace, probes=None, embedding=embedding).values
    assert np.abs(got / np.where(truth == 0, 1, truth) - (truth != 0)).max() < tolerance
    if name in ("gpt2", "llama"):
        assert (got[:, np.triu_indices(6, 1)[0], np.triu_indices(6, 1)[1]] == 0).all()
        assert wrong is not None
        assert np.abs(got[-1] - wrong / wrong.sum(-1, keepdims=True)).max() > 1e-3  # not after the final norm
