"""The structure of a model's blocks and of its head as data, read from the modules that its family row names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.pytorch_utils import Conv1D

from clearhead.errors import NotDefined, UnsupportedModel
from clearhead.linalg.block import Affine, Block, FeedForward, Head, Norm, Norms
from clearhead.models.capture import base_of, children, quiet_model
from clearhead.models.families import Family, Paths


def affine(root: nn.Module, path: str) -> Affine:
    """The plain linear map at a path. Errors: UnsupportedModel for anything else (quantised, with adapters ...)."""
    module = children(root, path)[0]
    if type(module) is nn.Linear:
        weight = module.weight.detach().T
    elif type(module) is Conv1D:
        weight = module.weight.detach()
    else:
        raise UnsupportedModel(
            f"the module {path!r} is a {type(module).__name__}",
            allowed="a plain linear layer",
            do="Merge adapters and undo quantisation before loading the model.",
        )
    bias = cast("Tensor | None", module.bias)
    return Affine(weight, None if bias is None else bias.detach())


def norm(root: nn.Module, path: str | None, offset: float) -> Norm | None:
    """The norm at a path; None without a path. `offset` is added to its weight.

    Errors: UnsupportedModel for a module that is neither LayerNorm nor RMSNorm.
    """
    if path is None:
        return None
    module: Any = children(root, path)[0]
    if type(module) is nn.LayerNorm and module.elementwise_affine:
        bias = cast("Tensor | None", module.bias)
        return Norm("layer", module.weight.detach(), None if bias is None else bias.detach(), float(module.eps))
    if type(module).__name__.endswith("RMSNorm"):
        eps = getattr(module, "variance_epsilon", None) or module.eps
        return Norm("rms", module.weight.detach() + offset, None, float(eps))
    raise UnsupportedModel(f"the module {path!r} is a {type(module).__name__}", allowed="LayerNorm, RMSNorm")


def block(layer: nn.Module, family: Family, config: PretrainedConfig, heads: int, kv_heads: int) -> Block:
    """The block of a layer module. Errors: UnsupportedModel."""
    paths = family.paths
    value, output = affine(layer, paths.value), affine(layer, family.output)
    weight, bias = value.weight, value.bias
    if paths.fused == "thirds":  # query, key and value side by side
        weight, bias = weight.chunk(3, -1)[2], None if bias is None else bias.chunk(3, -1)[2]
    elif paths.fused == "by head":  # head after head, each with its query, key and value
        weight = weight.unflatten(-1, (heads, 3, -1))[..., 2, :].flatten(-2)
        bias = None if bias is None else bias.unflatten(-1, (heads, 3, -1))[:, 2].flatten()
    before, on_output, after = (norm(layer, path, paths.gain_offset) for path in paths.attention_norms)
    return Block(
        norms=Norms(before, on_output, after),
        value_weight=weight.unflatten(-1, (kv_heads, -1)).transpose(0, 1),
        value_bias=None if bias is None else bias.unflatten(-1, (kv_heads, -1)),
        output_weight=output.weight.unflatten(0, (heads, -1)),
        output_bias=output.bias,
        feed_forward=feed_forward(layer, paths, config),
        parallel=paths.parallel if isinstance(paths.parallel, bool) else bool(getattr(config, paths.parallel)),
    )


def feed_forward(layer: nn.Module, paths: Paths, config: PretrainedConfig) -> FeedForward:
    """The feed-forward part of a layer module."""
    before, on_output, after = (norm(layer, path, paths.gain_offset) for path in paths.feed_forward_norms)
    return FeedForward(
        norms=Norms(before, on_output, after),
        up=affine(layer, paths.up),
        down=affine(layer, paths.down),
        activation=ACT2FN[getattr(config, paths.activation)],
        gate=None if paths.gate is None else affine(layer, paths.gate),
    )


def head(
    model: PreTrainedModel, family: Family, inputs: Mapping[str, Tensor], random: tuple[str, ...], lock: Any
) -> Head:
    """The head of the model, with the logits that the untouched model gives for these inputs (a batch of one).

    Errors: NotDefined for a model without a head that is followed, or with one whose weights are random.
    """
    name = type(model).__name__
    kind = next((kind for kind in family.heads if name.endswith(kind)), None)
    if kind is None:
        raise NotDefined(
            f"the logits of a {name}: it has no head that clearhead follows",
            allowed=", ".join(family.heads) or "none in this family",
            do="Load a checkpoint of such a class.",
        )
    paths = family.heads[kind]
    used = [path for path in (paths.dense, paths.out) if path]
    missing = [key for key in random if any(key.startswith(path + ".") for path in used)]
    if missing:
        raise NotDefined(f"the logits of this {name}: the files hold no weights of its head", got=", ".join(missing))
    options: dict[str, Any] = {"use_cache": False} if family.part == "decoder" else {}
    own = {key: value for key, value in inputs.items() if key != "position_ids"}
    with lock, torch.no_grad(), quiet_model(model):
        logits = model(**own, **options).logits[0]
    softcap = getattr(model.config, "final_logit_softcapping", None)
    if softcap is not None:
        raise NotDefined("the logits of this model in parts: they are capped", got=f"final_logit_softcapping={softcap}")
    labels = getattr(model.config, "id2label", None) or {}
    classes = kind == "ForSequenceClassification"
    return Head(
        token=0 if family.part == "encoder" else -1,
        out=affine(model, paths.out),
        logits=logits if classes else logits[-1],
        norm=norm(base_of(model), paths.norm, family.paths.gain_offset),
        dense=None if paths.dense is None else affine(model, paths.dense),
        activation=None if paths.activation is None else ACT2FN[paths.activation],
        labels=tuple(str(labels.get(k, k)) for k in range(logits.shape[-1])) if classes else (),
    )
