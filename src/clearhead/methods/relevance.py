"""Relevance: attention weighted by its gradient, carried from layer to layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clearhead import linalg
from clearhead.errors import NotDefined
from clearhead.maps import Map
from clearhead.methods.registry import layer_map, method
from clearhead.progress import each
from clearhead.target import Target, spelled
from clearhead.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor


@method(
    paper="Chefer et al. 2021, Generic Attention-model Explainability (arXiv 2103.15679), section 3",
    dims=("layer", "query", "key"),
    unit="relevance",
    laws=("non-negative", "causal", "the identity is in it"),
    explains=True,
    cost="one pass forward and one back",
    can=(
        "Which tokens attention carried towards the target, through all layers: weights that raise it, the "
        "residual added."
    ),
    cannot=(
        "What speaks against the target, for negative gradients are cut off; values and feed-forward parts enter "
        "by gradient only."
    ),
)
def relevance(trace: Trace, *, target: Target = None) -> Map:
    """Relevance of each token to each position, for the explained number: R <- R + mean_h (dF/dA_h * A_h)^+ R.

    From R = identity through all layers; layer l of the map is R after block l, so the last holds all. F is the target
    as in `gradient_norm`, except that a class or next token stands for its logit (as published), not its probability.
    The gradient is by the weights of one block with all that follows them; with the captured weights in its place each
    block is first proven to give the model's untouched output. What the authors do with R at the end (leaving out the
    special tokens' own column) is left to the reader. Encoders and decoders; their rules for cross attention need
    encoder-decoder or two-stream models, which clearhead does not load.

    Returns (layer, query, key); it is not to be chained again. Errors: NotDefined where the trace recorded no attention
    or a gradient is not finite; else as `gradient_norm`.
    """
    import torch

    goal = trace.model.goal(trace, target, logit=True)
    size = len(trace.hidden[0])
    whole = torch.eye(size, dtype=torch.float64, device=trace.hidden.device)
    found: list[Tensor] = []
    for layer, captured in enumerate(each(trace.layers)):
        run, weights = trace.model.outcome(trace, goal, layer, "attention"), captured.probabilities
        assert weights is not None
        slopes = linalg.gradient(run, weights)
        if not bool(slopes.isfinite().all()):
            raise NotDefined(f"relevance: layer {layer}: the gradient is not finite", do="Load with dtype='float64'.")
        mean = (slopes.double() * weights.double()).clamp(min=0).mean(0)
        whole = whole + mean @ whole
        found.append(whole)
    made = layer_map(trace, "relevance", {"target": spelled(target)}, found)
    return replace(made, meta={**made.meta, "target": goal.name, "value": goal.value})
