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
class Family:
    """Where one family keeps what clearhead reads."""

    name: str
    layers: str
    """Path from the base model to the list of layers, in order of use."""
    output: str
    """Path from a layer to its output projection W_O."""
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


BERT = Family(
    "bert",
    layers="encoder.layer",
    output="attention.output.dense",
    embedding_norm="embeddings.LayerNorm",
    segments=True,
    allowed={"is_decoder": FALSE, "add_cross_attention": FALSE, "position_embedding_type": ("absolute", None)},
)
ROBERTA = replace(BERT, name="roberta", segments=False, padded_positions=True)
ELECTRA = replace(BERT, name="electra")
DISTILBERT = replace(
    BERT,
    name="distilbert",
    layers="transformer.layer",
    output="attention.out_lin",
    segments=False,
    allowed={},
)
ALBERT = replace(
    BERT,
    name="albert",
    layers="encoder.albert_layer_groups.*.albert_layers",
    output="attention.dense",
    allowed={"position_embedding_type": ("absolute", None)},
)
MPNET = Family(
    "mpnet",
    layers="encoder.layer",
    output="attention.attn.o",
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
    part="decoder",
    allowed={"add_cross_attention": FALSE, "reorder_and_upcast_attn": FALSE},
)
LLAMA = Family("llama", layers="layers", output="self_attn.o_proj", part="decoder", float32_inside=True)
MISTRAL = replace(LLAMA, name="mistral")
QWEN2 = replace(LLAMA, name="qwen2")
GEMMA3 = replace(LLAMA, name="gemma3_text", allowed={"use_bidirectional_attention": FALSE})

FAMILIES: dict[str, Family] = {
    row.name: row for row in (BERT, ROBERTA, DISTILBERT, ELECTRA, ALBERT, MPNET, GPT2, LLAMA, MISTRAL, QWEN2, GEMMA3)
}


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
