"""Attention Shapley: tokens as players of a game whose worth is the attention within a coalition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from clearhead.errors import InputError
from clearhead.maps import Map
from clearhead.methods.registry import head_mean, layer_map, method
from clearhead.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor


@method(
    paper="Eggen 2025, attention Shapley (closed form)",
    dims=("layer", "key"),
    unit="attention weight",
    laws=("sums to the worth of all", "symmetric in the tokens"),
    cost="one pass; time ~ layers tokens^2",
    can="How central a token is in a layer's attention, seen as a game of the tokens among themselves.",
    cannot="What a token gave to a certain state or prediction: it has no query, and reads weights alone.",
)
def attention_shapley(trace: Trace, *, pair: Literal["max", "sum"] = "max") -> Map:
    """Shapley value of each token in the game of attention between the tokens of a coalition, by layer.

    A = mean over heads. Worth of one token v({k}) = A_kk, of more v(S) = sum_{i<j in S} w_ij, w_ij = max(A_ij, A_ji)
    (`pair="max"`) or their sum. In closed form, without sampling: phi_k = 1/2 sum_{j!=k} w_kj + A_kk / n -
    (sum_{i!=k} A_ii) / (n (n - 1)). The values of a layer sum to v(all tokens), and may be negative.

    Returns (layer, key). Errors: InputError for another pair; NotDefined where the trace recorded no attention.
    """
    if pair not in ("max", "sum"):
        raise InputError("attention_shapley: pair", got=repr(pair), allowed="'max', 'sum'")
    values = [_shapley(attention, pair) for attention in head_mean(trace, "attention_shapley")]
    return layer_map(trace, "attention_shapley", {"pair": pair}, values, ("layer", "key"))


def _shapley(attention: Tensor, pair: str) -> Tensor:
    own, n = attention.diagonal(), len(attention)
    if n == 1:
        return own
    worth = attention.maximum(attention.T) if pair == "max" else attention + attention.T
    among = (worth.sum(-1) - worth.diagonal()) / 2
    return among + own / n - (own.sum() - own) / (n * (n - 1))
