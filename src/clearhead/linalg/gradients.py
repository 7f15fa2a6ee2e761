"""Gradients of a scalar function, alone and averaged along a straight path from zero."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.linalg.block import Block

BUDGET = 512 * 2**20
"""The most memory that the points of one pass may keep for the way back."""
Scalar = Callable[[Tensor], Tensor]
"""From a batch [batch, ...] to one number each [batch]."""


def gradient(f: Scalar, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """dF/dx at one point, by one reverse pass."""
    leaf = x.detach()[None].requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(f(leaf).sum(), leaf)[0][0]


def gauss_legendre(steps: int) -> tuple[list[float], list[float]]:
    """(points, weights) of the rule on [0, 1], exact for polynomials of degree 2 steps - 1."""
    points, weights = np.polynomial.legendre.leggauss(steps)
    return ((points + 1) / 2).tolist(), (weights / 2).tolist()


def left_sum(steps: int) -> tuple[list[float], list[float]]:
    """(points, weights) of the left Riemann sum on [0, 1]: k / steps, k = 0 .. steps - 1."""
    return [k / steps for k in range(steps)], [1 / steps] * steps


def mean_gradient(
    f: Scalar, x: Float[Tensor, "..."], points: Sequence[float], weights: Sequence[float], batch: int
) -> Float[Tensor, "..."]:
    """sum_k w_k dF/dx at t_k x: with a rule for [0, 1], the mean gradient on the path from 0 to x.

    `batch` points share a pass.
    """
    total = torch.zeros_like(x)
    at, weight = (torch.tensor(values, dtype=x.dtype, device=x.device) for values in (points, weights))
    for part in torch.arange(len(at)).split(batch):
        leaf = (at[part].view(-1, *[1] * x.dim()) * x.detach()).requires_grad_()
        with torch.enable_grad():
            slopes = torch.autograd.grad(f(leaf).sum(), leaf)[0]
        total += torch.einsum("b,b...->...", weight[part], slopes)
    return total


@dataclass(frozen=True)
class Completeness:
    """The sum of attributions beside the change of F that they share out; `rounding`: the difference that rounding
    alone may make."""

    total: float
    change: float
    rounding: float
    share: float
    """The largest error allowed, relative to the change."""

    @property
    def error(self) -> float:
        """Relative to the change."""
        return abs(self.total - self.change) / abs(self.change) if self.change else float("inf")

    @property
    def complete(self) -> bool:
        """Equal to `share`, or to rounding where the change is hardly more."""
        return abs(self.total - self.change) <= max(self.share * abs(self.change), self.rounding)

    @property
    def told(self) -> dict[str, Any]:
        """For `meta`; the error is None where there is no change to relate it to."""
        return asdict(self) | {"error": self.error if self.change else None}


def completeness(
    attributions: Float[Tensor, "..."], end: Float[Tensor, "1"], start: Float[Tensor, "1"], eps: float, share: float
) -> Completeness:
    """Of attributions of F(end) - F(start), computed in precision `eps`: each term, and F itself, is taken to carry 64
    roundings, which add up like a random walk over the terms."""
    one, other = float(end.detach()), float(start.detach())
    rounding = 64 * eps * (max(abs(one), abs(other)) + float(attributions.detach().double().norm()))
    return Completeness(float(attributions.detach().double().sum()), one - other, rounding, share)


def points_a_pass(block: Block, tokens: int, layers: int) -> int:
    """How many points may share a forward and backward pass through so many blocks, within `BUDGET`."""
    heads, width, inner = (
        len(block.output_weight),
        block.output_weight.shape[-1],
        block.feed_forward.up.weight.shape[-1],
    )
    one = layers * tokens * (4 * heads * tokens + 16 * width + 4 * inner) * block.output_weight.element_size()
    return max(1, BUDGET // one)
