"""The registry of methods: the one list that command line, report, explorer and docs loop over.

A method is one file in this package with one public function under `@method(...)`. Method files do not import torch at
import time (the mathematics lives in `clearhead.linalg`, which loads on first use), so that the list is read at once.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from clearhead.errors import InputError, NotDefined
from clearhead.progress import bar
from clearhead.target import Goal, Target, spelled

if TYPE_CHECKING:
    from torch import Tensor

    from clearhead.maps import Map
    from clearhead.trace import Trace

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Method:
    """One method and what is said about it everywhere."""

    name: str
    function: Callable[..., Any]
    summary: str
    paper: str
    returns: Literal["map", "table"]
    dims: tuple[str, ...]
    unit: str
    laws: tuple[str, ...]
    residual: float | None = None
    """Share of the identity with which `Map.rollout` chains its layers; None: they may not be chained."""
    explains: bool = False
    """Whether it explains a target, its option `target`."""
    cost: str = ""
    can: str = ""
    """What it can tell."""
    cannot: str = ""
    """What it cannot tell."""

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The keyword options (name -> parameter with annotation and default), in order."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}

    @property
    def required(self) -> tuple[str, ...]:
        """Options without a default (such as the layer of an interval)."""
        return tuple(name for name, p in self.options.items() if p.default is p.empty)


_METHODS: dict[str, Method] = {}


def method(
    *,
    paper: str,
    dims: tuple[str, ...],
    unit: str,
    laws: tuple[str, ...] = (),
    returns: Literal["map", "table"] = "map",
    residual: float | None = None,
    explains: bool = False,
    cost: str = "",
    can: str = "",
    cannot: str = "",
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a function as the method of its own name. Its docstring's first line is the summary.

    `laws` names the invariants that the contract tests check: "rows sum to 1", "causal", "idempotent", ...
    `residual`: the share of the identity with which `Map.rollout` chains its layers. 0.5 where the numbers leave the
    residual connection out, 0 where it is in them, None where a product of the layers would mean nothing.
    `explains`: it explains one number of the model, its option `target`; `clearhead.compare` gives it its own.
    `cost`, `can`, `cannot`: what it takes, what it can and what it cannot tell, for its page of the documents.

    What takes longer than a second shows a progress bar (`clearhead.progress.bar`).
    """

    def register(function: Callable[P, R]) -> Callable[P, R]:
        summary = (inspect.getdoc(function) or "").partition("\n")[0].rstrip(".")
        name = function.__name__

        @functools.wraps(function)
        def shown(*args: P.args, **kwargs: P.kwargs) -> R:
            with bar(name):
                return function(*args, **kwargs)

        about = (summary, paper, returns, dims, unit, laws, residual, explains, cost, can, cannot)
        _METHODS[name] = Method(name, shown, *about)
        return shown

    return register


def methods() -> dict[str, Method]:
    """All methods by name, in alphabetical order."""
    package = importlib.import_module("clearhead.methods")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "registry":
            importlib.import_module(f"clearhead.methods.{module.name}")
    return dict(sorted(_METHODS.items()))


def find(name: str) -> Method:
    """The method of that name. Errors: InputError naming the nearest."""
    if name in _METHODS:
        return _METHODS[name]
    known = methods()
    if name not in known:
        near = get_close_matches(name, known, n=1)
        raise InputError(
            f"No method named {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""), allowed=", ".join(known)
        )
    return known[name]


def origin_of(trace: Trace, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The `meta` of a method's result: method, options, paper, model, versions, hash of the text, proof of the trace.

    `name` is that of a registered method. A `seed` among the options also stands by itself; `residual` says how
    `Map.rollout` chains it (a method whose options decide that overwrites it).
    """
    tokens, proof = trace.tokens, trace.proof
    text = tokens.text if tokens.pair is None else f"{tokens.text}\0{tokens.pair}"
    return {
        "method": name,
        "options": dict(options),
        "paper": _METHODS[name].paper,
        **({"residual": _METHODS[name].residual} if _METHODS[name].returns == "map" else {}),
        **trace.model.origin,
        "capture": trace.capture,
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "proof": {"kind": proof.kind, "worst": proof.worst, "tolerance": proof.tolerance, "precision": proof.precision},
        **({"seed": options["seed"]} if "seed" in options else {}),
    }


def layer_map(
    trace: Trace,
    name: str,
    options: Mapping[str, Any],
    layers: Sequence[Tensor],
    dims: tuple[str, ...] = ("layer", "query", "key"),
) -> Map:
    """The Map of a method from one tensor a layer, in float64 where the trace is, else in float32.

    `name` is that of a registered method, which gives the unit.
    """
    import numpy as np

    from clearhead.maps import Map

    kind = np.float64 if trace.hidden.element_size() == 8 else np.float32
    part = trace.part()
    tokens = {dim: side for dim, side in (("query", part.queries), ("key", part.keys)) if dim in dims}
    values = np.stack([layer.cpu().numpy() for layer in layers]).astype(kind, copy=False)
    values.flags.writeable = False  # so that the Map takes it as it is: it may be large
    return Map(values, dims, tokens=tokens, unit=_METHODS[name].unit, meta=origin_of(trace, name, options))


def head_mean(trace: Trace, name: str) -> list[Tensor]:
    """The mean over heads of each layer's attention [query, key], in float64.

    Errors: NotDefined where the trace recorded no attention; `name` is the method that asks.
    """
    found: list[Tensor] = []
    for layer in trace.layers:
        if layer.probabilities is None:
            raise NotDefined(
                f"{name} needs the attention itself",
                got=f"a trace with capture={trace.capture!r}",
                do='Trace the text with capture="full".',
            )
        found.append(layer.probabilities.double().mean(0))
    return found


def token_map(trace: Trace, name: str, options: Mapping[str, Any], target: Target, goal: Goal, values: Tensor) -> Map:
    """The Map (key,) of a method that explains a target, one number a token."""
    from clearhead.maps import Map

    meta = origin_of(trace, name, {"target": spelled(target), **options}) | {"target": goal.name, "value": goal.value}
    found = values.detach().cpu()
    kept = found.numpy() if trace.hidden.element_size() == 8 else found.float().numpy()
    return Map(kept, ("key",), tokens={"key": trace.part().keys}, unit=_METHODS[name].unit, meta=meta)
