"""Effective attention the slowest obvious way, and layers to try it on. Shares no line with the library."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Made:
    """One made-up layer: attention over visible keys, values, head outputs, and the visible interval of each query."""

    attention: Tensor
    values: Tensor
    outputs: Tensor
    start: list[int]
    stop: list[int]

    @property
    def eps(self) -> float:
        return torch.finfo(self.values.dtype).eps


def visible(mask: str, tokens: int, window: int = 14) -> tuple[list[int], list[int]]:
    """[start, stop) of each query."""
    if mask == "both":
        return [0] * tokens, [tokens] * tokens
    if mask == "causal":
        return [0] * tokens, list(range(1, tokens + 1))
    if mask == "window":
        return [max(0, i + 1 - window) for i in range(tokens)], list(range(1, tokens + 1))
    assert mask == "prefix"
    return [0] * tokens, [max(tokens // 3, i + 1) for i in range(tokens)]


def values_of(kind: str, heads: int, tokens: int, width: int, seed: int) -> Tensor:
    """Value vectors [head, token, width] in float64."""
    random = torch.Generator().manual_seed(seed)
    general = torch.randn(heads, tokens, width, generator=random, dtype=torch.float64)
    if kind == "general":
        return general
    if kind == "repeated":  # a few different rows
        which = torch.randint(0, max(2, width // 2), (tokens,), generator=random)
        return general[:, which % tokens]
    if kind == "often":  # more different rows than width, each several times
        return general[:, torch.arange(tokens) % min(tokens, width + 2)]
    if kind == "decaying":  # singular values over four decades: beyond what a Cholesky factor may prove in float64
        return general * torch.logspace(0, -4, width, dtype=torch.float64)
    if kind == "massive":  # one value vector a thousand times the others
        return general * torch.where(torch.arange(tokens) == tokens // 3, 1e3, 1.0)[:, None]
    if kind == "low rank":  # rank width / 2 by construction, no two rows alike
        mix = torch.randn(heads, width // 2, width, generator=random, dtype=torch.float64)
        return general[..., : width // 2] @ mix
    assert kind == "zero head"
    return general * (torch.arange(heads) > 0)[:, None, None]


KINDS = ("general", "repeated", "often", "decaying", "massive", "low rank", "zero head")
MASKS = ("both", "causal", "window", "prefix")


def made(
    mask: str, kind: str, *, tokens: int = 40, width: int = 8, kv: int = 2, group: int = 2, seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Made:  # fmt: skip
    """A layer whose attention is a softmax of random logits over the visible keys."""
    start, stop = visible(mask, tokens)
    random = torch.Generator().manual_seed(seed + 1)
    logits = 2 * torch.randn(kv * group, tokens, tokens, generator=random, dtype=torch.float64)
    for i in range(tokens):
        logits[:, i, : start[i]] = logits[:, i, stop[i] :] = -torch.inf
    attention = logits.softmax(-1)
    values = values_of(kind, kv, tokens, width, seed)
    outputs = torch.stack([attention[h] @ values[h // group] for h in range(kv * group)])
    return Made(attention.to(dtype), values.to(dtype), outputs.to(dtype), start, stop)


def effective(
    attention: Tensor, values: Tensor, start: list[int], stop: list[int], eps: float, *, row_sum: bool = False
) -> np.ndarray:
    """One singular value decomposition a row, in float64."""
    a, v = attention.double().numpy(), values.double().numpy()
    group = len(a) // len(v)
    result = np.zeros(a.shape)
    for h in range(len(a)):
        mine = v[h // group]
        if row_sum:
            mine = np.column_stack([mine, np.full(len(mine), np.sqrt((mine**2).mean()) or 1.0)])
        for i in range(a.shape[1]):
            keys = slice(start[i], stop[i])
            u, s, _ = np.linalg.svd(mine[keys], full_matrices=True)
            rank = int((s > s[0] * max(mine[keys].shape) * eps).sum()) if s[0] > 0 else 0
            null = u[:, rank:]
            result[h, i, keys] = a[h, i, keys] - (a[h, i, keys] @ null) @ null.T
    return result
