"""Mixing ratio: how much of a state comes from other tokens rather than from its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from clearhead import linalg
from clearhead.errors import InputError
from clearhead.maps import Map
from clearhead.methods.registry import layer_map, method
from clearhead.progress import each
from clearhead.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["Attn-W", "Attn-N", "AttnRes-W", "AttnRes-N", "AttnResLn-N"]


@method(
    paper="Kobayashi et al. 2021, Incorporating Residual and Normalization Layers (arXiv 2109.07152), equation 9",
    dims=("layer", "query"),
    unit="share that comes from other tokens",
    laws=("0 to 1",),
    cost="one pass; time ~ layers tokens^2 width heads",
    can="How much of a state comes from other tokens, against what its own token keeps.",
    cannot="Which other tokens: it is one number a token.",
)
def mixing_ratio(trace: Trace, *, kind: Kind = "AttnResLn-N") -> Map:
    """Share of each state that comes from other tokens, between 0 (own token alone) and 1.

    r_i = m / (m + p). By weights ("W"): m = sum_{j != i} a_ij, p = a_ii, a the mean attention of the heads ("Attn-W")
    or 0.5 a + 0.5 I ("AttnRes-W"). By norms ("N"): m = || sum_{j != i} F_i(x_j) ||, p = || F_i(x_i) ||, F the parts of
    the attention output ("Attn-N", see `vector_norms`), of the sum with the residual ("AttnRes-N") or of the state
    after the norm that follows ("AttnResLn-N"; the same where none follows, see `residual_norms`).

    Returns (layer, query), computed in float64. The authors' means over BERT-base, in %: 97.1, 85.2, 48.6, 22.3, 18.8.
    Errors: InputError for another kind; NotDefined where the trace recorded no attention, or for 0 / 0; ProofError
    where the blocks do not rebuild.
    """
    if kind not in get_args(Kind):
        raise InputError("mixing_ratio: kind", got=repr(kind), allowed=", ".join(get_args(Kind)))
    ratios = [_ratio(trace, layer, kind) for layer in each(range(len(trace.layers)))]
    return layer_map(trace, "mixing_ratio", {"kind": kind}, ratios, ("layer", "query"))


def _ratio(trace: Trace, layer: int, kind: Kind) -> Tensor:
    ran = trace.replay(layer)
    if kind == "Attn-N":
        return linalg.mixing(ran, "attention")
    if kind in ("AttnRes-N", "AttnResLn-N"):
        return linalg.mixing(ran, "residual" if kind == "AttnRes-N" else "norm")
    weights = ran.probabilities.mean(0)
    others = 1 - weights.diagonal() / weights.sum(-1)
    return others if kind == "Attn-W" else 0.5 * others
