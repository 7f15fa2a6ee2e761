"""How different a row of attention could be with nothing changing behind it."""

from __future__ import annotations

from clearhead import linalg
from clearhead.errors import InputError
from clearhead.maps import Map
from clearhead.methods.identifiable_interval import attention_row
from clearhead.methods.registry import method, origin_of
from clearhead.trace import Trace


@method(
    paper="clearhead; after Brunner et al. 2020 (arXiv 1908.04211), section 3",
    dims=("key",),
    unit="attention weight",
    laws=("same head output", "same row sum", "non-negative"),
    cost="one pass and a linear program for each query of the head asked",
    can=(
        "Another attention with the same output, as far from the model's own as there is: a counter-example to "
        "reading it."
    ),
    cannot="How likely that other attention is; it only exists.",
)
def farthest_attention(trace: Trace, *, layer: int, head: int, query: int, starts: int = 8, seed: int = 0) -> Map:
    """The distribution farthest from a row of attention found among those with the same head output.

    Farthest in total variation, TV = 1/2 sum_j |a_j - row_j|, over all a >= 0 on the keys that the query sees, with the
    same output of the head and the same sum. It is the largest *found*, from `starts` random starts: a lower bound of
    the largest there is (maximising a convex function has many local ends). The row itself where it is identifiable.
    Returns (key,), float64. `meta`: "total_variation", the share of the row's weight that moved; "residual", the
    relative change of the head's output, || (a - row) V W_O || / || row V W_O ||.
    Errors: InputError for a layer, head, query or number of starts that is not allowed; NotDefined without captured
    probabilities, where the precision cannot decide the rank, or where a linear programme has no solution.
    """
    if starts < 1:
        raise InputError("farthest_attention: starts", got=starts, allowed="1 or more")
    row = attention_row("farthest_attention", trace, layer=layer, head=head, query=query)
    weights, distance = linalg.farthest_weights(row.values, row.weights, trace.eps, starts=starts, seed=seed)
    options = {"layer": layer, "head": head, "query": query, "starts": starts, "seed": seed}
    found = {"total_variation": distance, "residual": linalg.relative_change(row.written, row.weights, weights)}
    return Map(
        row.among_all(weights),
        ("key",),
        tokens={"key": trace.part().keys},
        unit="attention weight",
        meta=origin_of(trace, "farthest_attention", options) | found,
    )
