"""Decompositions of the demo model in float64, 100 tokens, one thread, against the same formulas with a vector a pair.

The baseline is the way of the authors' code, in plain torch: every vector (head, query, key) or (query, source) is
formed as a tensor, then measured. CPU seconds, in turn, from a trace; both include the proof of every block. Then the
memory that the methods which take seconds need for 512 tokens on the MPNet-base architecture, in a process of its own.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import MPNetConfig, MPNetModel

import clearhead as ch
from benchmarks.effective_attention import medians
from benchmarks.table import line, row
from clearhead.linalg.block import Norm, Replay
from clearhead.models.load import load

SENTENCE = (
    "Attention weights are read as explanations, yet many of them could move and nothing that follows would change. "
)
TOKENS, LONG = 100, 512
GIB = 2**30


def traced(model: ch.Model, tokens: int) -> ch.Trace:
    """A trace of exactly so many tokens."""
    words = (SENTENCE * (tokens // 10)).split()
    for count in range(tokens * 2 // 3, tokens):
        if len(model.tokenizer(" ".join(words[:count]))["input_ids"]) == tokens:
            return model.trace(" ".join(words[:count]))
    raise SystemExit(f"no number of words gives {tokens} tokens")


def vectors(ran: Replay) -> Tensor:
    """a f(x) [head, query, key, width]."""
    written = ran.values @ ran.block.output_weight
    return ran.probabilities[..., None] * written[:, None]


def part(norm: Norm | None, parts: Tensor, whole: Tensor) -> Tensor:
    """A LayerNorm on parts [query, key, width]."""
    assert norm is not None
    deviation = (whole.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
    return (parts - parts.mean(-1, keepdim=True)) / deviation[:, None] * norm.gain


def after_norm(ran: Replay) -> Tensor:
    """F_i(x_j) [query, key, width]."""
    parts = vectors(ran).sum(0)
    parts[range(len(parts)), range(len(parts))] += ran.x
    return part(ran.block.norms.after, parts, ran.summed)


def plain_norms(ran: Replay) -> Tensor:
    return vectors(ran).sum(0).norm(dim=-1)


def plain_globenc(ran: Replay) -> Tensor:
    return part(ran.block.feed_forward.norms.after, after_norm(ran), ran.total).norm(dim=-1)


def plain_alti(ran: Replay) -> Tensor:
    y = ran.middle
    near = (y.abs().sum(-1, keepdim=True) - (y[:, None] - after_norm(ran)).abs().sum(-1)).clamp(min=0)
    return near / near.sum(-1, keepdim=True)


def shared(parts: Tensor, bias: Tensor | None) -> Tensor:
    """A bias shared by |dot|."""
    assert bias is not None
    weights = torch.einsum("qkd,d->qk", parts, bias).abs()
    return parts + torch.einsum("qk,d->qkd", weights / weights.sum(-1, keepdim=True), bias)


def plain_decompx(ran: Replay, state: list[Tensor]) -> Tensor:
    """One block; `state` holds the parts before it, where there are any, and is given those after it."""
    block, forward = ran.block, ran.block.feed_forward
    assert block.output_bias is not None and block.value_bias is not None and block.norms.after is not None
    if state:
        values = torch.einsum("jkd,hdv->hjkv", state[0], block.value_weight)
        heads = torch.einsum("hij,hjkv->hikv", ran.probabilities, values)
        parts = torch.einsum("hikv,hvd->ikd", heads, block.output_weight) + state[0]
        bias = torch.einsum("hv,hvd->d", block.value_bias, block.output_weight) + block.output_bias
    else:
        parts, bias = vectors(ran).sum(0), block.output_bias
        parts[range(len(parts)), range(len(parts))] += ran.x
    middle = shared(part(block.norms.after, shared(parts, bias), ran.summed), block.norms.after.bias)
    inner = shared(torch.einsum("qkd,df->qkf", middle, forward.up.weight), forward.up.bias)
    inner = inner * (forward.activation(ran.inner) / ran.inner)[:, None]
    raised = shared(torch.einsum("qkf,fd->qkd", inner, forward.down.weight), forward.down.bias)
    norm = forward.norms.after
    assert norm is not None
    state[:] = [shared(part(norm, raised + middle, ran.total), norm.bias)]
    return state[0].norm(dim=-1)


def plain(trace: ch.Trace, function: Callable[..., Tensor], *more: Any) -> Tensor:
    """All layers by a baseline."""
    return torch.stack([function(trace.replay(layer), *more) for layer in range(len(trace.layers))])


def compare(
    what: str, trace: ch.Trace, method: Callable[..., ch.Map], slow: Callable[[], Tensor], least: float
) -> None:
    """Print our time, that of the baseline, and how far the numbers are apart."""
    found, expected = method(trace).values, slow().numpy()
    error = float((abs(found - expected) / abs(expected).max()).max())
    ours, theirs = medians(3, partial(method, trace), slow)
    row(f"{what}, {TOKENS} tokens, 6 layers (largest difference {error:.0e})", ours, theirs, at_least=least)


def long_text() -> None:
    """What the `--memory` process does: every method that takes seconds, and print the peak in bytes."""
    torch.manual_seed(0)
    hf = MPNetModel(MPNetConfig(max_position_embeddings=LONG + 2)).double().eval().requires_grad_(False)
    trace = traced(load((hf, load("demo").tokenizer)), LONG)
    for method in (ch.attention_rollout, ch.attention_shapley, ch.effective_attention, ch.vector_norms,
                   ch.residual_norms, ch.mixing_ratio, ch.globenc, ch.alti):  # fmt: skip
        method(trace)
    for method in (ch.gradient_norm, ch.input_x_gradient, ch.relevance):
        method(trace, target="similar:" + SENTENCE)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def main() -> None:
    torch.set_num_threads(1)
    if "--memory" in sys.argv[1:]:
        long_text()
        return
    trace = traced(load("demo", dtype="float64"), TOKENS)
    compare("vector norms", trace, ch.vector_norms, partial(plain, trace, plain_norms), 6)
    compare("GlobEnc", trace, ch.globenc, partial(plain, trace, plain_globenc), 4)
    compare("ALTI", trace, ch.alti, partial(plain, trace, plain_alti), 4)
    compare("DecompX", trace, ch.decompx, lambda: plain(trace, plain_decompx, []), 1)
    command = [sys.executable, "-m", "benchmarks.decompositions", "--memory"]
    peak = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    what = f"memory of eleven methods, MPNet-base in float64, {LONG} tokens"
    line(what, f"{peak / GIB:.2f} GiB", "", "", "at most 3 GiB", peak <= 3 * GIB)


if __name__ == "__main__":
    main()
