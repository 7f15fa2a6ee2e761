"""One row a model family: where its parts live, and which of its switches are followed.

Paths are relative to the base model (without its head) or to one layer; `*` stands for every child. To follow another
family, add a row here and a line in the families test; the proof decides whether the row is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from transformers import PretrainedConfig

from clearhead.errors import UnsupportedModel

FALSE = (False, None)


@dataclass(frozen=True)
class Paths:
    """Where a layer keeps the parts of its block (`clearhead.linalg.block`). Norms: before, on the output, after."""

    value: str
    up: str
    down: str
    gate: str | None = None
    attention_norms: tuple[str | None, str | None, str | None] = (None, None, None)
    feed_forward_norms: tuple[str | None, str | None, str | None] = (None, None, None)
    activation: str = "hidden_act"
    """The configuration's name for the activation function."""
    fused: Literal["", "thirds", "by head"] = ""
    """How `value` holds W_V where it is one projection for query, key and value."""
    gain_offset: float = 0.0
    """Added to the weight of a norm (Gemma keeps the gain minus 1)."""
    parallel: bool | str = False
    """True where attention and feed-forward part read the same state; or the configuration switch that says so."""


@dataclass(frozen=True)
class HeadPaths:
    """Where a head keeps its parts; `norm` (the final one) relative to the base model, the others to the model."""

    out: str
    dense: str | None = None
    activation: str | None = None
    norm: str | None = None


