"""Value zeroing: how far a state turns when the value of a token is taken out of the block."""

from __future__ import annotations

from clearhead import linalg
from clearhead.errors import NotDefined
from clearhead.maps import Map
from clearhead.methods.registry import method, origin_of
from clearhead.progress import each
from clearhead.trace import Trace


@method(
    paper="Mohebbi et al. 2023, Quantifying Context Mixing in Transformers (arXiv 2301.12971), section 3",
    dims=("layer", "query", "key"),
    unit="share of the row's cosine distances",
    laws=("rows sum to 1", "non-negative", "causal"),
    residual=0.0,
    cost="for each layer as many runs of that layer as tokens",
    can="How much a layer's output for one token changes when another token's value is taken away.",
    cannot="The sign, or how much of a change counts later: it is a cosine distance within one layer.",
)
def value_zeroing(trace: Trace, *, raw: bool = False) -> Map:
    """Share of each key in how far the state after the block turns when that key's value is zeroed in all heads.

    c_ij = 1 - cos(y_i, y_i without j), y_i the output of block l at i, "without j" the block again with v_j = 0 (value
    bias included) and its attention as it was; each row divided by its sum. The block is run from its own parts, which
    are first proven to give the model's output (`Trace.replay`); the model itself is not touched, whatever attention
    it uses. Only the one block is run, all j in batches. `raw=True`: the distances c_ij themselves.

    Returns (layer, query, key) in float64 always: distances reach 1e-10. The residual connection is in it: the
    authors' rollout is the plain product. Time ~ layers tokens^2 width^2.
    Errors: NotDefined where the trace recorded no attention, or where no value moves a state; ProofError where the
    blocks do not rebuild.
    """
    import numpy as np

    found = np.stack([linalg.value_distances(trace.replay(k)).cpu().numpy() for k in each(range(len(trace.layers)))])
    if not np.isfinite(found).all():
        raise NotDefined("value_zeroing: a state is zero, so it has no direction to turn from")
    sums = found.sum(-1, keepdims=True)
    if not raw and not sums.all():
        layer, query, _ = np.argwhere(sums == 0)[0]
        raise NotDefined(f"value_zeroing: layer {layer}, query {query}: no value turns the state, so there is no share")
    part, meta = trace.part(), origin_of(trace, "value_zeroing", {"raw": raw})
    if raw:
        meta["residual"] = None  # distances are not shares
    return Map(
        found if raw else found / sums,
        ("layer", "query", "key"),
        tokens={"query": part.queries, "key": part.keys},
        unit="cosine distance" if raw else "share of the row's cosine distances",
        meta=meta,
    )
