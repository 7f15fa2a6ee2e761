"""DecompX: a state kept as a sum of parts, one a source token, and carried through block after block.

Each step is linear in the parts once what it divides by (the spread of a norm) or multiplies with (the slope of an
activation, a gate) is taken from the model's own pass; a bias is shared among the parts by a rule. So the parts go on
summing to the state. Parts are [query, source, width] in float64.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import NotDefined
from clearhead.linalg.block import Activation, Block, Head, Norm, Replay, double

CHUNK = 16 * 2**20
"""Bytes of the largest temporary tensor of a chunk of queries or of sources (measured, 100 tokens of MiniLM: 8 to 32
MiB are alike, 2 MiB is a quarter slower)."""
TARGETS = 4096
"""Targets of a vocabulary at a time."""


@dataclass(frozen=True)
class Rules:
    """How DecompX shares what is not linear.

    `bias`: in proportion to |part . bias| ("absdot") or || part || ("norm"), or biases left out (None). `slope` of an
    activation: act(z) / z ("GeLU_ZO"), or act'(z) with act(z) - act'(z) z shared as a bias ("GeLU_LA"). `guard`: added
    to what is divided by, as the published code does (1e-12); 0 is the formula.
    """

    bias: Literal["absdot", "norm"] | None = "absdot"
    slope: Literal["GeLU_ZO", "GeLU_LA"] = "GeLU_ZO"
    feed_forward: bool = True
    guard: float = 0.0


def shares(
    parts: Float[Tensor, "query source width"], bias: Float[Tensor, "*query width"], rules: Rules
) -> Float[Tensor, "query source 1"]:
    """The share of a bias that each part of a query gets; they sum to 1 (to 0 where no part has any weight)."""
    if rules.bias == "absdot":
        weights = (parts @ bias[..., None]).abs()
    else:
        weights = torch.linalg.vector_norm(parts, dim=-1, keepdim=True)
    total = weights.sum(1, keepdim=True) + rules.guard
    return weights / torch.where(total == 0, 1.0, total)


def add_bias(
    parts: Float[Tensor, "query source width"], bias: Float[Tensor, "*query width"] | None, rules: Rules
) -> Float[Tensor, "query source width"]:
    """The parts (changed in place) with the bias shared among them."""
    if bias is None or rules.bias is None:
        return parts
    return parts.addcmul_(shares(parts, bias, rules), bias[..., None, :] if bias.ndim > 1 else bias)


def carry_norm(
    norm: Norm | None, parts: Float[Tensor, "query source width"], whole: Float[Tensor, "query width"], rules: Rules
) -> Float[Tensor, "query source width"]:
    """Parts through a norm, by the spread of the whole."""
    if norm is None:
        return parts
    return add_bias(scaled(norm, parts, whole), norm.bias, rules)


def scaled(
    norm: Norm, parts: Float[Tensor, "query source width"], whole: Float[Tensor, "query width"]
) -> Float[Tensor, "query source width"]:
    """The linear part of a norm on parts, over the spread of the whole. Always a new tensor."""
    return norm.centred(parts) * (norm.gain / norm.spread(whole))[:, None]


def carry_activation(
    activation: Activation, parts: Float[Tensor, "query source width"], z: Float[Tensor, "query width"], rules: Rules
) -> Float[Tensor, "query source width"]:
    """Parts (changed in place) through an activation, z its argument as the model had it.

    Errors: NotDefined for GeLU_ZO where act(0) is not 0.
    """
    z = z.detach().requires_grad_()
    with torch.enable_grad():
        out = activation(z)
        (derivative,) = torch.autograd.grad(out.sum(), z)
    z, out = z.detach(), out.detach()
    if rules.slope == "GeLU_LA":
        return add_bias(parts.mul_(derivative[:, None]), out - derivative * z, rules)
    if float(activation(z.new_zeros(1))) != 0:
        raise NotDefined("decompx: the slope act(z) / z of an activation that is not 0 at 0", do="Use slope='GeLU_LA'.")
    divisor = z + rules.guard
    slope = torch.where(divisor == 0, derivative, out / torch.where(divisor == 0, 1.0, divisor))
    return parts.mul_(slope[:, None])


def own_states(ran: Replay, rows: slice) -> Float[Tensor, "query source width"]:
    """Parts of the states x where every token is its own source."""
    count = rows.stop - rows.start
    parts = ran.x.new_zeros(count, *ran.x.shape)
    parts[range(count), range(rows.start, rows.stop)] = ran.x[rows]
    return parts


def chunks(count: int, row_bytes: int) -> Iterator[slice]:
    """Consecutive rows, as many as stay within `CHUNK`."""
    size = max(1, CHUNK // row_bytes)
    for begin in range(0, count, size):
        yield slice(begin, min(begin + size, count))


def mixed(
    ran: Replay, parts: Float[Tensor, "query source width"] | None, rules: Rules
) -> Float[Tensor, "query source width"]:
    """Parts of the attention output, without bias: sum_h sum_j A^h_ij before(x_{j<-k}) W_V^h W_O^h, some sources at a
    time. Where every token is its own source (None), from the captured values, value bias included."""
    n, width = ran.x.shape
    kv, group = len(ran.values), len(ran.probabilities) // len(ran.values)
    found = ran.x.new_empty(n, n, width)
    if parts is None:
        written = (ran.values.repeat_interleave(group, dim=0) @ ran.block.output_weight).transpose(0, 1)
        for source in range(n):
            found[:, source] = ran.probabilities[:, :, source].T @ written[source]
        return found
    value, output = ran.block.value_weight.transpose(0, 1).flatten(1), ran.block.output_weight.flatten(0, 1)
    attention = ran.probabilities.unflatten(0, (kv, group)).flatten(1, 2)  # kv_head (group query) key
    before, share = ran.block.norms.before, ran.x.new_zeros(n, n, 1)
    bias = None if before is None or rules.bias is None else before.bias
    if before is not None and bias is not None:
        for rows in chunks(n, n * width * 8):
            share[rows] = shares(scaled(before, parts[rows], ran.x[rows]), bias, rules)
    for sources in chunks(n, n * max(len(output), width) * 8):
        x = parts[:, sources].contiguous()  # a strided product would be many small ones
        if before is not None:
            x = scaled(before, x, ran.x)
            x = x if bias is None else x.addcmul_(share[:, sources], bias)
        v = (x @ value).unflatten(-1, (kv, -1)).permute(2, 0, 1, 3)  # kv_head key source value_width
        heads = (attention @ v.flatten(2)).unflatten(1, (group, n)).unflatten(-1, v.shape[2:])
        found[:, sources] = heads.permute(2, 3, 0, 1, 4).flatten(2) @ output
    return found


def attention_bias(ran: Replay, first: bool) -> Float[Tensor, "width"] | None:
    """b_O, and beyond the first block b_V W_O as well (the rows of attention sum to 1)."""
    block, bias = ran.block, ran.block.output_bias
    if first or block.value_bias is None:
        return bias
    groups = len(block.output_weight) // len(block.value_bias)
    moved = torch.einsum("hv,hvw->w", block.value_bias.repeat_interleave(groups, dim=0), block.output_weight)
    return moved if bias is None else moved + bias


def carry_feed_forward(
    ran: Replay, rows: slice, read: Float[Tensor, "query source width"], rules: Rules
) -> Float[Tensor, "query source width"]:
    """Parts of what the feed-forward sub-block adds, from those of what it reads. A gate stands as a fixed factor."""
    forward = ran.block.feed_forward
    read = carry_norm(forward.norms.before, read, ran.read[rows], rules)
    inner = add_bias(read @ forward.up.weight, forward.up.bias, rules)
    if ran.gate is None:
        inner = carry_activation(forward.activation, inner, ran.inner[rows], rules)
    else:
        inner = inner.mul_(forward.activation(ran.gate[rows])[:, None])
    raised = add_bias(inner @ forward.down.weight, forward.down.bias, rules)
    return carry_norm(forward.norms.on_output, raised, ran.raised[rows], rules)


def is_causal(ran: Replay, parts: Float[Tensor, "query source width"] | None) -> bool:
    """True where no query has a part of a later token, neither before the block nor through its attention."""
    if bool(ran.probabilities.triu(1).any()):
        return False
    return parts is None or not any(bool(parts[query, query + 1 :].any()) for query in range(len(parts)))


def carry(
    ran: Replay, parts: Float[Tensor, "query source width"] | None, rules: Rules
) -> Float[Tensor, "query source width"]:
    """Parts of the states before a block (None: every token is its own) to parts of those after it.

    Two tensors of the size of `parts` are held at a time: itself and the result.
    Errors: NotDefined where a rule has no meaning for the block.
    """
    block, norms = ran.block, ran.block.norms
    if ran.gate is not None and rules.feed_forward and rules.slope == "GeLU_LA":
        do = "Use slope='GeLU_ZO', which keeps the gate as the factor that it was."
        raise NotDefined("decompx: slope='GeLU_LA' for a gated feed-forward, which is no function of one number", do=do)
    n, width = ran.x.shape
    found, bias = mixed(ran, parts, rules), attention_bias(ran, first=parts is None)
    causal = is_causal(ran, parts)
    for rows in chunks(n, n * max(width, ran.inner.shape[-1]) * 8):
        reach = rows.stop if causal else n  # sources beyond have no part in these queries: theirs stay exactly 0
        x = (own_states(ran, rows) if parts is None else parts[rows])[:, :reach]
        attention = found[rows, :reach]
        if norms.on_output is None:  # as published, a bias is shared among the parts with their residual
            attention = add_bias(attention.add_(x), bias, rules)
        else:
            attention = add_bias(attention, bias, rules)
            attention = carry_norm(norms.on_output, attention, ran.attention[rows], rules).add_(x)
        middle = carry_norm(norms.after, attention, ran.summed[rows], rules)
        total = middle
        if rules.feed_forward:
            total = carry_feed_forward(ran, rows, x if block.parallel else middle, rules).add_(middle)
        found[rows, :reach] = carry_norm(block.feed_forward.norms.after, total, ran.total[rows], rules)
    return found


def carry_head(
    head: Head,
    parts: Float[Tensor, "source width"],
    state: Float[Tensor, "width"],
    targets: list[int],
    rules: Rules,
) -> tuple[Float[Tensor, "target source"], Float[Tensor, "target"], Float[Tensor, "target"]]:
    """(parts of the logits of these targets, those logits rebuilt, the bound || w || || h || on the size of each), from
    the parts of the state of the token that the head reads. All of a vocabulary is formed only to share its bias."""
    found, whole = parts[None], state.double()[None]
    if head.norm is not None:
        norm = double(head.norm)
        found, whole = carry_norm(norm, found, whole, rules), norm(whole)
    if head.dense is not None and head.activation is not None:
        dense, slope = double(head.dense), replace(rules, slope="GeLU_ZO")  # as published, whatever the blocks have
        found, whole = add_bias(found @ dense.weight, dense.bias, rules), dense(whole)
        found, whole = carry_activation(head.activation, found, whole, slope), head.activation(whole)
    weight, bias = head.out.weight[:, targets].double(), head.out.bias
    logits, rebuilt = found[0] @ weight, whole[0] @ weight
    if bias is not None:
        rebuilt = rebuilt + bias[targets].double()
        if rules.bias is not None:
            logits = logits + output_shares(found[0], head, rules) * bias[targets].double()
    return logits.T, rebuilt, weight.norm(dim=0) * whole.norm()


def output_shares(parts: Float[Tensor, "source read"], head: Head, rules: Rules) -> Float[Tensor, "source 1"]:
    """The share of each part in the bias of the last map, over all its targets, some thousands at a time."""
    assert head.out.bias is not None
    weights = parts.new_zeros(len(parts), 1)
    for weight, bias in zip(head.out.weight.split(TARGETS, 1), head.out.bias.split(TARGETS), strict=True):
        some = parts @ weight.double()
        weights += some @ bias.double()[:, None] if rules.bias == "absdot" else some.square().sum(-1, keepdim=True)
    weights = weights.abs() if rules.bias == "absdot" else weights.sqrt()
    total = weights.sum() + rules.guard
    return weights / (total or 1.0)


def carry_cost(block: Block, tokens: int) -> tuple[float, int]:
    """(operations, bytes held at a time) of `carry` for one block."""
    width, out = block.output_weight.shape[-1], block.output_weight.flatten(0, 1).shape[0]
    kv = len(block.value_weight) * block.value_weight.shape[-1]
    products = width * (kv + out + 2 * block.feed_forward.up.weight.shape[1]) + tokens * out
    return 2.0 * tokens**2 * products, 2 * tokens**2 * width * 8
