"""Tiny random models of every family, with tokenizers, made on the spot: odd sizes, no bias zero, spread logits."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers as tf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

WORDS = 60
SMALL: dict[str, Any] = {
    "vocab_size": 70,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "intermediate_size": 17,
    "max_position_embeddings": 64,
}
ROPE: dict[str, Any] = {
    "vocab_size": 70,
    "hidden_size": 20,
    "intermediate_size": 23,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
GEMMA: dict[str, Any] = ROPE | {
    "num_hidden_layers": 3,
    "query_pre_attn_scalar": 9,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}


@dataclass(frozen=True)
class Recipe:
    """How to build one family: configuration, class, and the kind of tokenizer."""

    config: type[Any]
    cls: type[Any]
    options: dict[str, Any]
    tokenizer: str


RECIPES: dict[str, Recipe] = {
    "bert": Recipe(tf.BertConfig, tf.BertModel, SMALL | {"num_hidden_layers": 2}, "bert"),
    "roberta": Recipe(
        tf.RobertaConfig,
        tf.RobertaModel,
        SMALL | {"num_hidden_layers": 2, "type_vocab_size": 1, "pad_token_id": 1},
        "roberta",
    ),
    "distilbert": Recipe(
        tf.DistilBertConfig,
        tf.DistilBertModel,
        {"vocab_size": 70, "dim": 12, "n_heads": 3, "n_layers": 2, "hidden_dim": 17, "max_position_embeddings": 64},
        "bert",
    ),
    "electra": Recipe(tf.ElectraConfig, tf.ElectraModel, SMALL | {"num_hidden_layers": 2, "embedding_size": 7}, "bert"),
    "albert": Recipe(
        tf.AlbertConfig,
        tf.AlbertModel,
        SMALL | {"num_hidden_layers": 4, "embedding_size": 7, "num_hidden_groups": 2, "inner_group_num": 2},
        "bert",
    ),
    "mpnet": Recipe(tf.MPNetConfig, tf.MPNetModel, SMALL | {"num_hidden_layers": 2, "pad_token_id": 1}, "roberta"),
    "gpt2": Recipe(
        tf.GPT2Config,
        tf.GPT2LMHeadModel,
        {
            "vocab_size": 70,
            "n_embd": 15,
            "n_head": 3,
            "n_layer": 3,
            "n_positions": 64,
            "bos_token_id": 2,
            "eos_token_id": 3,
            "pad_token_id": 0,
        },
        "bare",
    ),
    "gptj": Recipe(
        tf.GPTJConfig,
        tf.GPTJForCausalLM,
        {
            "vocab_size": 70,
            "n_embd": 18,
            "n_head": 3,
            "n_layer": 2,
            "n_inner": 25,
            "n_positions": 64,
            "rotary_dim": 4,
            "bos_token_id": 2,
            "eos_token_id": 3,
            "pad_token_id": 0,
        },
        "bare",
    ),
    "gpt_neox": Recipe(
        tf.GPTNeoXConfig,
        tf.GPTNeoXForCausalLM,
        SMALL
        | {
            "hidden_size": 24,
            "num_hidden_layers": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            "bos_token_id": 2,
            "eos_token_id": 3,
            "pad_token_id": 0,
        },
        "bare",
    ),
    "llama": Recipe(tf.LlamaConfig, tf.LlamaForCausalLM, ROPE | {"attention_bias": True}, "bos"),
    "mistral": Recipe(tf.MistralConfig, tf.MistralForCausalLM, ROPE | {"sliding_window": 5}, "bos"),
    "qwen2": Recipe(
        tf.Qwen2Config,
        tf.Qwen2ForCausalLM,
        {k: v for k, v in ROPE.items() if k != "head_dim"} | {"hidden_size": 24},
        "bare",
    ),
    "gemma3_text": Recipe(tf.Gemma3TextConfig, tf.Gemma3ForCausalLM, GEMMA, "bos"),
}


def fill(model: Any, seed: int, std: float = 0.3) -> Any:
    """Weights from the parameter's name, so that every bias counts and no torch seed matters."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(tuple(parameter.shape))
            norm = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(torch.tensor(1 + 0.15 * noise if norm else std * noise, dtype=parameter.dtype))
    return model


def word_tokenizer(kind: str) -> Any:
    """Words w0 .. w59 parted by white space. `kind`: "bert", "roberta", "bos" (one token in front) or "bare"."""
    special = ["<pad>", "<unk>", "<bos>", "<eos>", "<mask>"]
    vocabulary = {piece: k for k, piece in enumerate(special + [f"w{k}" for k in range(WORDS)])}
    if kind == "roberta":  # RoBERTa's padding id is 1
        vocabulary["<pad>"], vocabulary["<unk>"] = 1, 0
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.decoder = decoders.WordPiece()
    around = [("<bos>", 2), ("<eos>", 3)]
    if kind == "bert":
        raw.post_processor = processors.TemplateProcessing("<bos> $A <eos>", "<bos> $A <eos> $B:1 <eos>:1", around)
    elif kind == "roberta":
        raw.post_processor = processors.TemplateProcessing(
            "<bos> $A <eos>", "<bos> $A <eos> <eos> $B:1 <eos>:1", around
        )
    elif kind == "bos":
        raw.post_processor = processors.TemplateProcessing("<bos> $A", "<bos> $A $B:1", around[:1])
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
        mask_token="<mask>",
    )


def tiny(
    family: str, dtype: torch.dtype = torch.float32, seed: int = 1, attention: str | None = None, **changes: Any
) -> tuple[Any, Any]:
    """(model, tokenizer) of a family, in eval mode, in its own default attention unless `attention` names another."""
    recipe = RECIPES[family]
    options = recipe.options | changes | ({} if attention is None else {"attn_implementation": attention})
    model = fill(recipe.cls(recipe.config(**options)), seed).to(dtype).eval()
    return model, word_tokenizer(recipe.tokenizer)


def words(count: int, seed: int = 0) -> str:
    """A text of so many words, repeated ones among them."""
    return " ".join(f"w{k}" for k in np.random.default_rng(seed).integers(0, WORDS, count))
