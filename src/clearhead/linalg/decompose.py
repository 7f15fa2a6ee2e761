"""What each token adds to the output of an attention sub-block, and the size of it, without an n x n x d tensor.

The part of key j in query i, for a stage of the block (its parts sum to the state there, but for the biases that the
stage adds: b_O through the norms that follow it, and their own beta):

    "attention"   sum_h A^h_ij u^h_j,  u^h_j = V^h_j W_O^h (value bias included)
    "residual"    on_output(that) + [i = j] x_i
    "norm"        after(that)
    "block"       the feed-forward norm `after` applied to that, the feed-forward part itself left out

A norm acts on a part by its linear part, divided by the spread of the whole. All in float64.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import NotDefined
from clearhead.linalg.block import Norm, Replay

Stage = Literal["attention", "residual", "norm", "block"]
BUDGET = 2**30
"""The most memory, in bytes, that the largest temporary tensor may take."""


def norms_passed(ran: Replay, stage: Stage) -> list[tuple[Norm, Float[Tensor, "query 1"]]]:
    """The norms that the attention output passes up to a stage, each with the spread of what it divides."""
    norms = ran.block.norms
    passed = [
        (norms.on_output, ran.attention, ("residual", "norm", "block")),
        (norms.after, ran.summed, ("norm", "block")),
        (ran.block.feed_forward.norms.after, ran.total, ("block",)),
    ]
    return [(norm, norm.spread(whole)) for norm, whole, stages in passed if norm is not None and stage in stages]


def written(ran: Replay, stage: Stage, budget: int = BUDGET) -> Iterator[tuple[slice, Float[Tensor, "key head width"]]]:
    """(keys, u): what each head writes for a key, through the linear part of the norms; as many keys as fit."""
    heads, _, width = ran.block.output_weight.shape
    groups = heads // ran.values.shape[0]
    size = max(1, budget // (2 * heads * width * 8))
    for begin in range(0, len(ran.x), size):
        keys = slice(begin, min(begin + size, len(ran.x)))
        values = ran.values[:, keys].repeat_interleave(groups, dim=0)
        u = (values @ ran.block.output_weight).transpose(0, 1)
        for norm, _ in norms_passed(ran, stage):
            u = norm.linear(u)
        yield keys, u


def scaled_weights(ran: Replay, stage: Stage) -> Float[Tensor, "head query key"]:
    """Attention weights over the spreads of the norms passed."""
    weights = ran.probabilities
    for _, spread in norms_passed(ran, stage):
        weights = weights / spread
    return weights


def through(
    ran: Replay, stage: Stage, attention: Float[Tensor, "query width"], x: Float[Tensor, "query width"]
) -> Float[Tensor, "query width"]:
    """A part at a stage: of the attention output, and of the residual stream (left out at the stage "attention")."""
    part = attention
    if stage == "attention":
        return part
    on_output = ran.block.norms.on_output
    for norm, spread in norms_passed(ran, "residual"):
        part = norm.linear(part) / spread
    part = part + x
    for norm, spread in norms_passed(ran, stage):
        if norm is not on_output:
            part = norm.linear(part) / spread
    return part


def own_parts(ran: Replay, stage: Stage) -> Float[Tensor, "query width"]:
    """The part of each token in itself, the residual included."""
    groups = len(ran.probabilities) // len(ran.values)
    weights = ran.probabilities.diagonal(dim1=1, dim2=2)[..., None]
    heads = weights * ran.values.repeat_interleave(groups, dim=0)
    attention = heads.transpose(0, 1).flatten(1) @ ran.block.output_weight.flatten(0, 1)
    return through(ran, stage, attention, ran.x)


def whole(ran: Replay, stage: Stage) -> Float[Tensor, "query width"]:
    """The sum of all parts at a stage."""
    bias = ran.block.output_bias
    return through(ran, stage, ran.attention if bias is None else ran.attention - bias, ran.x)


def head_norms(ran: Replay) -> Float[Tensor, "head query key"]:
    """|| A^h_ij u^h_j || of every head."""
    found = torch.empty_like(ran.probabilities)
    for keys, u in written(ran, "attention"):
        found[:, :, keys] = ran.probabilities[:, :, keys].abs() * u.norm(dim=-1).T[:, None]
    return found


def part_norms(ran: Replay, stage: Stage) -> Float[Tensor, "query key"]:
    """|| part of key j in query i || at a stage.

    Off the diagonal by the head x head Gram matrix G_j of the vectors u^h_j: || sum_h a_h u_h ||^2 = a^T G_j a.
    """
    weights = scaled_weights(ran, stage)
    found = torch.empty_like(weights[0])
    for keys, u in written(ran, stage):
        a = weights[:, :, keys].permute(2, 1, 0)
        squared = ((a @ (u @ u.mT)) * a).sum(-1)
        found[:, keys] = squared.clamp_min(0).sqrt().T
    if stage != "attention":
        found.diagonal().copy_(own_parts(ran, stage).norm(dim=-1))
    return found


def mixing(ran: Replay, stage: Stage) -> Float[Tensor, "query"]:
    """|| sum of the parts of the others || / (that + || own part ||). Errors: NotDefined for 0 / 0."""
    own = own_parts(ran, stage)
    others = (whole(ran, stage) - own).norm(dim=-1)
    total = others + own.norm(dim=-1)
    if not total.all():
        raise NotDefined(f"Mixing ratio of query {int((total == 0).nonzero()[0])}: nothing comes from any token")
    return others / total


def proximity(ran: Replay, stage: Stage, shift: float = 0.0) -> Float[Tensor, "query key"]:
    """|| y_i ||_1 - || y_i - part of key j in query i + shift ||_1, y the state at the stage, biases included.

    One key at a time: the largest tensor is query x width.
    """
    y = {"attention": ran.attention, "residual": ran.summed, "norm": ran.middle}[stage]
    weights, own = scaled_weights(ran, stage), own_parts(ran, stage)
    shifted = y + shift
    distance = torch.empty_like(weights[0])
    for keys, u in written(ran, stage):
        for place, key in enumerate(range(keys.start, keys.stop)):
            left = torch.addmm(shifted, weights[:, :, key].T, u[place], alpha=-1)
            if stage != "attention":
                left[key] = shifted[key] - own[key]
            distance[:, key] = torch.linalg.vector_norm(left, ord=1, dim=-1)
    return torch.linalg.vector_norm(y, ord=1, dim=-1)[:, None] - distance
