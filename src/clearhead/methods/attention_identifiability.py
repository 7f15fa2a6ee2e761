"""The certificate: whether a head's output determines its attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clearhead import linalg
from clearhead.maps import Table
from clearhead.methods.registry import method, origin_of
from clearhead.progress import each
from clearhead.trace import Layer, Trace

if TYPE_CHECKING:
    from clearhead.linalg.rank import Spectrum

FIRM = 1e3
"""A rank is firm where the singular values on either side of the decision differ by this factor."""

ABOUT = {
    "layer": "block, from 0",
    "head": "attention head, from 0",
    "kv_head": "value head that it reads; heads that read one value head share its null space",
    "query": "token whose row of attention it is",
    "keys": "number of keys that the query sees",
    "d_v": "width of a value vector",
    "rank": "rank of the visible values, as far as the output projection reads them",
    "nullity": "dimension of the null space: keys - rank",
    "nullity_row_sum": "dimension of the null space of rows that keep their sum: keys - rank [V, 1]",
    "smallest_kept": "smallest singular value counted into the rank, relative to the largest",
    "largest_dropped": "largest singular value not counted, relative to the largest; 0 where none is left",
    "smallest_kept_row_sum": "the same for [V, 1]",
    "largest_dropped_row_sum": "the same for [V, 1]",
    "verdict": "identifiable, not identifiable, or uncertain",
}


@method(
    paper="Brunner et al. 2020, On Identifiability in Transformers (arXiv 1908.04211), section 3",
    dims=("layer", "head"),
    unit="verdict",
    returns="table",
    cost="one pass and a singular value decomposition a head; time ~ layers heads tokens d_v^2",
    can="Whether a head's attention is determined by what the head puts out, and by how many dimensions it is not.",
    cannot="Whether the attention explains anything: a weight can be determined and still not matter.",
)
def attention_identifiability(trace: Trace, *, per_query: bool = False) -> Table:
    """Whether each head's output determines its attention, with the ranks and how firm they are.

    A row of attention over `keys` visible keys is determined by its output and its sum where [V, 1] has full row rank:
    `identifiable` where nullity_row_sum = 0, else `not identifiable`. `uncertain` where a rank is not firm: the
    singular values on either side of a decision (of V or of [V, 1]) are closer than a factor 1000; where nothing is
    dropped, the smallest is held against the machine epsilon of the lowest precision on the path instead.
    A singular value counts where s > s_max * max(keys, d_v) * epsilon. Ranks are measured in float64, never inferred
    from keys <= d_v. The column of ones has the size of V's entries.
    `per_query`: a row for each query (they differ under causal or windowed masks); otherwise a head's row is that of
    its last query. Errors: NotDefined where the precision cannot decide a rank.
    """
    rows: list[dict[str, Any]] = []
    for index, layer in enumerate(each(trace.layers)):
        rows += _rows(index, layer, trace, per_query=per_query)
    names = [name for name in ABOUT if per_query or name != "query"]
    return Table(
        {name: np.array([row[name] for row in rows]) for name in names},
        about={name: ABOUT[name] for name in names},
        meta=origin_of(trace, "attention_identifiability", {"per_query": per_query}),
    )


def _rows(index: int, layer: Layer, trace: Trace, *, per_query: bool) -> list[dict[str, Any]]:
    every = list(zip(layer.visible.start, layer.visible.stop, strict=True))
    asked = range(len(every)) if per_query else [len(every) - 1]
    distinct = list(dict.fromkeys(every[query] for query in asked))
    directions = trace.model.output_directions(index)
    found = dict(zip(distinct, linalg.certificate(layer.value, directions, distinct, trace.eps), strict=True))
    group = len(directions) // len(layer.value)
    return [
        {"layer": index, "head": head, "kv_head": head // group, "query": query, "d_v": layer.value.shape[-1]}
        | _verdict(*found[every[query]][head], trace.eps)
        for head in range(len(directions))
        for query in asked
    ]


def _verdict(values: Spectrum, with_ones: Spectrum, eps: float) -> dict[str, Any]:
    firm = all(
        spectrum.rank == 0 or spectrum.kept > FIRM * (spectrum.dropped if spectrum.nullity else eps)
        for spectrum in (values, with_ones)
    )
    return {
        "keys": values.rows,
        "rank": values.rank,
        "nullity": values.nullity,
        "nullity_row_sum": with_ones.nullity,
        "smallest_kept": values.kept,
        "largest_dropped": values.dropped,
        "smallest_kept_row_sum": with_ones.kept,
        "largest_dropped_row_sum": with_ones.dropped,
        "verdict": "uncertain" if not firm else "identifiable" if with_ones.nullity == 0 else "not identifiable",
    }
