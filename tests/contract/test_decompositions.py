"""The methods that decompose a block, on every family: against loops from the formulas, laws, and what they refuse."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

import clearhead as ch
from clearhead import errors, linalg
from clearhead.linalg.block import Affine, Block, FeedForward, Norms
from clearhead.models import structure
from tests import block_oracle as oracle
from tests.tiny import RECIPES, fill, tiny, word_tokenizer, words

# Float64 on both sides: some thousand roundings. Families with float32 inside (softmax, RMSNorm) hand over hidden
# states that their own float64 formula gives to 1e-7, layer by layer; the methods and the loops both start from them.
EXACT = {"float64": 1e-11, "float32": 1e-5}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in RECIPES),
    ("gpt_neox", {"use_parallel_residual": False}),
    ("gpt_neox", {"attention_bias": False}),
]
EVERY = pytest.mark.parametrize(("family", "changes"), CASES, ids=str)
DECODERS = ("gpt2", "gptj", "gpt_neox", "llama", "mistral", "qwen2", "gemma3_text")
METHODS: list[tuple[Callable[..., ch.Map], dict[str, Any]]] = [
    (ch.vector_norms, {}),
    (ch.residual_norms, {}),
    (ch.globenc, {}),
    (ch.alti, {}),
    (ch.decompx, {}),
    (ch.decompx, {"of": "blocks"}),
]


def traced(family: str, dtype: torch.dtype = torch.float64, text: str | None = None, **changes: Any) -> ch.Trace:
    seed = 3 if family == "albert" else 1  # with seed 1 a row of ALTI has no share, see below
    return ch.load(tiny(family, dtype, seed=seed, **changes)).trace(text or words(7))


def passes(trace: ch.Trace, family: str) -> list[oracle.Pass]:
    """Each block run by the loops, from the captured state before it."""
    model: Any = trace.model
    return [
        oracle.run(
            oracle.plain(family, model.layer_modules()[layer], model.config),
            trace.hidden[layer].double().numpy(),
            trace.layers[layer].probabilities.double().numpy(),  # type: ignore[union-attr]
        )
        for layer in range(len(trace.layers))
    ]


def close(found: Any, expected: Any, trace: ch.Trace) -> None:
    """Each number to the precision, relative to its layer's largest."""
    expected = np.asarray(expected)
    largest = np.abs(expected).max(axis=tuple(range(1, expected.ndim)), keepdims=True)
    np.testing.assert_allclose(np.asarray(found) / largest, expected / largest, rtol=0, atol=EXACT[trace.precision])


@EVERY
def test_loops_give_the_states_themselves(family: str, changes: dict[str, Any]) -> None:
    """The oracle's own proof: run from the state before, its blocks give the state after."""
    trace = traced(family, **changes)
    for layer, ran in enumerate(passes(trace, family)):
        np.testing.assert_allclose(ran.output, trace.hidden[layer + 1], rtol=0, atol=10 * EXACT[trace.precision])


@EVERY
def test_norms_equal_the_definition(family: str, changes: dict[str, Any]) -> None:
    trace = traced(family, **changes)
    runs = passes(trace, family)
    length = np.linalg.norm
    close(ch.vector_norms(trace), [length(ran.vectors.sum(0), axis=-1) for ran in runs], trace)
    close(ch.vector_norms(trace, per_head=True), [length(ran.vectors, axis=-1) for ran in runs], trace)
    for norm in (True, False):
        parts = [oracle.residual_parts(ran, norm=norm) for ran in runs]
        close(ch.residual_norms(trace, norm=norm), [length(part, axis=-1) for part in parts], trace)
    both = ch.residual_norms(trace).values - ch.residual_norms(trace, norm=False).values
    assert (np.abs(both).max() == 0) == (family in DECODERS)  # only post-norm blocks have a norm there


