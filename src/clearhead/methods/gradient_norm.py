"""Gradient norm: how fast the explained number moves with each token vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clearhead import linalg
from clearhead.errors import NotDefined
from clearhead.maps import Map
from clearhead.methods.registry import method, token_map
from clearhead.target import Target
from clearhead.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor

    from clearhead.target import Goal


@method(
    paper="Simonyan et al. 2014, Deep Inside Convolutional Networks (arXiv 1312.6034), section 3; L2 norm by token",
    dims=("key",),
    unit="target by unit of a token vector",
    laws=("non-negative",),
    explains=True,
    cost="one pass forward and one back",
    can="To which tokens' vectors the target is most sensitive, for very small changes.",
    cannot="What a token contributed: a saturated token has no gradient, and size has no sign.",
)
def gradient_norm(trace: Trace, *, target: Target = None) -> Map:
    """Norm of the gradient of the explained number by each token vector.

    || dF/dx_j ||_2, x_j what the first block reads at token j (word, position and segment, after their normalisation
    where the model has one), F the target: see `clearhead.target` (a class or next token counts as its probability).
    The model itself runs once in each direction, with eager attention, and is proven to give its untouched output.

    Returns (key,); `meta["target"]` names the target and `meta["value"]` is F. It says where F is sensitive, not what
    F is made of: it has no sign and does not sum to F.
    Errors: InputError for a target; NotDefined for a class or next token of a model without that head (the default
    target of such a model too), and where the gradient is not finite; ProofError as above.
    """
    goal = trace.model.goal(trace, target)
    return token_map(trace, "gradient_norm", {}, target, goal, slopes(trace, goal, "gradient_norm").norm(dim=-1))


def slopes(trace: Trace, goal: Goal, name: str) -> Tensor:
    """dF/dx [token, width]. Errors: NotDefined where it is not finite; ProofError."""
    found = linalg.gradient(trace.model.outcome(trace, goal, 0), trace.hidden[0])
    if not bool(found.isfinite().all()):
        raise NotDefined(f"{name}: the gradient is not finite in {trace.precision}", do="Load with dtype='float64'.")
    return found
