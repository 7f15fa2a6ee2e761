"""Squared norms of attention rows without the matrix.

For a row of logits s, the softmax row a has || a ||^2 = exp(lse(2 s) - 2 lse(s)), lse the log-sum-exp. A fused kernel
returns lse; elsewhere the rows are formed in chunks and dropped.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clearhead.trace import Visible

CHUNK_BYTES = 128 * 2**20


def squared_row_norms(query: Tensor, key: Tensor, visible: Visible, scaling: float) -> Tensor:
    """|| softmax(q k) ||^2 over the visible keys: [head, query], float32 or better.

    `query` [head, query, width], `key` [kv_head, key, width].
    """
    key = key.repeat_interleave(query.shape[0] // key.shape[0], dim=0)
    causal = list(visible.stop) == list(range(1, visible.keys + 1)) and not any(visible.start)
    fused = query.device.type == "cpu" and query.dtype == torch.float32 and (visible.everything or causal)
    if fused and hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"):
        return fused_norms(query, key, causal and not visible.everything, scaling)
    return chunked_norms(query, key, visible, scaling)


def fused_norms(query: Tensor, key: Tensor, causal: bool, scaling: float) -> Tensor:
    """By the log-sum-exp of torch's fused CPU kernel, twice: of s and of 2 s.

    The operator is private to torch: the proof of a trace checks sampled rows of its result in float64.
    """
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    q, k = query[None].contiguous(), key[None].contiguous()
    once, twice = (attend(q, k, k, 0.0, causal, attn_mask=None, scale=scaling * factor)[1] for factor in (1.0, 2.0))
    return (twice - 2 * once).exp().reshape(query.shape[0], query.shape[1])


def chunked_norms(query: Tensor, key: Tensor, visible: Visible, scaling: float) -> Tensor:
    """By rows formed a chunk at a time, in float32 or better."""
    work = torch.float64 if query.dtype == torch.float64 else torch.float32
    query, key = query.to(work), key.to(work)
    size = max(1, CHUNK_BYTES // (query.shape[0] * key.shape[1] * query.element_size()))
    mask = None if visible.everything else (visible.start, visible.stop)
    norms: list[Tensor] = []
    position = torch.arange(visible.keys, device=query.device)
    for begin in range(0, query.shape[1], size):
        logits = (query[:, begin : begin + size] @ key.transpose(1, 2)) * scaling
        if mask is not None:
            first, last = (torch.tensor(bound[begin : begin + size], device=query.device)[:, None] for bound in mask)
            logits = logits.masked_fill(~((position >= first) & (position < last)), float("-inf"))
        norms.append((torch.logsumexp(2 * logits, -1) - 2 * torch.logsumexp(logits, -1)).exp())
    return torch.cat(norms, dim=-1)
