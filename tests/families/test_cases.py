"""Small inputs that other tools get wrong, each against its right value (arrays beside the repository)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

import clearhead as ch
from clearhead import errors
from clearhead.models.families import FAMILIES

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason=f"the case arrays are not at {CASES}")


def arrays(case: str) -> dict[str, np.ndarray]:
    with np.load(CASES / f"{case}.npz", allow_pickle=False) as file:
        return dict(file)


def folder(name: str) -> Path:
    return CASES / "models" / name


def text_of(model: ch.Model, ids: np.ndarray) -> str:
    """The words of these ids, without what the tokenizer adds itself."""
    pieces = model.tokenizer.convert_ids_to_tokens([int(i) for i in ids])
    special = {"<bos>", "<eos>", "[CLS]", "[SEP]"}
    return " ".join(piece for piece in pieces if piece not in special)


def attention(trace: ch.Trace) -> np.ndarray:
    return torch.stack([layer.probabilities for layer in trace.layers]).double().numpy()  # type: ignore[arg-type]


def hidden(trace: ch.Trace) -> np.ndarray:
    return trace.hidden.double().numpy()


def test_every_case_is_followed_or_refused() -> None:
    for path in sorted((CASES / "models").iterdir()):
        kind = json.loads((path / "config.json").read_text())["model_type"]
        if kind in FAMILIES:
            ch.load(path)
        else:
            with pytest.raises(errors.UnsupportedModel, match="what is missing is"):
                ch.load(path)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-6), ("float32", 1e-5)])
@pytest.mark.parametrize(
    ("case", "name"), [("01_gpt2_left_padding", "hidden_last"), ("03_bert_right_padding", "hidden")]
)
def test_padded_batch_equals_alone(case: str, name: str, dtype: str, tolerance: float, side: str) -> None:
    right, model = arrays(case), ch.load(folder(case), dtype=dtype)
    model.tokenizer.padding_side = side
    for k, trace in enumerate(model.trace_many([text_of(model, right[f"ids_{k}"]) for k in range(3)])):
        assert trace.tokens.ids == tuple(right[f"ids_{k}"])
        assert attention(trace) == pytest.approx(right[f"att_{k}"], abs=tolerance)
        states = hidden(trace)[-1]
        if case.startswith("01"):  # the array holds the states after the final norm
            states = model.hf.transformer.ln_f(trace.hidden[-1]).detach().double().numpy()
        assert states == pytest.approx(right[f"{name}_{k}"], abs=tolerance * 10)


def test_null_space_without_padding() -> None:
    case = "03_bert_right_padding"
    right, model = arrays(case), ch.load(folder(case), dtype="float64")
    for k, trace in enumerate(model.trace_many([text_of(model, right[f"ids_{k}"]) for k in range(3)])):
        assert ch.effective_attention(trace).values == pytest.approx(right[f"eff_{k}"], abs=1e-6)
        table = ch.attention_identifiability(trace)
        assert np.array_equal(np.asarray(table["nullity"]).reshape(right[f"nullity_{k}"].shape), right[f"nullity_{k}"])


def test_group_order() -> None:
    right, model = arrays("07_gqa_order"), ch.load(folder("07_gqa_order"), dtype="float64")
    trace = model.trace(text_of(model, right["ids"]))
    assert attention(trace) == pytest.approx(right["att"], abs=2e-6)
    outputs = torch.stack([layer.head_output for layer in trace.layers]).numpy()
    assert outputs == pytest.approx(right["head_out"], rel=2e-6, abs=2e-6)


def test_causal_effective_attention() -> None:
    right, model = arrays("10_causal_effective"), ch.load(folder("01_gpt2_left_padding"), dtype="float64")
    trace = model.trace(text_of(model, right["ids"]))
    found = ch.effective_attention(trace).values
    assert found == pytest.approx(right["eff"], abs=1e-8)
    assert np.all(np.triu(found, 1) == 0.0)
    nullity = np.asarray(ch.attention_identifiability(trace, per_query=True)["nullity"])
    assert np.array_equal(nullity.reshape(right["nullity"].shape), right["nullity"])


def test_train_mode_is_traced_in_eval_and_given_back() -> None:
    right = arrays("12_train_mode")
    hf = tf.BertModel.from_pretrained(folder("12_train_mode"), dtype=torch.float64).train()
    hf.encoder.layer[0].eval()
    modes = [m.training for m in hf.modules()]
    model = ch.load((hf, tf.AutoTokenizer.from_pretrained(folder("12_train_mode"))))
    trace = model.trace(text_of(model, right["ids"]))
    assert attention(trace) == pytest.approx(right["att"], abs=1e-6)
    assert hidden(trace)[-1] == pytest.approx(right["hidden"], abs=1e-6)
    assert [m.training for m in hf.modules()] == modes


def test_half_precision_stays_within_its_own_error() -> None:
    right, model = arrays("13_minilm_bf16"), ch.load("demo", dtype="bfloat16")
    alone, _ = model.trace_many(["The cat sat on the mat because it was warm.", "The cat " * 9])
    assert alone.tokens.ids == tuple(right["ids"]) and alone.precision == "bfloat16"
    assert np.abs(attention(alone) - right["attw"]).max() <= 1.5 * right["max_bf16"]
    assert max(alone.proof.row_sum_error) <= 1.5 * right["rowsum_bf16"]


def test_overflow_is_refused_in_half_and_right_in_single_precision() -> None:
    right = arrays("14_fp16_overflow")
    half = ch.load(folder("14_fp16_overflow"), dtype="float16")
    text = text_of(half, right["ids"])
    with pytest.raises(errors.ProofError, match=r"layer 0: the attention weights hold NaN in float16.*dtype='float32'"):
        half.trace(text)
    assert attention(ch.load(folder("14_fp16_overflow")).trace(text)) == pytest.approx(right["att"], abs=1e-3)


def test_special_tokens_typed_and_added() -> None:
    right, model = arrays("18_special_tokens"), ch.load("demo")
    tokens = model.trace("[CLS] a [SEP] b").tokens
    assert tokens.ids == tuple(right["minilm_ids"])
    assert [{"text": 0, "template": 1, "typed": 2}[o] for o in tokens.origin] == right["minilm_special"].tolist()
    assert [list(span or (-1, -1)) for span in tokens.spans] == right["minilm_spans"].tolist()
    pair = model.trace("a cat", "a cat")
    assert pair.tokens.ids == tuple(right["pair_ids"])
    assert pair.inputs["token_type_ids"][0].tolist() == right["pair_types_right"].tolist()


def test_empty_text_is_refused_and_costs_no_other() -> None:
    right = arrays("20_empty_text")
    for name, key in [("03_bert_right_padding", "att_text"), ("01_gpt2_left_padding", "gpt2_att_text")]:
        model = ch.load(folder(name), dtype="float64")
        for texts, at in [(["", "w9 w12 w30"], 0), (["w9 w12 w30", ""], 1)]:
            found = model.trace_many(texts, errors="return")
            assert isinstance(found[at], errors.InputError) and f"text {at}" in str(found[at])
            assert attention(found[1 - at]) == pytest.approx(right[key], abs=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "count", "most"),
    [("21_too_long", 513, 512), ("01_gpt2_left_padding", 33, 32), ("02_llama_left_padding", 70, 64)],
)
def test_long_text_is_refused_with_both_lengths(name: str, count: int, most: int) -> None:
    model = ch.load(folder(name), dtype="float64")
    added = model.tokenizer.num_special_tokens_to_add(pair=False)
    with pytest.raises(errors.InputError, match=rf"got {count} tokens; allowed: at most {most}"):
        model.trace(" ".join(["w9"] * (count - added)))
    if count == 513:
        ids = arrays(name)["bert_ids"]
        with pytest.raises(errors.InputError, match="got 513 tokens"):
            model.trace(text_of(model, ids))


def test_two_models_in_turn_leave_everything_as_it_was() -> None:
    right = arrays("26_two_models")
    bert = tf.BertModel.from_pretrained(folder("03_bert_right_padding"), dtype=torch.float64).eval()
    llama = tf.LlamaForCausalLM.from_pretrained(folder("02_llama_left_padding"), dtype=torch.float64).eval()
    models = {
        "bert": ch.load((bert, tf.AutoTokenizer.from_pretrained(folder("03_bert_right_padding")))),
        "llama": ch.load((llama, tf.AutoTokenizer.from_pretrained(folder("02_llama_left_padding")))),
    }
    before = {name: state(model.hf) for name, model in models.items()}
    failing: list[Any] = [None]

    def fail(*_: Any) -> None:
        raise ArithmeticError("half way")

    for name in ["bert", "llama", "bert", "llama"]:
        model = models[name]
        if name == "llama" and failing[0] is None:
            failing[0] = llama.model.layers[1].register_forward_hook(fail)
            with pytest.raises(ArithmeticError, match="half way"):
                model.trace(text_of(model, right["ids_llama"]))
            failing[0].remove()
        trace = model.trace(text_of(model, right[f"ids_{name}"]))
        assert attention(trace) == pytest.approx(right[f"att_{name}"], abs=1e-6)
    assert {name: state(model.hf) for name, model in models.items()} == before


def state(model: Any) -> dict[str, Any]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode() + value.numpy().tobytes())
    return {
        "hooks": sum(
            len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()
        ),
        "attention": model.config._attn_implementation,
        "training": model.training,
        "registry": sorted(ALL_ATTENTION_FUNCTIONS.keys()),
        "weights": digest.hexdigest(),
        "replaced": [name for name, m in model.named_modules() if "forward" in vars(m)],
        "outputs": bool(model.config.output_attentions),
        "grad": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
    }


def test_capture_keeps_the_causal_mask() -> None:
    right, model = arrays("29_registry_mask"), ch.load(folder("02_llama_left_padding"), dtype="float64")
    trace = model.trace(text_of(model, right["ids"]))
    with torch.no_grad():
        logits = model.hf.lm_head(model.hf.model.norm(trace.hidden[-1]))
    assert logits.numpy() == pytest.approx(right["logits"], abs=5e-6)
