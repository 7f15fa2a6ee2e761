"""One captured forward pass: what every attention layer read, weighted and gave, and the states between layers.

For families that run through transformers' registries, an attention function of ours is registered (with its mask
function: without one the causal mask would be lost) that calls the family's own eager function, or fused SDPA with
`capture="outputs"`, and records. The other families are read by hooks on the modules that their row names. Whatever is
changed on the model is put back, also after an exception.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from clearhead.errors import UnsupportedModel
from clearhead.models.families import Family
from clearhead.trace import Capture


@dataclass
class Call:
    """One call of an attention layer; tensors [batch, head, token, width]."""

    query: Tensor
    key: Tensor
    value: Tensor
    head_output: Tensor
    probabilities: Tensor | None
    mask: Tensor | None
    causal: bool
    scaling: float


@dataclass
class Recording:
    """Everything recorded in one forward pass, in the order of use."""

    calls: list[Call] = field(default_factory=list[Call])
    layers: list[nn.Module] = field(default_factory=list[nn.Module])
    """The layer modules as called (one shared module stands there once a call)."""
    states: list[Tensor] = field(default_factory=list[Tensor])
    """Depth 0..L: [batch, token, width]."""
    outputs: list[Tensor] = field(default_factory=list[Tensor])
    """What each layer's output projection gave: [batch, token, width]."""


def children(root: nn.Module, path: str) -> list[nn.Module]:
    """All modules at a dotted path; `*` stands for every child. Errors: UnsupportedModel where there are none."""
    found = [root]
    for name in path.split("."):
        found = [c for m in found for n, c in m.named_children() if name in ("*", n)]
    if not found:
        raise UnsupportedModel(f"{type(root).__name__} has no part {path!r} where its family keeps it")
    return found


