"""Input times gradient: the signed first-order share of each token vector in the explained number."""

from __future__ import annotations

from clearhead.maps import Map
from clearhead.methods.gradient_norm import slopes
from clearhead.methods.registry import method, token_map
from clearhead.target import Target
from clearhead.trace import Trace


@method(
    paper="Shrikumar et al. 2016, Not Just a Black Box (arXiv 1605.01713), gradient x input",
    dims=("key",),
    unit="target",
    laws=("sum is the derivative by a common scale",),
    explains=True,
    cost="one pass forward and one back",
    can="The part of a small change of the target that goes along each token's own vector, with its sign.",
    cannot="The whole effect of a token: where the model is not linear the parts do not sum to the target.",
)
def input_x_gradient(trace: Trace, *, target: Target = None) -> Map:
    """Each token vector times the gradient of the explained number by it, summed over its width; signed.

    x_j . dF/dx_j, with x and F as in `gradient_norm`. The values sum to dF(t x)/dt at t = 1, which is F only where F is
    linear in x; behind a normalisation it is near 0. For a sum that is F(x) - F(baseline): `integrated_gradients`.

    Returns (key,); `meta["target"]` names the target and `meta["value"]` is F. Errors: as `gradient_norm`.
    """
    goal = trace.model.goal(trace, target)
    values = (slopes(trace, goal, "input_x_gradient") * trace.hidden[0]).sum(-1)
    return token_map(trace, "input_x_gradient", {}, target, goal, values)
