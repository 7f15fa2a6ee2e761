"""The proof of a capture: does it rebuild what the model itself computed?

Two proofs. *Rebuilt*: in every layer, probabilities x values x W_O + b_O equals what the layer's own output projection
gave. *Compared*: the states of every depth equal those of an untouched forward pass, since a capture can be consistent
with itself and still have changed the model.

Error of a row: || captured - own || / max(|| own ||, median row norm); of a layer: the largest of its rows. So one huge
row (an attention sink) cannot hide the others, and a row that is almost zero cannot blow up.

Tolerance of a layer: 4 roundings to the lowest precision on the path (weights, head output, projection, bias), plus
the random-walk error sqrt(w) eps of inner products of length w = max(width, keys) in the precision that sums (float32
for half precisions). Two forward passes differ by two such errors a layer, which add up like a random walk: at depth l,
3 sqrt(l + 1) times that. (Measured over all families: at most 1 eps rebuilt, 20 eps compared.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.errors import ProofError
from clearhead.trace import EPS, Layer, Visible

HALF = ("float16", "bfloat16")


def tolerance(precision: str, size: int) -> float:
    """The largest relative error of one layer that rounding explains; `size` = max(width, keys)."""
    sums = EPS["float32"] if precision in HALF else EPS[precision]
    return 4 * EPS[precision] + size**0.5 * sums


def row_error(captured: Tensor, own: Tensor) -> float:
    """The largest relative error of any row of [token, width]; inf where something is not finite."""
    captured, own = captured.double(), own.double()
    norms = own.norm(dim=-1)
    scale = norms.clamp(min=float(norms.median())).clamp(min=torch.finfo(torch.float64).tiny)
    error = float(((captured - own).norm(dim=-1) / scale).max())
    return error if error == error else float("inf")


def working(tensor: Tensor) -> Tensor:
    """The tensor in a precision fit for sums: float32 for half precisions, else as it is."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def check_finite(layer: int, layer_capture: Layer, states: Tensor, precision: str) -> None:
    """Errors: ProofError naming the layer, what is not finite and the precision."""
    found = {
        "queries": layer_capture.query,
        "keys": layer_capture.key,
        "values": layer_capture.value,
        "attention weights": layer_capture.probabilities,
        "head outputs": layer_capture.head_output,
        "hidden states": states,
    }
    for name, tensor in found.items():
        # A sum is finite only if every entry is (an overflow of the sum itself is looked at entry by entry).
        if tensor is None or bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all()):
            continue
        do = "Load the model with dtype='float32'." if precision in HALF else "Check the model's weights."
        kind = "NaN" if bool(tensor.isnan().any()) else "infinity"
        raise ProofError(f"layer {layer}: the {name} hold {kind} in {precision}", do=do)


def rebuilt_output(probabilities: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """sum_h P_h V_h W_O_h + b_O: [query, width]. `value`: [kv_head, key, value_width]; `weight`: [head, value_width, width]."""
    probabilities, value = working(probabilities), working(value)
    value = value.repeat_interleave(probabilities.shape[0] // value.shape[0], dim=0)
    return projected(probabilities @ value, weight, bias)


def projected(head_output: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Head outputs [head, query, value_width] through W_O and b_O: [query, width]."""
    flat = working(head_output).transpose(0, 1).flatten(1) @ working(weight).flatten(0, 1)
    return flat if bias is None else flat + working(bias)


def row_sum_error(probabilities: Tensor, visible: Visible) -> float:
    """max | 1 - sum of the weights that a query gives to the keys it may see |."""
    probabilities = working(probabilities)
    if not visible.everything:
        probabilities = probabilities * visible.mask(probabilities.device)
    return float((probabilities.sum(-1) - 1).abs().max())


def sampled_rows(count: int, most: int = 8) -> Tensor:
    """Up to `most` row numbers, evenly spread, first and last included."""
    return torch.linspace(0, count - 1, min(most, count)).round().long().unique()


def sampled_rows_error(layer: Layer, scaling: float) -> float:
    """How far a few rows of softmax(q k) v, formed in float64, are from the captured head outputs and row norms.

    The proof for `capture="outputs"`, where no probabilities were kept. Divided by the largest logit s where that is
    above 1: logits rounded to eps |s| change each weight by a factor of that order.
    """
    assert layer.query is not None and layer.key is not None and layer.norm_squared is not None
    rows = sampled_rows(layer.query.shape[1]).to(layer.query.device)
    groups = layer.query.shape[0] // layer.key.shape[0]
    key = layer.key.double().repeat_interleave(groups, dim=0)
    value = layer.value.double().repeat_interleave(groups, dim=0)
    logits = (layer.query[:, rows].double() @ key.transpose(1, 2)) * scaling
    seen = layer.visible.mask(logits.device)[rows]
    weights = logits.masked_fill(~seen, float("-inf")).softmax(-1)
    own = layer.head_output[:, rows]
    outputs = max(row_error(a, b) for a, b in zip(weights @ value, own, strict=True))
    norms = (weights.square().sum(-1) / layer.norm_squared[:, rows].double() - 1).abs().max()
    return max(outputs, float(norms)) / max(1.0, float((logits.abs() * seen).max()))


def verdict(rebuilt: Sequence[float], allowed: float, what: str) -> None:
    """Errors: ProofError naming the first layer (or depth) whose error is beyond the tolerance."""
    for number, error in enumerate(rebuilt):
        if not error <= allowed:
            raise ProofError(
                f"{what.format(number)}", got=f"relative error {error:.2g}", allowed=f"at most {allowed:.2g}",
                do="This capture would be wrong, so nothing is shown; please report the model and its versions.",
            )