def base_of(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its head."""
    return cast("PreTrainedModel", model.base_model)


def layers_of(base: nn.Module, family: Family) -> list[nn.Module]:
    """The distinct layer modules of the base model."""
    return [layer for listing in children(base, family.layers) for layer in listing.children()]


def first(output: Any) -> Tensor:
    """The tensor of a module that may return it alone or in front of a tuple."""
    return output[0] if isinstance(output, tuple) else output


@contextmanager
def attention_set_to(modules: Sequence[nn.Module], name: str) -> Generator[None]:
    """The attention implementation of every sub-model set to `name`, and each put back to its own afterwards."""
    configs = {id(m.config): m.config for m in modules if isinstance(m, PreTrainedModel)}
    before = {key: config._attn_implementation_internal for key, config in configs.items()}  # pyright: ignore[reportPrivateUsage]
    try:
        for config in configs.values():
            config._attn_implementation_internal = name  # pyright: ignore[reportPrivateUsage]
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation_internal = before[key]  # pyright: ignore[reportPrivateUsage]


@contextmanager
def quiet_model(model: PreTrainedModel) -> Generator[list[nn.Module]]:
    """The model (given as its modules) in eval mode, without autocast, without compilation; each module's own mode is
    put back afterwards."""
    modules = list(model.modules())
    training = [module for module in modules if module.training]
    try:
        for module in training:
            module.training = False
        with ExitStack() as stack:
            stack.enter_context(torch.autocast(model.device.type, enabled=False))
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield modules
    finally:
        for module in training:
            module.training = True


@contextmanager
def hooked(*handles: torch.utils.hooks.RemovableHandle) -> Generator[None]:
    """Hooks of ours, removed afterwards."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def states_into(recording: Recording, base: nn.Module, family: Family) -> Generator[None]:
    """Record what enters the first layer and what leaves each layer."""

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not recording.states:
            recording.states.append(args[0] if args else kwargs["hidden_states"])

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        recording.layers.append(module)
        recording.states.append(first(output))

    layers = layers_of(base, family)
    with hooked(
        *(layer.register_forward_pre_hook(enter, with_kwargs=True) for layer in layers),
        *(layer.register_forward_hook(leave) for layer in layers),
    ):
        yield


def own_eager(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """The eager attention function of the module's own family. Errors: UnsupportedModel where it has none."""
    function = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if function is None:
        raise UnsupportedModel(f"{type(module).__name__} has no eager attention function of its own family to call")
    return function


def open_blind_rows(**options: Any) -> Tensor | None:
    """The eager mask, except that a padding row that may see nothing sees everything.

    Such rows are never read, but in float64 they would become NaN and spread (0 x NaN) to real tokens.
    """
    mask = cast("Tensor | None", eager_mask(**options))
    if mask is None or options.get("attention_mask") is None:
        return mask
    return mask.masked_fill((mask < 0).all(-1, keepdim=True), 0.0)


@contextmanager
def registered(recording: Recording, modules: Sequence[nn.Module], capture: Capture) -> Generator[None]:
    """Record through the registries of attention and mask functions, under a name that exists only meanwhile."""

    def attend(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any) -> Any:
        full = capture == "full"
        extras = [name for name in ("s_aux", "softcap", "position_bias") if options.get(name) is not None]
        if extras and not full:
            raise UnsupportedModel(f'capture="outputs" does not follow {", ".join(extras)} in {type(module).__name__}')
        function = own_eager(module) if full else sdpa_attention_forward
        output, probabilities = function(module, q, k, v, mask, **options)
        scaling = options.get("scaling")
        recording.calls.append(
            Call(
                q,
                k,
                v,
                output.transpose(1, 2),
                probabilities,
                mask,
                causal=mask is None and not full and bool(getattr(module, "is_causal", True)),
                scaling=q.shape[-1] ** -0.5 if scaling is None else float(scaling),
            )
        )
        return output, None

    name = f"clearhead_{uuid.uuid4().hex}"
    attentions, masks = AttentionInterface._global_mapping, AttentionMaskInterface._global_mapping  # pyright: ignore[reportPrivateUsage]
    try:
        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, open_blind_rows if capture == "full" else sdpa_mask)
        with attention_set_to(modules, name):
            yield
    finally:
        attentions.pop(name, None)
        masks.pop(name, None)


@contextmanager
def hooked_modules(recording: Recording, base: nn.Module, family: Family, heads: int) -> Generator[None]:
    """Record by hooks on the modules that the family's row names (their own attention is eager)."""
    latest: dict[str, Tensor] = {}

    def split(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            latest[name] = output.unflatten(-1, (heads, -1)).transpose(1, 2)

        return hook

    def before_output(module: nn.Module, args: tuple[Any, ...]) -> None:
        latest["head_output"] = args[0].unflatten(-1, (heads, -1)).transpose(1, 2)

    def attended(module: nn.Module, args: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        query, key, value, head_output = (latest.pop(n) for n in ("query", "key", "value", "head_output"))
        scaling = query.shape[-1] ** -0.5
        recording.calls.append(Call(query, key, value, head_output, output[1], None, causal=False, scaling=scaling))

    with ExitStack() as stack:
        for layer in layers_of(base, family):
            for name, path in zip(("query", "key", "value"), family.projections, strict=True):
                stack.enter_context(hooked(children(layer, path)[0].register_forward_hook(split(name))))
            stack.enter_context(hooked(children(layer, family.output)[0].register_forward_pre_hook(before_output)))
            stack.enter_context(hooked(children(layer, family.attention)[0].register_forward_hook(attended)))
        yield


def record(
    model: PreTrainedModel, family: Family, inputs: Mapping[str, Tensor], capture: Capture, heads: int
) -> Recording:
    """Run the base model once on a batch, without gradients, and record it; the model is as before afterwards."""
    base, recording = base_of(model), Recording()

    def projected(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        recording.outputs.append(output)

    projections = [children(layer, family.output)[0] for layer in layers_of(base, family)]
    options: dict[str, Any] = {"use_cache": False} if family.part == "decoder" else {}
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        modules = stack.enter_context(quiet_model(model))
        if family.capture == "registry":
            stack.enter_context(registered(recording, modules, capture))
        else:
            stack.enter_context(hooked_modules(recording, base, family, heads))
            options["output_attentions"] = True
        stack.enter_context(states_into(recording, base, family))
        stack.enter_context(hooked(*(module.register_forward_hook(projected) for module in projections)))
        base(**inputs, **options)
    return recording


def untouched(model: PreTrainedModel, family: Family, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """The states of depth 0..L [batch, token, width] of a forward pass in the model's own attention.

    Nothing is set: no position ids, no attention function; only the states are read as they pass.
    """
    base, recording = base_of(model), Recording()
    options: dict[str, Any] = {"use_cache": False} if family.part == "decoder" else {}
    with torch.no_grad(), quiet_model(model), states_into(recording, base, family):
        base(**{name: value for name, value in inputs.items() if name != "position_ids"}, **options)
    return recording.states
