"""Residual norms: vector norms with the residual connection and the norm that follows it."""

from __future__ import annotations

from clearhead import linalg
from clearhead.maps import Map
from clearhead.methods.registry import layer_map, method
from clearhead.progress import each
from clearhead.trace import Trace


@method(
    paper="Kobayashi et al. 2021, Incorporating Residual and Normalization Layers (arXiv 2109.07152), section 3",
    dims=("layer", "query", "key"),
    unit="norm of a vector",
    laws=("non-negative", "causal"),
    residual=0.0,
    cost="one pass; time ~ layers tokens^2 width heads",
    can="How large the part of each key is in a state after attention, residual connection and norm included.",
    cannot="Whether parts cancel: norms have no sign, and large parts may sum to little.",
)
def residual_norms(trace: Trace, *, norm: bool = True) -> Map:
    """Norm of each key's part in the state after attention, residual connection and norm.

    || F_i(x_j) ||, F_i(x_j) = N_i(sum_h A^h_ij f^h(x_j) + [i = j] x_i), f^h as in `vector_norms`. N_i is the norm after
    the residual connection as it acts on a part: minus the part's own mean (LayerNorm), times the gain, over the spread
    of the whole sum. `norm=False` stops before it. Beta and b_O are in no part; with them the parts sum to the state.

    Which norms there are is the block's own structure. Post-norm blocks (BERT) have the one after the residual. In
    pre-norm blocks (GPT-2, Llama, parallel ones too) the norm stands before the attention, inside f, and nothing
    follows: there `norm` changes nothing. A norm on the attention's own output (Gemma-3) acts on f, always.

    Returns (layer, query, key), not negative, in the unit of the hidden states, computed in float64. The residual
    connection is in it: chain it without another.
    Errors: NotDefined where the trace recorded no attention; ProofError where the blocks do not rebuild.
    """
    stage = "norm" if norm else "residual"
    norms = [linalg.part_norms(trace.replay(layer), stage) for layer in each(range(len(trace.layers)))]
    return layer_map(trace, "residual_norms", {"norm": norm}, norms)
