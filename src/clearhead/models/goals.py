"""Targets made ready for one model and text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clearhead.errors import InputError, NotDefined
from clearhead.target import SPELLINGS, Goal, Named, SimilarTo, Target, read_target
from clearhead.trace import Trace

if TYPE_CHECKING:
    from clearhead.models.model import Model


def goal_of(model: Model, trace: Trace, target: Target, *, logit: bool = False) -> Goal:
    """The goal for one text, with the number that the untouched model gives for it. A class or token stands for its
    probability (`logit=True`: its logit); None for the class or next token that the model itself finds most likely.

    Errors: InputError for a number out of range, an unknown label, a text that is not one token, or a function that
    gives no finite number; NotDefined for a class or next token of a model without that head.
    """
    wanted = read_target(target)
    if isinstance(wanted, SimilarTo):
        goal = _similar(model, wanted)
    elif isinstance(wanted, Goal):
        goal = wanted
    elif callable(wanted):
        goal = Goal(getattr(wanted, "__name__", type(wanted).__name__), _reads(model), wanted)
    else:
        goal = _logits(model, trace, wanted, target, logit=logit)
    value: Any = goal.of(goal.run(model.hf, untouched_inputs(trace)))
    if not isinstance(value, Tensor) or tuple(value.shape) != (1,) or not bool(value.isfinite().all()):
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"the target {goal.name!r}", got=got, allowed="one finite number a text")
    return replace(goal, value=float(value))


def untouched_inputs(trace: Trace) -> dict[str, Tensor]:
    """Of the untouched model, for the text of a trace."""
    return {name: tensor for name, tensor in trace.inputs.items() if name != "position_ids"}


def _reads(model: Model) -> Any:
    return "first" if model.family.part == "encoder" else "last"


def _logits(model: Model, trace: Trace, wanted: int | Named | None, target: Target, *, logit: bool) -> Goal:
    kind = type(model.hf).__name__
    classes = kind.endswith("ForSequenceClassification")
    vocabulary = kind.endswith(("ForCausalLM", "LMHeadModel"))
    asked = wanted.kind if isinstance(wanted, Named) else None
    if not (classes or vocabulary) or (asked == "class" and not classes) or (asked == "next" and not vocabulary):
        raise NotDefined(
            f"{'a class' if asked == 'class' else 'a next token' if asked == 'next' else 'a class or a next token'} "
            f"of a {kind}",
            got=f"target={target!r}",
            allowed="classes of a classifier, next tokens of a causal language model",
            do="Give a target: 'similar:TEXT' or SimilarTo(text), or a function of the model's output.",
        )
    options = {} if classes else {"use_cache": False, "logits_to_keep": 1}  # not a vocabulary for every position

    def chosen(output: Any) -> Tensor:
        return output.logits if classes else output.logits[:, -1]

    logits = chosen(Goal("logits", "first", chosen, options).run(model.hf, untouched_inputs(trace)))[0]
    number = wanted.which if isinstance(wanted, Named) else wanted
    if isinstance(number, str):
        number = _label(model, number) if classes else _token(model, number)
    index = int(logits.argmax()) if number is None else number
    if not 0 <= index < len(logits):
        raise InputError("target", got=repr(target), allowed=f"0 to {len(logits) - 1}")

    def of(output: Any) -> Tensor:
        found = chosen(output).double()
        return found[:, index] if logit else found.softmax(-1)[:, index]

    name = f"class {index}" if classes else f"next token {model.tokenizer.convert_ids_to_tokens(index)!r}"
    return Goal(f"{'logit' if logit else 'probability'} of {name}", _reads(model), of, options, index=index)


def _label(model: Model, label: str) -> int:
    """The number of a class by its label. Errors: InputError."""
    labels: dict[Any, Any] = getattr(model.hf.config, "id2label", None) or {}
    found = [int(k) for k, name in labels.items() if str(name) == label]
    if len(found) != 1:
        allowed = f"0 to {len(labels) - 1}, or {', '.join(map(str, labels.values()))}"
        raise InputError("target: no class of that label", got=repr(label), allowed=allowed)
    return found[0]


def _token(model: Model, text: str) -> int:
    """The token that a text is. Errors: InputError where it is not exactly one."""
    ids: list[int] = model.tokenizer(text, add_special_tokens=False)["input_ids"]  # pyright: ignore[reportAssignmentType]
    pieces = " + ".join(repr(piece) for piece in model.tokenizer.convert_ids_to_tokens(ids))
    if len(ids) != 1:
        raise InputError(f"target: {text!r} is not one token", got=pieces or "none", allowed=SPELLINGS)
    if ids[0] == model.tokenizer.unk_token_id:
        raise InputError(f"target: {text!r} is not in the vocabulary", got=pieces)
    return ids[0]


def _similar(model: Model, target: SimilarTo) -> Goal:
    if target.pooling not in ("first", "last", "mean"):
        raise InputError("SimilarTo: pooling", got=repr(target.pooling), allowed="'first', 'last', 'mean'")
    options = {"use_cache": False} if model.family.part == "decoder" else {}
    pooled = _pooling(target.pooling)
    goal = Goal(f"cosine with {target.text!r}", target.pooling, pooled, options, base=True)
    other = pooled(goal.run(model.hf, untouched_inputs(model.trace(target.text))))

    def cosine(output: Any) -> Tensor:
        return torch.nn.functional.cosine_similarity(pooled(output), other, dim=-1)

    return replace(goal, of=cosine)


def _pooling(pooling: str) -> Callable[[Any], Tensor]:
    """From a model's output to its pooled last states [batch, width], no token being padding."""

    def pooled(output: Any) -> Tensor:
        states = output.last_hidden_state.double()
        return states.mean(1) if pooling == "mean" else states[:, 0 if pooling == "first" else -1]

    return pooled
