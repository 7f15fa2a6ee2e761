"""The number that a target reads, as a differentiable function of the states, or the attention, of one block."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from clearhead.errors import NotDefined, ProofError
from clearhead.models.capture import attention_set_to, children, hooked, own_eager, quiet_model
from clearhead.models.families import Family
from clearhead.models.goals import untouched_inputs
from clearhead.target import Goal
from clearhead.trace import Trace

if TYPE_CHECKING:
    from clearhead.models.model import Model

TOLERANCE = 64
"""Times the square root of width x layers x epsilon: how far the number may lie from the untouched model's."""


class _Seen(Exception):
    """Ends a forward pass once the first block has given its output."""


def outcome(
    model: Model, trace: Trace, goal: Goal, depth: int, of: Literal["states", "attention"]
) -> Callable[[Tensor], Tensor]:
    """F(x) -> [batch], as `Runner.outcome` says. The model itself runs, eagerly; the blocks before `depth` hand their
    input on."""
    own_states = trace.hidden[depth].detach()
    own = own_states if of == "states" else trace.layers[depth].probabilities
    if own is None:
        got = f"a trace with capture={trace.capture!r}"
        raise NotDefined("gradients by attention need it recorded", got=got, do='Trace the text with capture="full".')
    tuples = _gives_tuple(model, trace)
    inputs = untouched_inputs(trace)
    options = dict(goal.options) | ({"use_cache": False} if model.family.part == "decoder" else {})
    hf: Any = model.hf.base_model if goal.base else model.hf

    def run(x: Tensor) -> Tensor:
        states = x if of == "states" else own_states.expand(len(x), *own_states.shape)
        attention, replaced = None if of == "states" else x, list[int]()
        with ExitStack() as stack:
            stack.enter_context(model._lock)  # pyright: ignore[reportPrivateUsage]
            modules = stack.enter_context(quiet_model(model.hf))
            if attention is None:
                stack.enter_context(attention_set_to(modules, "eager"))
            elif model.family.capture == "registry":
                stack.enter_context(_in_place(modules, attention, replaced))
            else:
                stack.enter_context(attention_set_to(modules, "eager"))
                stack.enter_context(_in_place_by_hooks(model.layer_modules()[depth], model.family, attention, replaced))
            stack.enter_context(_entered(model, states, depth, tuples=tuples))
            batch = {name: tensor.expand(len(x), -1) for name, tensor in inputs.items()}
            found = goal.of(hf(**batch, **options))
        if len(replaced) != (attention is not None):
            raise ProofError("the attention of one block was to be replaced", got=f"that of {len(replaced)}")
        return found

    with torch.no_grad():
        _prove(model, trace, goal, f"the model run from the {of} of block {depth}", float(run(own[None])))
    return run


def _prove(model: Model, trace: Trace, goal: Goal, what: str, found: float) -> None:
    """Errors: ProofError where the number is not the untouched model's."""
    assert goal.value is not None
    allowed = TOLERANCE * trace.eps * (model.width * model.layers) ** 0.5 * max(abs(goal.value), 1e-3)
    if not abs(found - goal.value) <= allowed:
        raise ProofError(
            f"{what} does not give the untouched model's {goal.name}",
            got=f"{found:.9g} for {goal.value:.9g}",
            allowed=f"a difference of {allowed:.2g}",
            do="A gradient of it would be wrong, so none is shown; please report the model and its versions.",
        )


@contextmanager
def _entered(model: Model, states: Tensor, depth: int, *, tuples: bool) -> Generator[None]:
    """Blocks before `depth` hand their input on, and block `depth` (or what follows the last) reads `states`."""
    calls = itertools.count()
    modules = list({id(module): module for module in model.layer_modules()}.values())

    def forward_of(own: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            call = next(calls)
            if call == depth:
                args, kwargs = ((states, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": states})
            if call >= depth:
                return own(*args, **kwargs)
            on = states if call == depth - 1 else args[0] if args else kwargs["hidden_states"]
            return (on,) if tuples else on

        return forward

    before = [module.__dict__.get("forward") for module in modules]
    try:
        for module in modules:
            module.forward = forward_of(module.forward)
        yield
    finally:
        for module, own in zip(modules, before, strict=True):
            if own is None:
                del module.forward
            else:
                module.forward = own
    if (count := next(calls)) != model.layers:
        raise ProofError("a differentiable run", got=f"{count} blocks", allowed=f"{model.layers}, once a layer")


@contextmanager
def _in_place(modules: Sequence[nn.Module], attention: Tensor, replaced: list[int]) -> Generator[None]:
    """Eager attention everywhere, with `attention` in place of the weights of the first block that runs."""
    calls = itertools.count()

    def attend(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **given: Any) -> Any:
        if call := next(calls):
            return own_eager(module)(module, q, k, v, mask, **given)
        replaced.append(call)
        return _weighted(attention, v).transpose(1, 2).contiguous(), attention

    name = f"clearhead_{uuid.uuid4().hex}"
    attentions, masks = AttentionInterface._global_mapping, AttentionMaskInterface._global_mapping  # pyright: ignore[reportPrivateUsage]
    try:
        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, eager_mask)
        with attention_set_to(modules, name):
            yield
    finally:
        attentions.pop(name, None)
        masks.pop(name, None)


@contextmanager
def _in_place_by_hooks(layer: nn.Module, family: Family, attention: Tensor, replaced: list[int]) -> Generator[None]:
    """The same for families outside the registries: what the output projection of the block reads is replaced."""
    value = list[Tensor]()

    def keep(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        value[:] = [output.unflatten(-1, (attention.shape[1], -1)).transpose(1, 2)]

    def put(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        replaced.append(0)
        return (_weighted(attention, value[0]).transpose(1, 2).flatten(2), *args[1:])

    with hooked(
        children(layer, family.projections[2])[0].register_forward_hook(keep),
        children(layer, family.output)[0].register_forward_pre_hook(put),
    ):
        yield


def _weighted(attention: Tensor, value: Tensor) -> Tensor:
    """[batch, head, query, value_width]; query heads share value heads in groups."""
    return attention @ value.repeat_interleave(attention.shape[1] // value.shape[1], 1)


def _gives_tuple(model: Model, trace: Trace) -> bool:
    """Whether a block gives its state in a tuple; the model runs up to its first block."""
    found: list[bool] = []

    def seen(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        found.append(isinstance(output, tuple))
        raise _Seen

    options: dict[str, Any] = {"use_cache": False} if model.family.part == "decoder" else {}
    with model._lock, torch.no_grad(), quiet_model(model.hf):  # pyright: ignore[reportPrivateUsage]
        handles = [module.register_forward_hook(seen) for module in {*model.layer_modules()}]
        with hooked(*handles), suppress(_Seen):
            model.hf.base_model(**untouched_inputs(trace), **options)
    return found[0]
