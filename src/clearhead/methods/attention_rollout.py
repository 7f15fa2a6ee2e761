"""Attention rollout: the layers' attention chained down to the input."""

from __future__ import annotations

from dataclasses import replace

from clearhead.maps import Map
from clearhead.methods.registry import head_mean, layer_map, method
from clearhead.trace import Trace


@method(
    paper="Abnar & Zuidema 2020, Quantifying Attention Flow in Transformers (arXiv 2005.00928), section 3",
    dims=("layer", "query", "key"),
    unit="share of the row",
    laws=("rows sum to 1", "non-negative", "causal"),
    cost="one pass; time ~ layers tokens^3",
    can="Where attention alone leads back to through the layers, the residual connection taken as half.",
    cannot=(
        "What was read at those places: values, norms and feed-forward parts are left out, and a sink looks like "
        "a source."
    ),
)
def attention_rollout(trace: Trace, *, residual: float = 0.5) -> Map:
    """Share of each input token in each state, if attention passed tokens on as it weighs them.

    R_l = A~_l R_{l-1}, R_{-1} = I, A~ = (1 - residual) mean_h A + residual I: the same as `Map.rollout` of the raw
    attention. The half for the residual connection is an assumption, not a measurement, and values, norms and
    feed-forward parts play no part.

    Returns (layer, query, key), rows sum to 1; layer l speaks of the state after block l.
    Errors: InputError for a residual out of [0, 1]; NotDefined where the trace recorded no attention.
    """
    means = layer_map(trace, "attention_rollout", {"residual": residual}, head_mean(trace, "attention_rollout"))
    return replace(means, meta={**means.meta, "residual": residual}).rollout()