@EVERY
def test_mixing_ratios_equal_the_definition(family: str, changes: dict[str, Any]) -> None:
    trace = traced(family, **changes)
    runs = passes(trace, family)

    def ratios(parts: np.ndarray) -> list[float]:
        found = []
        for i in range(len(parts)):
            others = np.linalg.norm(sum(parts[i, j] for j in range(len(parts)) if j != i))
            found.append(others / (others + np.linalg.norm(parts[i, i])))
        return found

    expected: dict[Any, list[Any]] = {
        "Attn-W": [[1 - ran.weights[:, i, i].mean() for i in range(len(ran.x))] for ran in runs],
        "AttnRes-W": [[0.5 - 0.5 * ran.weights[:, i, i].mean() for i in range(len(ran.x))] for ran in runs],
        "Attn-N": [ratios(ran.vectors.sum(0)) for ran in runs],
        "AttnRes-N": [ratios(oracle.residual_parts(ran, norm=False)) for ran in runs],
        "AttnResLn-N": [ratios(oracle.residual_parts(ran, norm=True)) for ran in runs],
    }
    for kind, values in expected.items():
        found = ch.mixing_ratio(trace, kind=kind)
        np.testing.assert_allclose(found, values, rtol=0, atol=EXACT[trace.precision])
        assert found.dims == ("layer", "query") and found.values.min() >= 0 and found.values.max() <= 1
    assert ch.mixing_ratio(trace).equals(ch.mixing_ratio(trace, kind="AttnResLn-N"))


@EVERY
def test_globenc_equals_the_definition(family: str, changes: dict[str, Any]) -> None:
    trace = traced(family, **changes)
    expected = []
    for ran in passes(trace, family):
        parts = oracle.residual_parts(ran, norm=True)
        n = len(parts)
        for i in range(n):
            for j in range(n):
                parts[i, j] = oracle.of_part(ran.block.ff_after, parts[i, j], ran.total[i])
        expected.append(np.linalg.norm(parts, axis=-1))
    found = ch.globenc(trace)
    close(found, expected, trace)
    if family in DECODERS:
        np.testing.assert_array_equal(found, ch.residual_norms(trace))


@EVERY
def test_alti_equals_the_definition(family: str, changes: dict[str, Any]) -> None:
    trace = traced(family, **changes)
    expected = []
    for ran in passes(trace, family):
        parts, n = oracle.residual_parts(ran, norm=True), len(ran.x)
        near = np.zeros((n, n))
        for i in range(n):
            for j in range(n):
                distance = sum(abs(a - b) for a, b in zip(ran.middle[i], parts[i, j], strict=True))
                near[i, j] = max(0.0, sum(abs(a) for a in ran.middle[i]) - distance)
        expected.append(near / near.sum(1)[:, None])
    found = ch.alti(trace)
    close(found, expected, trace)
    np.testing.assert_allclose(found.values.sum(-1), 1, rtol=0, atol=1e-14)


@EVERY
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": "norm"},
        {"bias": None},
        {"slope": "GeLU_LA"},
        {"feed_forward": False},
        {"of": "blocks"},
    ],
    ids=str,
)
def test_decompx_equals_the_definition(family: str, changes: dict[str, Any], options: dict[str, Any]) -> None:
    trace = traced(family, text=words(4), **changes)
    if options.get("slope") == "GeLU_LA" and trace.model.block(0).feed_forward.gate is not None:
        with pytest.raises(errors.NotDefined, match=r"GeLU_LA' for a gated feed-forward.*Use slope='GeLU_ZO'"):
            ch.decompx(trace, slope="GeLU_LA")
        return
    rule, slope = options.get("bias", "absdot"), options.get("slope", "GeLU_ZO")
    forward = options.get("feed_forward", True)
    states, expected = None, []
    for layer, ran in enumerate(passes(trace, family)):
        states = oracle.carried(ran, None if options.get("of") else states, rule, slope, forward)
        expected.append(np.linalg.norm(np.array(states), axis=-1))
        summed = np.array(states).sum(1)
        if rule and forward:  # complete
            np.testing.assert_allclose(summed, trace.hidden[layer + 1], rtol=0, atol=30 * EXACT[trace.precision])
    close(ch.decompx(trace, **options), expected, trace)


@EVERY
def test_parts_sum_to_the_state(family: str, changes: dict[str, Any]) -> None:
    """Completeness after every block, for every rule that shares all; what is left out is left out."""
    trace = traced(family, **changes)
    gated = trace.model.block(0).feed_forward.gate is not None
    for rules in (linalg.Rules(), linalg.Rules(bias="norm"), *([] if gated else [linalg.Rules(slope="GeLU_LA")])):
        parts = None
        for layer in range(len(trace.layers)):
            parts = linalg.carry(trace.replay(layer), parts, rules)
            error = float((parts.sum(1) - trace.hidden[layer + 1]).abs().max() / trace.hidden[layer + 1].abs().max())
            assert error < EXACT[trace.precision]
    left_out = linalg.carry(trace.replay(0), None, linalg.Rules(feed_forward=False)).sum(1) - trace.hidden[1]
    assert float(left_out.abs().max()) > 0.1


