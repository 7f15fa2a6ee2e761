"""Effective attention: what of a head's attention can reach its output."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from clearhead import linalg
from clearhead.errors import InputError, NotDefined
from clearhead.maps import Map
from clearhead.methods.registry import layer_map, method
from clearhead.progress import each
from clearhead.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor

PARTS = ("effective", "null", "raw")


@method(
    paper="Brunner et al. 2020, On Identifiability in Transformers (arXiv 1908.04211), section 3",
    dims=("layer", "head", "query", "key"),
    unit="attention weight",
    laws=("same head output", "idempotent", "least norm", "nothing on hidden keys"),
    residual=0.5,
    cost="one pass and a null space a head; time ~ layers heads tokens^2 d_v",
    can="The part of attention that reaches the output of its head; the rest could be anything.",
    cannot="What comes after the head: it is a part of one head's weights, with signs, and no contribution.",
)
def effective_attention(
    trace: Trace, *, part: Literal["effective", "null", "raw"] = "effective", row_sum: bool = False
) -> Map:
    """Attention without its part in the null space of the values, which no head output can see.

    A_eff = A - A P, P the orthogonal projector on {x : x^T V W_O = 0}: A_eff V == A V, and no other attention with that
    output has a smaller norm. Entries may be negative; rows need not sum to 1. Each row is projected over the keys that
    it may see (beyond the paper, whose models see all), so weight on any other key is exactly 0. Query heads that share
    a value head share its null space.

    `part`: "effective", "null" (A - A_eff) or "raw" (A). `row_sum`: keep each row's sum as well; then the null part is
    what differs between distributions with the same output.
    Returns (layer, head, query, key), float64 where the trace is, else float32; factors and ranks are float64.
    `meta["rounding"]`: how far the rounding of the captured numbers may move a row, relative to its norm, at worst.
    Errors: NotDefined where the precision cannot decide a rank, or where the part needs probabilities that the trace
    did not record.
    """
    if part not in PARTS:
        raise InputError("effective_attention: part", got=repr(part), allowed=", ".join(PARTS))
    layers, worst = trace.layers, 1.0
    if part != "effective" and any(layer.probabilities is None for layer in layers):
        raise NotDefined(
            f"effective_attention: part={part!r} needs the attention itself",
            got=f"a trace with capture={trace.capture!r}",
            do='Trace the text with capture="full".',
        )
    values: list[Tensor] = []
    for index, layer in enumerate(each(layers)):
        if part == "raw" and layer.probabilities is not None:
            values.append(_shown(layer.probabilities))
            continue
        effective, condition = linalg.effective_attention(
            layer.value,
            layer.visible.start,
            layer.visible.stop,
            eps=trace.eps,
            probabilities=layer.probabilities,
            outputs=layer.head_output,
            directions=trace.model.output_directions(index),
            row_sum=row_sum,
        )
        worst = max(worst, condition)
        if part == "null" and layer.probabilities is not None:
            effective = layer.probabilities.to(effective.dtype) - effective
        values.append(_shown(effective))
    options = {"part": part, "row_sum": row_sum}
    made = layer_map(trace, "effective_attention", options, values, ("layer", "head", "query", "key"))
    meta = dict(made.meta)
    if part == "null":
        meta["residual"] = None  # no output can see it, so nothing of it is passed on
    if part != "raw":
        meta["rounding"] = worst * trace.eps
    return replace(made, meta=meta)


def _shown(weights: Tensor) -> Tensor:
    """float64 as it is, anything less in float32."""
    return weights if weights.element_size() == 8 else weights.float()
