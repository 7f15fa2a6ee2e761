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
from dataclasses import dataclass
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
    captured, own = working(captured), working(own)
    return relative((captured - own).norm(dim=-1)[None], own.norm(dim=-1)[None])[0]


def relative(differences: Tensor, norms: Tensor) -> list[float]:
    """For each layer of [layer, token] norms of differences: the largest against max(own norm, median own norm).

    inf where something is not finite.
    """
    scale = norms.maximum(norms.median(dim=-1, keepdim=True).values).clamp(min=torch.finfo(norms.dtype).tiny)
    return (differences / scale).amax(-1).nan_to_num(nan=float("inf"), posinf=float("inf")).tolist()


def working(tensor: Tensor) -> Tensor:
    """The tensor in a precision fit for sums: float32 for half precisions, else as it is."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def check_finite(layers: Sequence[Layer], hidden: Tensor, errors: Sequence[float], precision: str) -> None:
    """Errors: ProofError naming the layer, what is not finite (the first on the path) and the precision.

    One sum of everything tells. `errors` of the rebuilt outputs: where one is finite, so are the probabilities, values
    and head outputs behind it.
    """
    sums = [hidden.sum(), *(t.sum() for layer in layers for t in (layer.query, layer.key) if t is not None)]
    if bool(torch.stack(sums).isfinite().all()) and float("inf") not in errors:
        return
    for number, layer in enumerate(layers):
        found = {
            "queries": layer.query,
            "keys": layer.key,
            "values": layer.value,
            "attention weights": layer.probabilities,
            "head outputs": layer.head_output,
            "hidden states": hidden[number + 1],
        }
        for name, tensor in found.items():
            if tensor is not None and not bool(tensor.isfinite().all()):
                do = "Load the model with dtype='float32'." if precision in HALF else "Check the model's weights."
                kind = "NaN" if bool(tensor.isnan().any()) else "infinity"
                raise ProofError(f"layer {number}: the {name} hold {kind} in {precision}", do=do)


@cache
def directions(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """4 fixed Gaussian directions [direction, width], scaled so that a row keeps its norm on average.

    Always the left factor of a product: few rows times many columns is what BLAS does fast, the transpose is not.
    """
    drawn = torch.randn(4, width, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return (drawn / 2).to(device, dtype)


@dataclass(frozen=True)
class Seen:
    """An output projection through the directions: W_O [head, direction, value_width] and b_O [direction, 1]."""

    weight: Tensor
    bias: Tensor | None


def seen(weight: Tensor, bias: Tensor | None) -> Seen:
    """W_O [head, value_width, width] and b_O [width] through the directions."""
    weight = working(weight)
    through = directions(weight.shape[-1], weight.dtype, weight.device)
    heads = (through @ weight.flatten(0, 1).T).unflatten(1, weight.shape[:2]).transpose(0, 1)
    return Seen(heads, None if bias is None else (through @ working(bias))[:, None])


def seen_difference(layer: Layer, projection: Seen, own: Tensor) -> Tensor:
    """sum_h P_h V_h W_O_h + b_O - own output, through the directions: [direction, query]. `own`: [query, width].

    From the head outputs in place of P V where no probabilities were captured.
    """
    if layer.probabilities is None:
        through = projection.weight @ working(layer.head_output).transpose(1, 2)
    else:
        value = working(layer.value)
        groups = projection.weight.shape[0] // value.shape[0]
        value = value if groups == 1 else value.repeat_interleave(groups, dim=0)
        through = (projection.weight @ value.transpose(1, 2)) @ working(layer.probabilities).transpose(1, 2)
    expected = directions(own.shape[-1], through.dtype, own.device) @ own.T
    difference = through.sum(0) - expected
    return difference if projection.bias is None else difference + projection.bias


def row_sums(layer: Layer) -> Tensor:
    """The sum of the weights on the keys that each query may see: [head, query]; ones where none were captured."""
    if layer.probabilities is None:
        return layer.head_output.new_ones(1, 1)
    weights = working(layer.probabilities)
    return (weights if layer.visible.everything else weights * layer.visible.mask(weights.device)).sum(-1)


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
