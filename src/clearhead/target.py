"""What is explained: one number that the model gives for a text, and how it is spelled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from clearhead.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

Reads = Literal["first", "last", "mean"]
SPELLINGS = "class:1 (or its label), next:' Paris' (one token, or its id), similar:TEXT"


@dataclass(frozen=True)
class SimilarTo:
    """The target "how similar is this text to another": the cosine of the two pooled last states."""

    text: str
    pooling: Reads = "mean"


@dataclass(frozen=True)
class Goal:
    """A target made ready: `of(output of the model)` gives one number a text of the batch [batch].

    `reads`: the position whose row of a map stands for the target. `options` go to the model with its inputs;
    `base`: the model is run without its head. `index`: of a class or next token; `value`: what the untouched model
    gives for the text that it was made ready for.
    """

    name: str
    reads: Reads
    of: Callable[[Any], Tensor]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    base: bool = False
    index: int | None = None
    value: float | None = None

    def run(self, hf: Any, inputs: Mapping[str, Tensor]) -> Any:
        """The output of the transformers model `hf`, in eval mode, without gradients."""
        import torch

        training = [module for module in hf.modules() if module.training]
        try:
            for module in training:
                module.training = False
            with torch.no_grad(), torch.autocast(hf.device.type, enabled=False):
                return (hf.base_model if self.base else hf)(**inputs, **self.options)
        finally:
            for module in training:
                module.training = True


Target = int | str | SimilarTo | Goal | Callable[[Any], Any] | None
"""A class or next token by number; a spelling (`SPELLINGS`); the similarity to a text; a function of the model's output
for a batch that gives one number a text, alone or in a `Goal`; None, the model's own most likely class or next token.
"""


@dataclass(frozen=True)
class Named:
    """A class or next token as spelled: by number, or by text (its label, or the text of one token)."""

    kind: Literal["class", "next"]
    which: int | str


def read_target(target: Target) -> int | Named | SimilarTo | Goal | Callable[[Any], Any] | None:
    """A target with its spelling read: `class:1`, `next:" Paris"`, `similar:TEXT`; quotes around a text are dropped,
    and make of digits a text. Errors: InputError for another spelling, or what is no target."""
    if not isinstance(target, str):
        known = target is None or isinstance(target, (int, SimilarTo, Goal)) or callable(target)
        if isinstance(target, bool) or not known:
            raise InputError("target", got=repr(target), allowed=f"a whole number, a function, {SPELLINGS}")
        return target
    kind, colon, which = target.partition(":")
    quoted = len(which) > 1 and which[0] == which[-1] and which[0] in "'\""
    which = which[1:-1] if quoted else which
    if not colon or kind not in ("class", "next", "similar") or not which.strip():
        raise InputError("target", got=repr(target), allowed=SPELLINGS)
    if kind == "similar":
        return SimilarTo(which)
    number = not quoted and which.strip().isdecimal()
    return Named("class" if kind == "class" else "next", int(which) if number else which)


def spelled(target: Target) -> int | str | None:
    """A target as `meta` keeps it: as given, or its name."""
    if target is None or isinstance(target, (int, str)):
        return target
    if isinstance(target, SimilarTo):
        return f"similar:{target.text}" + ("" if target.pooling == "mean" else f" ({target.pooling} state)")
    return target.name if isinstance(target, Goal) else getattr(target, "__name__", type(target).__name__)
