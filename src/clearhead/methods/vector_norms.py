"""Vector norms: how long the vectors are that attention adds up, not only their weights."""

from __future__ import annotations

from clearhead import linalg
from clearhead.maps import Map
from clearhead.methods.registry import layer_map, method
from clearhead.progress import each
from clearhead.trace import Trace


@method(
    paper="Kobayashi et al. 2020, Attention is Not Only a Weight (arXiv 2004.10102), equation 6",
    dims=("layer", "query", "key"),
    unit="norm of a vector",
    laws=("non-negative", "causal", "at most the sum over heads"),
    cost="one pass; time ~ layers heads tokens^2 d_v",
    can="How large the vector is that each key sends to each query, not only its weight.",
    cannot="What the residual connection keeps, or whether parts cancel.",
)
def vector_norms(trace: Trace, *, per_head: bool = False) -> Map:
    """Norm of the vector that attention brings from each key to each query, its weight included.

    || sum_h A^h_ij f^h(x_j) ||, f^h(x) = (x W_V^h + b_V^h) W_O^h, x as the attention reads it (after the norm in front
    of it, where there is one). The vectors of a query, with b_O, sum to the output of the attention, before any norm on
    it; b_O is part of none. `per_head`: || A^h_ij f^h(x_j) || instead, as (layer, head, query, key).

    Returns (layer, query, key), not negative, in the unit of the hidden states. Computed in float64 by the head x head
    Gram matrix of each key, without a vector for each pair. The residual stream is not in it: `residual_norms` has it.
    Errors: NotDefined where the trace recorded no attention; ProofError where the blocks do not rebuild.
    """
    runs = (trace.replay(layer) for layer in each(range(len(trace.layers))))
    if per_head:
        norms = [linalg.head_norms(ran) for ran in runs]
        return layer_map(trace, "vector_norms", {"per_head": True}, norms, ("layer", "head", "query", "key"))
    return layer_map(trace, "vector_norms", {"per_head": False}, [linalg.part_norms(ran, "attention") for ran in runs])
