"""The proof of a capture: does it rebuild what the model itself computed?

Two proofs. *Rebuilt*: in every layer, probabilities x values x W_O + b_O equals what the layer's own output projection
gave, for every token, as seen through 4 random directions of the hidden width (Freivalds' check: a difference in any
row shows in them with probability 1, and its size to within about a third, at a fraction of the products). *Compared*:
the states of every depth equal those of an untouched forward pass, since a capture can be consistent with itself and
still have changed the model.

Error of a row: || captured - own || / max(|| own ||, median row norm); of a layer: the largest of its rows. So one huge
row (an attention sink) cannot hide the others, and a row that is almost zero cannot blow up.

Tolerance of a layer: twice 4 roundings to the lowest precision on the path (weights, head output, projection, bias),
plus twice the random-walk error sqrt(w) eps of inner products of length w = max(width, keys) in the precision that sums
(float32 for half precisions). Two forward passes differ by two such errors a layer, which add up like a random walk: at
depth l, 1.5 sqrt(l + 1) times that. (Measured over all
families: rebuilt at most a quarter of this, compared at most half.)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from clearhead.errors import ProofError
from clearhead.trace import EPS, Layer

HALF = ("float16", "bfloat16")


def tolerance(precision: str, size: int) -> float:
    """The largest relative error of one layer that rounding explains; `size` = max(width, keys)."""
    sums = EPS["float32"] if precision in HALF else EPS[precision]
    return 8 * EPS[precision] + 2 * size**0.5 * sums


def row_error(captured: Tensor, own: Tensor) -> float:
    """The largest relative error of any row of [token, width]; inf where something is not finite."""
    return largest(working(captured) - working(own), own)


def largest(difference: Tensor, own: Tensor) -> float:
    """max over rows of || difference || / max(|| own ||, median row norm); inf where something is not finite."""
    return relative(difference.norm(dim=-1), own)


def relative(norms: Tensor, own: Tensor) -> float:
    """The largest of these norms of differences [token], each against its own row; inf where one is not finite."""
    rows = working(own).norm(dim=-1)
    scale = rows.clamp(min=float(rows.median())).clamp(min=torch.finfo(rows.dtype).tiny)
    error = float((norms / scale).max())
    return error if error == error else float("inf")


def working(tensor: Tensor) -> Tensor:
    """The tensor in a precision fit for sums: float32 for half precisions, else as it is."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def finite(tensor: Tensor) -> bool:
    """True where every entry is. (One sum tells; an overflow of the sum itself is looked at entry by entry.)"""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def check_finite(layer: int, capture: Layer, states: Tensor, precision: str, error: float) -> None:
    """Errors: ProofError naming the layer, what is not finite (the first on the path) and the precision.

    `error`: of the rebuilt output; where it is finite, so are the probabilities, values and head outputs behind it.
    """
    found = {"queries": capture.query, "keys": capture.key, "hidden states": states}
    if error == float("inf"):
        found = found | {"values": capture.value, "attention weights": capture.probabilities}
        found = {name: found[name] for name in ("queries", "keys", "values", "attention weights", "hidden states")}
    for name, tensor in found.items():
        if tensor is not None and not finite(tensor):
            do = "Load the model with dtype='float32'." if precision in HALF else "Check the model's weights."
            kind = "NaN" if bool(tensor.isnan().any()) else "infinity"
            raise ProofError(f"layer {layer}: the {name} hold {kind} in {precision}", do=do)


@cache
def directions(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """4 fixed Gaussian directions [direction, width], scaled so that a row keeps its norm on average.

    Always the left factor of a product: few rows times many columns is what BLAS does fast, the transpose is not.
    """
    drawn = torch.randn(4, width, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return (drawn / 2).to(device, dtype)


def seen_weight(weight: Tensor) -> Tensor:
    """W_O [head, value_width, width] through the directions: [head, direction, value_width]."""
    weight = working(weight)
    seen = directions(weight.shape[-1], weight.dtype, weight.device) @ weight.flatten(0, 1).T
    return seen.unflatten(1, weight.shape[:2]).transpose(0, 1)


def rebuilt_errors(layer: Layer, heads: Tensor, bias: Tensor | None, own: Tensor) -> tuple[float, float]:
    """(relative error of sum_h P_h V_h W_O_h + b_O against the layer's own output [query, width], row sum error).

    `heads`: W_O as `seen_weight` gives it. Row sum error: max | 1 - sum of the weights on keys that a query may see |.
    """
    assert layer.probabilities is not None
    probabilities, value = working(layer.probabilities), working(layer.value)
    groups = heads.shape[0] // value.shape[0]
    value = value if groups == 1 else value.repeat_interleave(groups, dim=0)
    weighted = (heads @ value.transpose(1, 2)) @ probabilities.transpose(1, 2)
    seen_keys = probabilities
    if not layer.visible.everything:
        seen_keys = probabilities * layer.visible.mask(probabilities.device)
    return seen_error(weighted.sum(0), bias, own), float((seen_keys.sum(-1) - 1).abs().max())


def projected_error(head_output: Tensor, heads: Tensor, bias: Tensor | None, own: Tensor) -> float:
    """The relative error of sum_h head_output_h W_O_h + b_O against the layer's own output [query, width]."""
    return seen_error((heads @ working(head_output).transpose(1, 2)).sum(0), bias, own)


def seen_error(seen: Tensor, bias: Tensor | None, own: Tensor) -> float:
    """The relative error of columns [direction, query] (without b_O) against own rows [query, width]."""
    through = directions(own.shape[-1], seen.dtype, own.device)
    difference = seen - through @ working(own).T
    if bias is not None:
        difference = difference + (through @ working(bias))[:, None]
    return relative(difference.norm(dim=0), own)


def sampled_rows(count: int, most: int = 8) -> list[int]:
    """Up to `most` row numbers, evenly spread, first and last included."""
    return torch.linspace(0, count - 1, min(most, count)).round().long().unique().tolist()


def sampled_rows_error(layer: Layer, scaling: float) -> float:
    """How far a few rows of softmax(q k) v, formed in float64, are from the captured head outputs and row norms.

    The proof for `capture="outputs"`, where no probabilities were kept. Divided by the largest logit s where that is
    above 1: logits rounded to eps |s| change each weight by a factor of that order.
    """
    assert layer.query is not None and layer.key is not None and layer.norm_squared is not None
    rows = sampled_rows(layer.query.shape[1])
    groups = layer.query.shape[0] // layer.key.shape[0]
    key = layer.key.double().repeat_interleave(groups, dim=0)
    value = layer.value.double().repeat_interleave(groups, dim=0)
    logits = (layer.query[:, rows].double() @ key.transpose(1, 2)) * scaling
    seen = layer.visible.mask(logits.device, rows)
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
                f"{what.format(number)}",
                got=f"relative error {error:.2g}",
                allowed=f"at most {allowed:.2g}",
                do="This capture would be wrong, so nothing is shown; please report the model and its versions.",
            )