@EVERY
def test_parts_of_the_attention_sum_to_it(family: str, changes: dict[str, Any]) -> None:
    """With what the docstring says is left out (b_O, beta) the parts of `residual_norms` are the state in the block."""
    for ran in passes(trace := traced(family, **changes), family):
        parts = oracle.residual_parts(ran, norm=True).sum(1)
        block = ran.block
        for i in range(len(ran.x)):
            left = oracle.of_part(block.on_output, block.output[1], ran.attention[i])
            left = oracle.of_part(block.after, left, ran.summed[i]) + (block.after[2] if block.after else 0)
            np.testing.assert_allclose(parts[i] + left, ran.middle[i], rtol=0, atol=EXACT[trace.precision])


@EVERY
def test_laws(family: str, changes: dict[str, Any]) -> None:
    trace = traced(family, **changes)
    for function, options in METHODS:
        found = function(trace, **options)
        assert found.values.min() >= 0 and found.values.dtype == np.float64
        future = np.triu(np.ones(found.values.shape[1:], dtype=bool), 1)
        if family in DECODERS:
            assert (found.values[:, future] == 0).all()
        elif function is not ch.alti:
            assert (found.values > 0).all()
    heads = ch.vector_norms(trace, per_head=True).values
    assert (ch.vector_norms(trace).values <= heads.sum(1) * (1 + 1e-12)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["bert", "gptj", "gemma3_text"])
def test_lower_precisions_come_near(family: str, dtype: torch.dtype) -> None:
    exact, rough = traced(family), traced(family, dtype)
    for function, options in METHODS:
        found, truth = function(rough, **options).values, function(exact, **options).values
        assert found.dtype == np.float32
        tolerance = 1e-4 if dtype == torch.float32 else 0.3
        assert np.abs(found - truth).max() < tolerance * truth.max()


def test_memory_budget_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from clearhead.linalg import carried, decompose

    trace = traced("llama", text=words(12))
    whole = [function(trace, **options).values for function, options in METHODS]
    monkeypatch.setattr(carried, "CHUNK", 1)
    monkeypatch.setattr(decompose, "BUDGET", 1)
    for (function, options), expected in zip(METHODS, whole, strict=True):
        np.testing.assert_allclose(function(trace, **options), expected, rtol=1e-12, atol=1e-15)


# What makes another block of it, for which family, and what notices.
FAULTS: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("values", "bert", lambda b: replace(b, value_bias=None)),
    ("values", "gpt_neox", lambda b: replace(b, value_weight=b.value_weight.flip(0))),
    ("values", "llama", lambda b: replace(b, value_weight=b.value_weight.flip(0))),
    ("output", "bert", lambda b: replace(b, norms=replace(b.norms, after=replace(b.norms.after, eps=1e-3)))),
    ("values", "albert", lambda b: replace(b, norms=Norms(before=b.norms.after))),
    ("output", "gptj", lambda b: replace(b, parallel=False)),
    ("output", "gpt2", lambda b: replace(b, parallel=True)),
    ("output", "gpt2", lambda b: replace(b, output_bias=None)),
    ("output", "mistral", lambda b: with_forward(b, gate=b.feed_forward.up, up=b.feed_forward.gate)),
    ("output", "qwen2", lambda b: with_forward(b, activation=torch.nn.functional.gelu)),
    ("output", "gemma3_text", lambda b: replace(b, norms=replace(b.norms, on_output=None))),
    ("output", "mpnet", lambda b: with_forward(b, down=replace(b.feed_forward.down, bias=None))),
]


def with_forward(block: Any, **changes: Any) -> Any:
    return replace(block, feed_forward=replace(block.feed_forward, **changes))


