"""GlobEnc: residual norms carried through the second norm of the block as well."""

from __future__ import annotations

from clearhead import linalg
from clearhead.maps import Map
from clearhead.methods.registry import layer_map, method
from clearhead.progress import each
from clearhead.trace import Trace


@method(
    paper="Modarressi et al. 2022, GlobEnc (arXiv 2205.03286), section 3",
    dims=("layer", "query", "key"),
    unit="norm of a vector",
    laws=("non-negative", "causal"),
    residual=0.0,
    cost="one pass; time ~ layers tokens^2 width heads",
    can="Which tokens a state is made of after both norms, residual connections included.",
    cannot="What the feed-forward part adds, which it leaves out, or the sign of a contribution.",
)
def globenc(trace: Trace) -> Map:
    """Norm of each key's part in the state after the block, the feed-forward part left out.

    N_ij = || M_i(F_i(x_j)) ||, F_i(x_j) the parts of `residual_norms`, M_i the norm after the feed-forward part as it
    acts on a part: minus the part's own mean, times the gain, over the spread of what the model itself normalises there
    (the feed-forward output included). b_O and beta are in no part.

    Of post-norm blocks, for which it was made. Where no norm follows the feed-forward part (pre-norm, parallel and
    sandwich blocks) nothing is left to pass, and it equals `residual_norms`.

    Returns (layer, query, key), not negative, computed in float64. The residual connection is in it: the authors chain
    it as a plain product, without another and without normalising rows, so that the products grow (to 4e6 in 6 layers).
    Errors: NotDefined where the trace recorded no attention; ProofError where the blocks do not rebuild.
    """
    norms = [linalg.part_norms(trace.replay(layer), "block") for layer in each(range(len(trace.layers)))]
    return layer_map(trace, "globenc", {}, norms)
