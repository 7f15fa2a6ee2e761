"""Attention flow: the most that could pass from an input token to a state, with attention as capacities."""

from __future__ import annotations

import sys

from clearhead import linalg
from clearhead.errors import InputError
from clearhead.maps import Map
from clearhead.methods.registry import head_mean, method, origin_of
from clearhead.trace import Trace

SECONDS_TO_SAY = 5.0
"""A run that will take longer says so before it starts."""


@method(
    paper="Abnar & Zuidema 2020, Quantifying Attention Flow in Transformers (arXiv 2005.00928), section 3",
    dims=("layer", "query", "key"),
    unit="flow (capacities sum to 1 a row)",
    laws=("0 to 1", "at least the rollout", "causal"),
    cost="one pass and a maximal flow for each pair; time ~ layers^2 tokens^4",
    can="How much attention could at most be carried from an input token to a state, all paths together.",
    cannot="How much was carried: it reads weights alone, and near the top most flows are the same for every query.",
)
def attention_flow(trace: Trace, *, layer: int | None = None, query: int | None = None, residual: float = 0.5) -> Map:
    """Maximal flow from each state down to each input token, through capacities given by attention.

    The edge from state i of layer l to state j below it has the capacity A~_l[i, j], A~ = (1 - residual) mean_h A +
    residual I; flow(l, i, j) is the maximal flow from i after block l to input j, solved one pair at a time. Each pair
    may use all capacities, so rows do not sum to 1 (the authors' code divides by the row sums; that is not done here).
    Near the top many flows equal the trivial cut min(1, column sum of the first layer's capacities): they say nothing
    of the query. `meta["trivial"]`: the share of the flows that do.

    `layer`, `query`: only these, for every pair costs time ~ layers^2 tokens^4; a long run says so on stderr first.
    Returns (layer, query, key) in float64, exact to about 2^-52 an edge. Needs OR-tools (pip install clearhead[flow]).
    Errors: InputError for a layer, a query or a residual that is not there; NotDefined where the trace recorded no
    attention; MissingExtra without OR-tools.
    """
    import numpy as np
    import torch

    means, tokens = torch.stack(head_mean(trace, "attention_flow")), trace.part().keys
    n, layers = len(tokens), _chosen("layer", layer, len(means))
    queries = _chosen("query", query, n)
    if not 0 <= residual <= 1:
        raise InputError("attention_flow: residual", got=repr(residual), allowed="0 to 1")
    capacities = (1 - residual) * means + residual * torch.eye(n, dtype=means.dtype, device=means.device)
    seconds = linalg.flow_cost(n, layers, len(queries))
    if seconds > SECONDS_TO_SAY:
        count = len(layers) * len(queries) * n
        sys.stderr.write(f"clearhead: attention_flow: {count} flows, about {seconds:.0f} s\n")
    values = linalg.max_flows(capacities, layers, queries).numpy()
    out, into = capacities[layers][:, queries].sum(-1).cpu().numpy(), capacities[0].sum(0).cpu().numpy()
    trivial = np.isclose(values, np.minimum(out[..., None], into), rtol=0, atol=1e-12).mean()
    meta = origin_of(trace, "attention_flow", {"layer": layer, "query": query, "residual": residual})
    return Map(
        values,
        ("layer", "query", "key"),
        tokens={"query": tokens.take(queries), "key": tokens},
        coords={"layer": tuple(layers), "query": tuple(queries)},
        unit="flow (capacities sum to 1 a row)",
        meta=meta | {"trivial": float(trivial)},
    )


def _chosen(what: str, wanted: int | None, count: int) -> list[int]:
    if wanted is None:
        return list(range(count))
    if type(wanted) is not int or not 0 <= wanted < count:
        raise InputError(f"attention_flow: {what}", got=repr(wanted), allowed=f"0 to {count - 1}")
    return [wanted]
