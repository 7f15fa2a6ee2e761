"""The interval in which a single weight of attention is free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from clearhead import linalg
from clearhead.errors import InputError, NotDefined
from clearhead.maps import Map
from clearhead.methods.registry import method, origin_of
from clearhead.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor


@method(
    paper="clearhead; after Brunner et al. 2020 (arXiv 1908.04211), section 3",
    dims=("bound", "key"),
    unit="attention weight",
    laws=("contains the weight", "a point where identifiable"),
    cost="one pass and two linear programs for each key of the query asked",
    can="Between which bounds a single weight could move with the output of its head unchanged.",
    cannot="Whether all weights can move so at once, or which of the values is the right one.",
)
def identifiable_interval(trace: Trace, *, layer: int, head: int, query: int) -> Map:
    """Lowest and highest value of each weight of a row among all distributions with the same head output.

    Over all a >= 0 on the keys that the query sees, with a V W_O = the head's output and the row's own sum: two linear
    programmes a key. The captured weight lies between; where the row is identifiable both bounds are that weight.
    Returns (bound, key), bound "low" and "high", float64; hidden keys have 0 and 0. `meta["nullity_row_sum"]`: number
    of directions in which the row is free.
    Errors: InputError for a layer, head or query that is not there; NotDefined without captured probabilities, where
    the precision cannot decide the rank, or where a programme has no solution.
    """
    row = attention_row("identifiable_interval", trace, layer=layer, head=head, query=query)
    bounds, free = linalg.weight_bounds(row.values, row.weights, trace.eps)
    meta = origin_of(trace, "identifiable_interval", {"layer": layer, "head": head, "query": query})
    return Map(
        row.among_all(bounds),
        ("bound", "key"),
        tokens={"key": trace.part().keys},
        unit="attention weight",
        meta={**meta, "nullity_row_sum": free},
    )


@dataclass(frozen=True)
class AttentionRow:
    """One captured row over the keys [start, stop) that its query sees, in float64.

    `values` are the value vectors as far as the output projection reads them, `written` what it makes of them, V W_O.
    """

    weights: Tensor
    values: Tensor
    written: Tensor
    start: int
    stop: int
    keys: int

    def among_all(self, visible: np.ndarray) -> np.ndarray:
        """Put [..., visible key] among all keys, 0 on hidden ones."""
        whole = np.zeros((*visible.shape[:-1], self.keys))
        whole[..., self.start : self.stop] = visible
        return whole


def attention_row(method_name: str, trace: Trace, *, layer: int, head: int, query: int) -> AttentionRow:
    """The row of one layer, head and query. Errors: InputError, NotDefined without probabilities."""
    _within(method_name, "layer", layer, len(trace.layers))
    captured = trace.layers[layer]
    if captured.probabilities is None:
        raise NotDefined(
            f"{method_name} needs the attention itself",
            got=f"a trace with capture={trace.capture!r}",
            do='Trace the text with capture="full".',
        )
    heads, queries, keys = captured.probabilities.shape
    _within(method_name, "head", head, heads)
    _within(method_name, "query", query, queries)
    start, stop = captured.visible.start[query], captured.visible.stop[query]
    visible, weight = captured.value[:, start:stop], trace.model.output_weight(layer)
    written = visible[head // (heads // len(visible))].double() @ weight[head].double()
    values = linalg.value_matrix(visible, trace.model.output_directions(layer), head)
    row = captured.probabilities[head, query, start:stop].double()
    return AttentionRow(row, values, written, start, stop, keys)


def _within(method_name: str, what: str, got: object, count: int) -> None:
    if isinstance(got, bool) or not isinstance(got, int | np.integer) or not 0 <= got < count:
        raise InputError(f"{method_name}: {what}", got=repr(got), allowed=f"0 to {count - 1}")
