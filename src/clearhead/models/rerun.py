"""The model as a differentiable function of its token vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from clearhead.models.capture import attention_set_to, base_of, children, first, hooked, layers_of, quiet_model
from clearhead.models.families import Family
from clearhead.trace import Embedding


class _Read(Exception):
    """Ends a forward pass once the token vectors are read."""


def from_embedding(
    model: PreTrainedModel, family: Family, inputs: Mapping[str, Tensor], embedding: Embedding, lock: Any
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """(x, f) as `Model.from_embedding` describes. Attention runs eagerly: fused kernels have no forward mode."""
    base = base_of(model)
    layers = layers_of(base, family)
    at_norm = embedding == "sum" and family.embedding_norm is not None
    entries = children(base, family.embedding_norm or "") if at_norm else layers
    options: dict[str, Any] = {"use_cache": False} if family.part == "decoder" else {}

    def run(enter: Callable[[Tensor], Tensor], states: list[Tensor]) -> None:
        entered: list[bool] = []

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if entered:
                return None
            entered.append(True)
            if args:
                return (enter(args[0]), *args[1:]), kwargs
            return args, kwargs | {"hidden_states": enter(kwargs["hidden_states"])}

        def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            states.append(first(output)[0])

        with ExitStack() as stack:
            stack.enter_context(lock)
            modules = stack.enter_context(quiet_model(model))
            stack.enter_context(attention_set_to(modules, "eager"))
            stack.enter_context(hooked(*(m.register_forward_pre_hook(before, with_kwargs=True) for m in entries)))
            stack.enter_context(hooked(*(layer.register_forward_hook(after) for layer in layers)))
            base(**inputs, **options)

    def read() -> Tensor:
        found: list[Tensor] = []

        def keep(x: Tensor) -> Tensor:
            found.append(x[0].detach())
            raise _Read

        try:
            with torch.no_grad():
                run(keep, [])
        except _Read:
            pass
        return found[0]

    def states_after(x: Tensor) -> Tensor:
        states: list[Tensor] = []
        run(lambda _: x[None], states)
        return torch.stack(states)

    return read(), states_after
