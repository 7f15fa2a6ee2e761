"""What is explained: one number that the model gives for a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from clearhead.errors import InputError, NotDefined

if TYPE_CHECKING:
    from torch import Tensor

    from clearhead.models.model import Model
    from clearhead.trace import Trace

Reads = Literal["first", "last", "mean"]


@dataclass(frozen=True)
class SimilarTo:
    """The target "how similar is this text to another": the cosine of the two pooled last states."""

    text: str
    pooling: Reads = "mean"


@dataclass(frozen=True)
class Goal:
    """A target made ready: `of(output of the model)` gives one number a text of the batch [batch].

    `reads`: the position whose row of a map stands for the target. `options` go to the model with its inputs;
    `base`: the model is run without its head.
    """

    name: str
    reads: Reads
    of: Callable[[Any], Tensor]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    base: bool = False

    def run(self, model: Model, inputs: Mapping[str, Tensor]) -> Any:
        """The model's output, without gradients."""
        import torch

        hf: Any = model.hf.base_model if self.base else model.hf
        with torch.no_grad(), torch.autocast(model.hf.device.type, enabled=False):
            return hf(**inputs, **self.options)


Target = int | SimilarTo | Goal | Callable[[Any], Any] | None


def goal_of(model: Model, trace: Trace, target: Target) -> Goal:
    """The goal for one text. A number is a class (its probability) or a token of the vocabulary as the next one (its
    probability); None the class or next token that the model itself finds most likely; a function takes the model's
    own output for a batch and gives one number a text.

    Errors: InputError for a number out of range; NotDefined for a class or next token of a model without that head.
    """
    if isinstance(target, Goal):
        return target
    if isinstance(target, SimilarTo):
        return _similar(model, target)
    if callable(target):
        reads = "first" if model.family.part == "encoder" else "last"
        return Goal(getattr(target, "__name__", type(target).__name__), reads, target)
    kind = type(model.hf).__name__
    classes = kind.endswith("ForSequenceClassification")
    if not classes and not kind.endswith(("ForCausalLM", "LMHeadModel")):
        raise NotDefined(
            f"a class or a next token of a {kind}",
            got=f"target={target!r}",
            allowed="a classifier, a causal language model",
            do="Give target=SimilarTo(text) or a function of the model's output.",
        )
    options = {} if classes else {"use_cache": False, "logits_to_keep": 1}  # not a vocabulary for every position
    reads = "first" if model.family.part == "encoder" else "last"

    def chosen(output: Any) -> Tensor:
        return output.logits if classes else output.logits[:, -1]

    goal = Goal("logits", reads, chosen, options)
    logits = chosen(goal.run(model, _inputs(trace)))[0]
    index = int(logits.argmax()) if target is None else target
    if type(index) is not int or not 0 <= index < len(logits):
        raise InputError("compare: target", got=repr(target), allowed=f"0 to {len(logits) - 1}")

    def probability(output: Any) -> Tensor:
        return chosen(output).double().softmax(-1)[:, index]

    name = f"class {index}" if classes else f"next token {model.tokenizer.convert_ids_to_tokens(index)!r}"
    return replace(goal, name=f"probability of {name}", of=probability)


def _similar(model: Model, target: SimilarTo) -> Goal:
    if target.pooling not in ("first", "last", "mean"):
        raise InputError("SimilarTo: pooling", got=repr(target.pooling), allowed="'first', 'last', 'mean'")
    options = {"use_cache": False} if model.family.part == "decoder" else {}

    def pooled(output: Any) -> Tensor:
        return _pooled(output.last_hidden_state.double(), target.pooling)

    goal = Goal(f"cosine with {target.text!r}", target.pooling, pooled, options, base=True)
    other = pooled(goal.run(model, _inputs(model.trace(target.text))))

    def cosine(output: Any) -> Tensor:
        import torch

        return torch.nn.functional.cosine_similarity(pooled(output), other, dim=-1)

    return replace(goal, of=cosine)


def _pooled(states: Tensor, pooling: str) -> Tensor:
    """[batch, width] of [batch, token, width], no token being padding."""
    return states.mean(1) if pooling == "mean" else states[:, 0 if pooling == "first" else -1]


def _inputs(trace: Trace) -> dict[str, Tensor]:
    """Of the untouched model, for the text of a trace."""
    return {name: tensor for name, tensor in trace.inputs.items() if name != "position_ids"}