@dataclass(frozen=True)
class Family:
    """Where one family keeps what clearhead reads."""

    name: str
    layers: str
    """Path from the base model to the list of layers, in order of use."""
    output: str
    """Path from a layer to its output projection W_O."""
    paths: Paths
    heads: Mapping[str, HeadPaths] = field(default_factory=dict[str, HeadPaths])
    """End of a class's name -> where its head lives."""
    part: Literal["encoder", "decoder"] = "encoder"
    capture: Literal["registry", "hooks"] = "registry"
    """"registry": attention runs through transformers' registry of attention functions; "hooks": it does not."""
    attention: str = ""
    """Hooks only: path from a layer to the module that returns (output, probabilities)."""
    projections: tuple[str, str, str] = ("", "", "")
    """Hooks only: paths from a layer to the modules that give query, key and value."""
    embedding_norm: str | None = None
    """Path from the base model to the normalisation of the summed embeddings; None where there is none."""
    segments: bool = False
    """True where the two texts of a pair are told apart by token type ids."""
    padded_positions: bool = False
    """True where positions are counted from the padding id + 1 (RoBERTa)."""
    float32_inside: bool = False
    """True where softmax and normalisation run in float32 even when the model is float64."""
    allowed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Configuration switches that change the meaning of what is captured, with the values followed here."""

    def check(self, config: PretrainedConfig) -> None:
        """Errors: UnsupportedModel naming each switch of the configuration that is set to a value not followed."""
        wrong = {k: v for k, ok in self.allowed.items() if (v := getattr(config, k, ok[0])) not in ok}
        if wrong:
            raise UnsupportedModel(
                f"model family {self.name!r} is not followed with this configuration",
                got=", ".join(f"{key}={value!r}" for key, value in wrong.items()),
                allowed=", ".join(f"{key}={self.allowed[key][0]!r}" for key in wrong),
            )


CLASSIFIER, LANGUAGE = "ForSequenceClassification", "ForCausalLM"
CLASSIFICATION_HEAD = {CLASSIFIER: HeadPaths("classifier.out_proj", "classifier.dense", "tanh")}

BERT = Family(
    "bert",
    layers="encoder.layer",
    output="attention.output.dense",
    paths=Paths(
        value="attention.self.value",
        up="intermediate.dense",
        down="output.dense",
        attention_norms=(None, None, "attention.output.LayerNorm"),
        feed_forward_norms=(None, None, "output.LayerNorm"),
    ),
    heads={CLASSIFIER: HeadPaths("classifier", "bert.pooler.dense", "tanh")},
    embedding_norm="embeddings.LayerNorm",
    segments=True,
    allowed={"is_decoder": FALSE, "add_cross_attention": FALSE, "position_embedding_type": ("absolute", None)},
)
ROBERTA = replace(BERT, name="roberta", segments=False, padded_positions=True, heads=CLASSIFICATION_HEAD)
ELECTRA = replace(
    BERT, name="electra", heads={CLASSIFIER: HeadPaths("classifier.out_proj", "classifier.dense", "gelu")}
)
DISTILBERT = replace(
    BERT,
    name="distilbert",
    layers="transformer.layer",
    output="attention.out_lin",
    paths=Paths(
        value="attention.v_lin",
        up="ffn.lin1",
        down="ffn.lin2",
        attention_norms=(None, None, "sa_layer_norm"),
        feed_forward_norms=(None, None, "output_layer_norm"),
        activation="activation",
    ),
    heads={CLASSIFIER: HeadPaths("classifier", "pre_classifier", "relu")},
    segments=False,
    allowed={},
)
ALBERT = replace(
    BERT,
    name="albert",
    layers="encoder.albert_layer_groups.*.albert_layers",
    output="attention.dense",
    paths=Paths(
        value="attention.value",
        up="ffn",
        down="ffn_output",
        attention_norms=(None, None, "attention.LayerNorm"),
        feed_forward_norms=(None, None, "full_layer_layer_norm"),
    ),
    heads={CLASSIFIER: HeadPaths("classifier", "albert.pooler", "tanh")},
    allowed={"position_embedding_type": ("absolute", None)},
)
MPNET = Family(
    "mpnet",
    layers="encoder.layer",
    output="attention.attn.o",
    paths=replace(BERT.paths, value="attention.attn.v", attention_norms=(None, None, "attention.LayerNorm")),
    heads=CLASSIFICATION_HEAD,
    capture="hooks",
    attention="attention.attn",
    projections=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    embedding_norm="embeddings.LayerNorm",
    padded_positions=True,
)
GPT2 = Family(
    "gpt2",
    layers="h",
    output="attn.c_proj",
    paths=Paths(
        value="attn.c_attn",
        up="mlp.c_fc",
        down="mlp.c_proj",
        attention_norms=("ln_1", None, None),
        feed_forward_norms=("ln_2", None, None),
        activation="activation_function",
        fused="thirds",
    ),
    heads={"LMHeadModel": HeadPaths("lm_head", norm="ln_f"), CLASSIFIER: HeadPaths("score", norm="ln_f")},
    part="decoder",
    allowed={"add_cross_attention": FALSE, "reorder_and_upcast_attn": FALSE},
)
GPTJ = Family(
    "gptj",
    layers="h",
    output="attn.out_proj",
    paths=Paths(
        value="attn.v_proj",
        up="mlp.fc_in",
        down="mlp.fc_out",
        attention_norms=("ln_1", None, None),
        feed_forward_norms=("ln_1", None, None),
        activation="activation_function",
        parallel=True,
    ),
    heads={LANGUAGE: HeadPaths("lm_head", norm="ln_f"), CLASSIFIER: HeadPaths("score", norm="ln_f")},
    part="decoder",
    float32_inside=True,
)
GPT_NEOX = Family(
    "gpt_neox",
    layers="layers",
    output="attention.dense",
    paths=Paths(
        value="attention.query_key_value",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
        attention_norms=("input_layernorm", None, None),
        feed_forward_norms=("post_attention_layernorm", None, None),
        fused="by head",
        parallel="use_parallel_residual",
    ),
    heads={
        LANGUAGE: HeadPaths("lm_head", norm="final_layer_norm"),
        CLASSIFIER: HeadPaths("score", norm="final_layer_norm"),
    },
    part="decoder",
    float32_inside=True,
)
LLAMA = Family(
    "llama",
    layers="layers",
    output="self_attn.o_proj",
    paths=Paths(
        value="self_attn.v_proj",
        up="mlp.up_proj",
        down="mlp.down_proj",
        gate="mlp.gate_proj",
        attention_norms=("input_layernorm", None, None),
        feed_forward_norms=("post_attention_layernorm", None, None),
    ),
    heads={LANGUAGE: HeadPaths("lm_head", norm="norm"), CLASSIFIER: HeadPaths("score", norm="norm")},
    part="decoder",
    float32_inside=True,
)
MISTRAL = replace(LLAMA, name="mistral")
QWEN2 = replace(LLAMA, name="qwen2")
GEMMA3 = replace(
    LLAMA,
    name="gemma3_text",
    paths=replace(
        LLAMA.paths,
        attention_norms=("input_layernorm", "post_attention_layernorm", None),
        feed_forward_norms=("pre_feedforward_layernorm", "post_feedforward_layernorm", None),
        activation="hidden_activation",
        gain_offset=1.0,
    ),
    allowed={"use_bidirectional_attention": FALSE},
)

FAMILIES: dict[str, Family] = {
    row.name: row
    for row in (
        BERT, ROBERTA, DISTILBERT, ELECTRA, ALBERT, MPNET,
        GPT2, GPTJ, GPT_NEOX, LLAMA, MISTRAL, QWEN2, GEMMA3,
    )
}  # fmt: skip


def family_of(config: PretrainedConfig) -> Family:
    """The row of a configuration. Errors: UnsupportedModel saying what is missing."""
    kind = str(getattr(config, "model_type", ""))
    if kind in FAMILIES:
        FAMILIES[kind].check(config)
        return FAMILIES[kind]
    followed = ", ".join(FAMILIES)
    if not getattr(config, "num_attention_heads", None):
        raise UnsupportedModel(
            f"model type {kind!r} has no attention that clearhead could read",
            got="a configuration without attention heads",
            allowed=followed,
        )
    missing = "a row in models/families.py that says where its layers and output projections live"
    if getattr(config, "is_encoder_decoder", False):
        missing = "the capture of cross attention (encoder-decoder models)"
    raise UnsupportedModel(f"model family {kind!r} is not followed: what is missing is {missing}", allowed=followed)
