"""DecompX: every state, and the logits, as a sum of one part for each input token."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from clearhead import linalg
from clearhead.errors import InputError, NotDefined, ProofError
from clearhead.maps import Map
from clearhead.methods.registry import layer_map, method, origin_of
from clearhead.progress import each
from clearhead.target import Target, spelled
from clearhead.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor

    from clearhead.linalg.block import Head
    from clearhead.linalg.carried import Rules

SPEED = 3e10
"""Float64 operations a second of one thread, for the cost stated before it starts (measured: 2.5e10 to 4e10)."""
SECONDS, BYTES = 3.0, 2**30
"""What it may take before its cost is stated."""
GUARD = 1e-12
"""What the published code adds to every divisor."""
CHOICES: dict[str, tuple[Any, ...]] = {
    "of": ("states", "blocks", "logits"),
    "bias": ("absdot", "norm", None),
    "slope": ("GeLU_ZO", "GeLU_LA"),
    "variant": ("correct", "published"),
}


@method(
    paper="Modarressi et al. 2023, DecompX (arXiv 2306.02873), section 3",
    dims=("layer", "query", "key"),
    unit="norm of a vector; logit for of='logits'",
    laws=("parts sum to the state", "logit parts sum to the logit", "causal"),
    cost="one pass; time ~ layers tokens^2 width^2, memory ~ tokens^2 width",
    can="Which tokens a state, or a logit with its sign, is the sum of, feed-forward parts and biases included.",
    cannot="What would happen without a token: slopes, norms and attention weights are held as they were.",
)
def decompx(
    trace: Trace,
    *,
    of: Literal["states", "blocks", "logits"] = "states",
    target: Target = None,
    bias: Literal["absdot", "norm"] | None = "absdot",
    slope: Literal["GeLU_ZO", "GeLU_LA"] = "GeLU_ZO",
    feed_forward: bool = True,
    variant: Literal["correct", "published"] = "correct",
) -> Map:
    """Norm of each input token's part in each state, carried through all blocks; or its signed part in the logits.

    x_i = sum_k x_{i<-k}: the parts start as the tokens themselves and pass each block as the model's own pass makes it
    linear. Attention mixes them; a norm takes minus their mean, times the gain, over the spread of the whole; an
    activation multiplies by act(z) / z ("GeLU_ZO") or by act'(z), the rest shared as a bias ("GeLU_LA"); the gate of a
    gated feed-forward stands as the factor that it was (beyond the paper). A bias is shared in proportion to
    |part . bias| ("absdot") or || part || ("norm"); so the parts sum to the state, which is checked after every block.
    `bias=None` leaves biases out, `feed_forward=False` the feed-forward parts: then they do not. In the first block the
    value bias belongs to the token that it is added to; later it is shared with b_O (as published).

    `of`: "states", || x_{i<-k} || after each block as (layer, query, key); "blocks", the same of each block alone, its
    own input states as the sources; "logits", signed, as (target, key), through the final norm or the pooler (its
    activation by act(z) / z) and the classifier; they sum to the logits. `target`: one class or next token (None: all
    classes; of a vocabulary the most likely next token). `meta["logits"]` has the model's own.

    `variant="published"` adds 1e-12 to every divisor, as the authors' code does (1e-8 relative at 100 tokens).
    Cost: time ~ tokens^2 width^2 layers, memory ~ tokens^2 width; stated on stderr first where that is much.
    Errors: InputError for an option out of its range; NotDefined where the trace recorded no attention, for GeLU_LA
    with a gate, for logits without a head; ProofError where blocks, parts or logits do not rebuild the model's own.
    """
    options = {
        "of": of, "target": spelled(target), "bias": bias, "slope": slope,
        "feed_forward": feed_forward, "variant": variant,
    }  # fmt: skip
    for name, allowed in CHOICES.items():
        if options[name] not in allowed:
            raise InputError(f"decompx: {name}", got=repr(options[name]), allowed=", ".join(map(repr, allowed)))
    if target is not None and of != "logits":
        raise InputError("decompx: target is for of='logits'", got=f"target={spelled(target)!r} with of={of!r}")
    rules = linalg.Rules(bias, slope, feed_forward, GUARD if variant == "published" else 0.0)
    if of == "logits":
        return _logits(trace, target, rules, options)
    _state_cost(trace)
    norms: list[Tensor] = []
    parts: Tensor | None = None
    for layer in each(range(len(trace.layers))):
        parts = _carried(trace, layer, None if of == "blocks" else parts, rules)
        norms.append(parts.norm(dim=-1))
    found = layer_map(trace, "decompx", options, norms)
    return found if of == "states" else replace(found, meta={**found.meta, "residual": 0.0})


def _logits(trace: Trace, target: Target, rules: Rules, options: dict[str, Any]) -> Map:
    if not rules.feed_forward:
        raise NotDefined("decompx: logits without the feed-forward parts", got="feed_forward=False")
    head = trace.model.head(trace)
    targets = list(range(len(head.logits))) if head.labels else [int(head.logits.argmax())]
    if target is not None:
        goal = trace.model.goal(trace, target, logit=True)
        if goal.index is None:
            raise NotDefined(f"decompx: {goal.name} is no logit", allowed="a class or a next token")
        targets = [goal.index]
    _state_cost(trace)
    parts: Tensor | None = None
    for layer in each(range(len(trace.layers))):
        parts = _carried(trace, layer, parts, rules)
    assert parts is not None
    values, rebuilt, size = linalg.carry_head(head, parts[head.token], trace.hidden[-1, head.token], targets, rules)
    _prove_logits(trace, head, targets, values.sum(1) if _complete(rules) else rebuilt, size)
    meta = origin_of(trace, "decompx", options) | {"logits": head.logits[targets].double().tolist()}
    if head.labels:
        meta["targets"] = [head.labels[k] for k in targets]
    return Map(
        values.cpu().numpy() if trace.hidden.element_size() == 8 else values.float().cpu().numpy(),
        ("target", "key"),
        tokens={"key": trace.part().keys},
        unit="logit",
        meta=meta,
        coords={"target": tuple(targets)},
    )


def _complete(rules: Rules) -> bool:
    """True where the parts must sum to the whole."""
    return rules.bias is not None and rules.feed_forward and not rules.guard


def _carried(trace: Trace, layer: int, parts: Tensor | None, rules: Rules) -> Tensor:
    """The parts after a block. Errors: ProofError where they do not sum to the state, within the error of two passes of
    the model (3 sqrt(l + 2) times that of one layer, as in the proof of a trace)."""
    parts = linalg.carry(trace.replay(layer), parts, rules)
    if _complete(rules):
        error = linalg.row_errors(parts.sum(1), trace.hidden[layer + 1])
        allowed = 3 * trace.proof.tolerance * (layer + 2) ** 0.5
        if not error <= allowed:
            raise ProofError(
                f"decompx: layer {layer}: the parts do not sum to the state",
                got=f"relative error {error:.2g}",
                allowed=f"at most {allowed:.2g}",
                do="The parts would be wrong, so none are shown; please report the model and its versions.",
            )
    return parts


def _prove_logits(trace: Trace, head: Head, targets: list[int], rebuilt: Tensor, size: Tensor) -> None:
    """Errors: ProofError where logits come out otherwise than the model's own; `size` bounds each (|| w || || h ||)."""
    allowed = 3 * trace.proof.tolerance * (len(trace.layers) + 2) ** 0.5
    error = float(((rebuilt - head.logits[targets].double()).abs() / size).max())
    if not error <= allowed:
        raise ProofError(
            "decompx: the logits rebuilt from the last state are not the model's own",
            got=f"relative error {error:.2g}",
            allowed=f"at most {allowed:.2g}",
            do="The parts would be wrong, so none are shown; please report the model and its versions.",
        )


def _state_cost(trace: Trace) -> None:
    """One line on stderr where it will take more than `SECONDS` or `BYTES`."""
    operations, size = linalg.carry_cost(trace.model.block(0), len(trace.part().queries))
    seconds = operations * len(trace.layers) / SPEED
    if seconds > SECONDS or size > BYTES:
        tokens, memory = len(trace.part().queries), size / 2**30
        sys.stderr.write(f"decompx: {tokens} tokens: about {seconds:.0f} s on one thread, {memory:.1f} GiB of memory\n")
