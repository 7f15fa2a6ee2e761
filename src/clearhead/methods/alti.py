"""ALTI: how near each key's part comes to the state that the parts make together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from clearhead import linalg
from clearhead.errors import InputError, NotDefined
from clearhead.maps import Map
from clearhead.methods.registry import layer_map, method
from clearhead.progress import each
from clearhead.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor

PUBLISHED_SHIFT = -1e-6
"""What the published code adds to every number of y - T (an eps against division by zero that L1 does not need)."""


@method(
    paper="Ferrando et al. 2022, Measuring the Mixing of Contextual Information (arXiv 2203.04212), equations 9 to 11",
    dims=("layer", "query", "key"),
    unit="share of the row's contributions",
    laws=("rows sum to 1", "non-negative", "causal"),
    residual=0.0,
    cost="one pass; time ~ layers tokens^2 width heads",
    can=(
        "Which tokens a state is made of after attention, residual connection included, in a form that sums to 1 "
        "and chains."
    ),
    cannot=(
        "What the feed-forward part does with them, or the sign of a contribution: a key that pulls a state away "
        "counts as none."
    ),
)
def alti(trace: Trace, *, variant: Literal["correct", "published"] = "correct") -> Map:
    """Share of each key in the state after attention, by how much nearer (in L1) its part brings it.

    c_ij = max(0, || y_i ||_1 - || y_i - T_i(x_j) ||_1), each row divided by its sum. T_i(x_j) are the parts F_i(x_j) of
    `residual_norms`, y_i the state itself, b_O and beta included. In pre-norm blocks that state is the sum with the
    residual, in which each key's part is linear as it stands.

    `variant="published"` adds the 1e-6 a number that the authors' distance function adds; it moves a contribution by up
    to 3e-4 (MiniLM, 100 tokens), and lets a key that is not seen move a little too.

    Returns (layer, query, key), rows sum to 1, computed in float64. The residual connection is in it: the authors'
    rollout is the plain product.
    Errors: InputError for another variant; NotDefined where the trace recorded no attention, or where no key brings a
    row any nearer; ProofError where the blocks do not rebuild.
    """
    if variant not in ("correct", "published"):
        raise InputError("alti: variant", got=repr(variant), allowed="'correct', 'published'")
    shift = PUBLISHED_SHIFT if variant == "published" else 0.0
    shares = [_shares(trace, layer, shift) for layer in each(range(len(trace.layers)))]
    return layer_map(trace, "alti", {"variant": variant}, shares)


def _shares(trace: Trace, layer: int, shift: float) -> Tensor:
    near = linalg.proximity(trace.replay(layer), "norm", shift).clamp_min(0)
    total = near.sum(-1, keepdim=True)
    if not total.all():
        query = int((total == 0).nonzero()[0, 0])
        raise NotDefined(f"alti: layer {layer}, query {query}: no key brings the state nearer, so there is no share")
    return near / total