@pytest.mark.parametrize(("what", "family", "fault"), FAULTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_planted_fault_is_caught(
    what: str, family: str, fault: Callable[[Any], Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = traced(family, dtype)
    own = structure.block
    monkeypatch.setattr("clearhead.models.model.block", lambda *args: fault(own(*args)))
    for function, options in METHODS:
        with pytest.raises(errors.ProofError, match=r"layer 0: the block rebuilt from its parts does not give its"):
            function(trace, **options)
    with pytest.raises(errors.ProofError, match=f"its {what}"):
        trace.replay(0)


def test_gemma_without_its_offset_is_caught() -> None:
    hf, tokenizer = tiny("gemma3_text")
    model = ch.load((hf, tokenizer))
    row = replace(model.family, paths=replace(model.family.paths, gain_offset=0.0))
    with pytest.raises(errors.ProofError, match="its values"):
        ch.residual_norms(replace(model, family=row).trace(words(4)))


def test_adapters_in_a_block_are_refused() -> None:
    class Adapter(torch.nn.Linear):
        pass

    hf, tokenizer = tiny("bert")
    hf.encoder.layer[0].intermediate.dense.__class__ = Adapter
    trace = ch.load((hf, tokenizer)).trace(words(4))
    with pytest.raises(errors.UnsupportedModel, match=r"'intermediate.dense' is a Adapter; allowed: a plain linear"):
        ch.residual_norms(trace)


def test_without_attention_nothing_is_decomposed() -> None:
    trace = ch.load(tiny("bert")).trace(words(4), capture="outputs")
    for function, options in METHODS:
        with pytest.raises(errors.NotDefined, match=r"got a trace with capture='outputs'.*capture=\"full\""):
            function(trace, **options)


def test_alti_row_without_any_share_is_refused() -> None:
    """In this random model no part brings the state of one token nearer than none."""
    trace = ch.load(tiny("albert", torch.float64, seed=1)).trace(words(9))
    with pytest.raises(errors.NotDefined, match=r"alti: layer \d, query \d: no key brings the state nearer"):
        ch.alti(trace)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (ch.mixing_ratio, {"kind": "Attn"}, "mixing_ratio: kind; got 'Attn'; allowed: Attn-W, Attn-N, AttnRes-W"),
        (ch.alti, {"variant": "new"}, "alti: variant; got 'new'; allowed: 'correct', 'published'"),
        (ch.decompx, {"of": "vectors"}, "decompx: of; got 'vectors'; allowed: 'states', 'blocks', 'logits'"),
        (ch.decompx, {"bias": "none"}, "decompx: bias; got 'none'; allowed: 'absdot', 'norm', None"),
        (ch.decompx, {"slope": "ReLU"}, "decompx: slope; got 'ReLU'; allowed: 'GeLU_ZO', 'GeLU_LA'"),
        (ch.decompx, {"target": 1}, "decompx: target is for of='logits'; got target=1 with of='states'"),
        (ch.decompx, {"of": "logits", "target": 70}, "target; got 70; allowed: 0 to 69"),
        (ch.decompx, {"of": "logits", "target": -1}, "target; got -1; allowed: 0 to 69"),
    ],
)
def test_wrong_options_are_refused(function: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InputError) as caught:
        function(traced("gpt2", text=words(3)), **options)
    assert str(caught.value).startswith(message)


CLASSIFIERS: dict[str, type[Any]] = {
    "bert": tf.BertForSequenceClassification,
    "roberta": tf.RobertaForSequenceClassification,
    "electra": tf.ElectraForSequenceClassification,
    "albert": tf.AlbertForSequenceClassification,
    "distilbert": tf.DistilBertForSequenceClassification,
    "mpnet": tf.MPNetForSequenceClassification,
    "gpt2": tf.GPT2ForSequenceClassification,
    "gptj": tf.GPTJForSequenceClassification,
    "gpt_neox": tf.GPTNeoXForSequenceClassification,
    "llama": tf.LlamaForSequenceClassification,
    "mistral": tf.MistralForSequenceClassification,
    "qwen2": tf.Qwen2ForSequenceClassification,
    "gemma3_text": tf.Gemma3TextForSequenceClassification,
}


def classifier(family: str) -> ch.Model:
    recipe = RECIPES[family]
    model = fill(CLASSIFIERS[family](recipe.config(**recipe.options, num_labels=3)), 1).double().eval()
    return ch.load((model, word_tokenizer(recipe.tokenizer)))


@pytest.mark.parametrize("family", RECIPES)
def test_logit_parts_sum_to_the_logits(family: str) -> None:
    model = classifier(family)
    trace = model.trace(words(8))
    own = model.hf(**trace.inputs, **({"use_cache": False} if family in DECODERS else {})).logits[0].detach().numpy()
    for bias in ("absdot", "norm"):
        found = ch.decompx(trace, of="logits", bias=bias)  # type: ignore[arg-type]
        assert found.dims == ("target", "key") and found.values.shape == (3, len(trace.tokens))
        np.testing.assert_allclose(found.values.sum(1), own, rtol=0, atol=EXACT[trace.precision])
        assert found.values.min() < 0 < found.values.max()  # signed
    np.testing.assert_allclose(found.meta["logits"], own, rtol=0, atol=EXACT[trace.precision])
    assert found.meta["targets"] == ["LABEL_0", "LABEL_1", "LABEL_2"]
    one = ch.decompx(trace, of="logits", bias="norm", target=2)
    np.testing.assert_allclose(one.sel(target=2), found.sel(target=2), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("family", DECODERS)
def test_next_token_parts_sum_to_its_logit(family: str) -> None:
    trace = traced(family)
    model: Any = trace.model
    own = model.hf(**trace.inputs, use_cache=False).logits[0, -1].detach()
    found = ch.decompx(trace, of="logits")
    assert found.coords["target"] == (int(own.argmax()),) and found.unit == "logit"
    assert float(found.values.sum()) == pytest.approx(float(own.max()), abs=EXACT[trace.precision])
    other = ch.decompx(trace, of="logits", target=5)
    assert float(other.values.sum()) == pytest.approx(float(own[5]), abs=EXACT[trace.precision])


def test_head_equals_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pooler and classifier by loops, from the parts of the last state; also with the vocabulary taken in pieces."""
    from clearhead.linalg import carried

    monkeypatch.setattr(carried, "TARGETS", 2)
    model = classifier("bert")
    hf: Any = model.hf
    trace = model.trace(words(4))
    states = None
    for ran in passes(trace, "bert"):
        states = oracle.carried(ran, states, "absdot", "GeLU_ZO", True)
    assert states is not None
    (weight, bias), (last, last_bias) = oracle.linear(hf.bert.pooler.dense), oracle.linear(hf.classifier)
    z = weight @ trace.hidden[-1, 0].numpy() + bias
    parts = [p * np.tanh(z) / z for p in oracle.share([weight @ p for p in states[0]], bias, "absdot")]
    parts = oracle.share([last @ p for p in parts], last_bias, "absdot")
    np.testing.assert_allclose(ch.decompx(trace, of="logits").values.T, parts, rtol=0, atol=1e-12)


def test_models_without_a_head_have_no_logits() -> None:
    with pytest.raises(errors.NotDefined, match=r"logits of a BertModel: it has no head.*ForSequenceClassification"):
        ch.decompx(traced("bert", text=words(3)), of="logits")
    with pytest.raises(errors.NotDefined, match="logits without the feed-forward parts"):
        ch.decompx(traced("gpt2", text=words(3)), of="logits", feed_forward=False)


def test_a_random_head_has_no_logits(tmp_path: Path) -> None:
    """Weights of the encoder alone, loaded as a classifier: transformers makes its head at random."""
    hf, tokenizer = tiny("bert")
    hf.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = tf.BertConfig.from_pretrained(tmp_path)
    config.architectures = ["BertForSequenceClassification"]
    config.save_pretrained(tmp_path)
    trace = ch.load(tmp_path).trace(words(4))
    assert ch.decompx(trace).values.shape[0] == 2
    with pytest.raises(errors.NotDefined, match="hold no weights of its head; got classifier.bias, classifier.weight"):
        ch.decompx(trace, of="logits")


def test_a_wrong_head_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier("roberta")
    own = structure.head
    trace = model.trace(words(4))
    monkeypatch.setattr("clearhead.models.model.head", lambda *args: replace(own(*args), token=1))
    with pytest.raises(errors.ProofError, match="the logits rebuilt from the last state are not the model's own"):
        ch.decompx(trace, of="logits")


def test_activations_that_are_not_0_at_0_have_no_slope() -> None:
    trace = traced("bert", hidden_act="sigmoid")
    with pytest.raises(errors.NotDefined, match="slope act"):
        ch.decompx(trace)
    assert ch.decompx(trace, slope="GeLU_LA").values.shape[0] == 2


def test_cost_is_stated_before_it_starts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from clearhead.methods import decompx as file

    trace = traced("bert", text=words(4))
    ch.decompx(trace)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(file, "SECONDS", 0.0)
    ch.decompx(trace)
    assert capsys.readouterr().err == "decompx: 6 tokens: about 0 s on one thread, 0.0 GiB of memory\n"


def test_cost_counts_the_products() -> None:
    """12 heads of 64 in a width of 768, 3,072 inside, 512 tokens."""
    forward = FeedForward(Norms(), Affine(torch.empty(768, 3072)), Affine(torch.empty(3072, 768)), torch.tanh)
    big = Block(Norms(), torch.empty(12, 768, 64), None, torch.empty(12, 64, 768), None, forward)
    operations, size = linalg.carry_cost(big, 512)
    n, d = 512, 768
    assert operations == 2 * (n * n * d * d + n * n * d * d + n * n * n * d + 2 * n * n * d * 3072)
    assert size == 2 * n * n * d * 8
