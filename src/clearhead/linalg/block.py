"""A Transformer block as data, and its replay: what went through it, in float64, from the attention that was captured.

    y = x + on_output(sum_h A_h V_h W_O_h + b_O),   middle = after(y)            attention sub-block
    output = after(middle + on_output(down(act(up(before(middle))))))            feed-forward sub-block

V = before(x) W_V + b_V. Post-norm blocks (BERT) have the norms `after`, pre-norm blocks (GPT-2, Llama) those `before`,
sandwich blocks (Gemma-3) `before` and `on_output`; in a parallel block (GPT-J) the feed-forward part reads x as well.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Norm:
    """LayerNorm ("layer": minus the mean, over the standard deviation) or RMSNorm ("rms": over the root mean square).

    `gain` multiplies as it stands here (1 + w where a family keeps w); eps stands under the root.
    """

    kind: Literal["layer", "rms"]
    gain: Float[Tensor, "width"]
    bias: Float[Tensor, "width"] | None
    eps: float

    def centred(self, y: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """y minus its mean (LayerNorm), or y."""
        return y - y.mean(-1, keepdim=True) if self.kind == "layer" else y

    def spread(self, y: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch 1"]:
        """What the centred y is divided by."""
        return (self.centred(y).square().mean(-1, keepdim=True) + self.eps).sqrt()

    def linear(self, y: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """The linear part: centred, times the gain. norm(y) = linear(y) / spread(y) + bias."""
        return self.centred(y) * self.gain

    def __call__(self, y: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        found = self.linear(y) / self.spread(y)
        return found if self.bias is None else found + self.bias


@dataclass(frozen=True)
class Affine:
    """y W + b."""

    weight: Float[Tensor, "read out"]
    bias: Float[Tensor, "out"] | None = None

    def __call__(self, y: Float[Tensor, "*batch read"]) -> Float[Tensor, "*batch out"]:
        found = y @ self.weight
        return found if self.bias is None else found + self.bias


@dataclass(frozen=True)
class Norms:
    """The norms of a sub-block: before it, on its output, and after its output was added to the residual stream."""

    before: Norm | None = None
    on_output: Norm | None = None
    after: Norm | None = None


@dataclass(frozen=True)
class FeedForward:
    """down(act(up(y))), or down(act(gate(y)) * up(y)) where there is a gate."""

    norms: Norms
    up: Affine
    down: Affine
    activation: Activation
    gate: Affine | None = None


@dataclass(frozen=True)
class Block:
    """The structure and weights of one block, in the model's own precision."""

    norms: Norms
    """Of the attention sub-block."""
    value_weight: Float[Tensor, "kv_head width value_width"]
    value_bias: Float[Tensor, "kv_head value_width"] | None
    output_weight: Float[Tensor, "head value_width width"]
    output_bias: Float[Tensor, "width"] | None
    feed_forward: FeedForward
    parallel: bool = False


@dataclass(frozen=True)
class Head:
    """From the last state of one token to logits: out(act(dense(norm(h)))), with norm and dense where there are any."""

    token: int
    """Position of the token that is read; negative from the end."""
    out: Affine
    logits: Float[Tensor, "target"]
    """What the model itself gave."""
    norm: Norm | None = None
    dense: Affine | None = None
    activation: Activation | None = None
    labels: tuple[str, ...] = ()
    """Names of the classes; none for a vocabulary."""


@dataclass(frozen=True)
class Replay:
    """One block with everything that went through it, in float64."""

    block: Block
    x: Float[Tensor, "token width"]
    probabilities: Float[Tensor, "head token token"]
    values: Float[Tensor, "kv_head token value_width"]
    projected: Float[Tensor, "kv_head token value_width"]
    """The values again, from x and the block's own weights."""
    attention: Float[Tensor, "token width"]
    """sum_h A_h V_h W_O_h + b_O, before any norm."""
    summed: Float[Tensor, "token width"]
    """With the residual, before the norm after it."""
    middle: Float[Tensor, "token width"]
    inner: Float[Tensor, "token inner"]
    """What `up` gave."""
    gate: Float[Tensor, "token inner"] | None
    raised: Float[Tensor, "token width"]
    """What `down` gave, before any norm."""
    total: Float[Tensor, "token width"]
    """With the residual, before the norm after it."""
    output: Float[Tensor, "token width"]

    @property
    def read(self) -> Float[Tensor, "token width"]:
        """What the feed-forward sub-block reads, before its norm."""
        return self.x if self.block.parallel else self.middle


def double(part: Any) -> Any:
    """A dataclass of tensors (or a tensor) in float64."""
    if isinstance(part, Tensor):
        return part.double()
    if isinstance(part, (Norm, Affine, Norms, FeedForward, Block, Head)):
        return replace(part, **{field.name: double(getattr(part, field.name)) for field in fields(part)})
    return part


def normed(norm: Norm | None, y: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
    """y through a norm, where there is one."""
    return y if norm is None else norm(y)


def replay(
    block: Block,
    x: Float[Tensor, "token width"],
    probabilities: Float[Tensor, "head token token"],
    values: Float[Tensor, "kv_head token value_width"],
) -> Replay:
    """Run the block on x [token, width] in float64, with the attention and the values that were captured."""
    block, x, probabilities, values = double(block), x.double(), probabilities.double(), values.double()
    groups = probabilities.shape[0] // values.shape[0]
    projected = normed(block.norms.before, x) @ block.value_weight
    if block.value_bias is not None:
        projected = projected + block.value_bias[:, None]
    heads = (probabilities.unflatten(0, (-1, groups)) @ values[:, None]).flatten(0, 1)
    attention = heads.transpose(0, 1).flatten(1) @ block.output_weight.flatten(0, 1)
    if block.output_bias is not None:
        attention = attention + block.output_bias
    return Replay(block, x, probabilities, values, projected, attention, *after_attention(block, x, attention))


def after_attention(
    block: Block, x: Float[Tensor, "*batch width"], attention: Float[Tensor, "*batch width"]
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor, Tensor]:
    """(summed, middle, inner, gate, raised, total, output) of `Replay`, from what attention gave; position by
    position, so that any batch of them will do."""
    summed = x + normed(block.norms.on_output, attention)
    middle = normed(block.norms.after, summed)
    forward = block.feed_forward
    read = normed(forward.norms.before, x if block.parallel else middle)
    inner = forward.up(read)
    gate = None if forward.gate is None else forward.gate(read)
    raised = forward.down(forward.activation(inner) if gate is None else forward.activation(gate) * inner)
    total = middle + normed(forward.norms.on_output, raised)
    output = normed(forward.norms.after, total)
    return summed, middle, inner, gate, raised, total, output


def row_errors(found: Float[Tensor, "*batch token width"], own: Tensor) -> float:
    """The largest || found - own || / max(|| own ||, median || own ||) of any row; inf where one is not finite."""
    norms = own.double().norm(dim=-1)
    scale = norms.maximum(norms.median(dim=-1, keepdim=True).values).clamp(min=torch.finfo(torch.float64).tiny)
    worst = float(((found - own.double()).norm(dim=-1) / scale).max())
    return min(float("inf"), worst)
