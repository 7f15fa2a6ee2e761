"""Effective attention of one layer (12 heads, d_v = 64, d = 768) against one full SVD a head, and against A V.

Float32 on one thread. Ours starts from values and head outputs, or from the attention itself; the baseline is the
published way in plain torch: T = V H, a full singular value decomposition, A - A U_0 U_0^T.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.table import line, median_seconds, row
from clearhead import linalg

HEADS, WIDTH, MODEL = 12, 64, 768
EPS = torch.finfo(torch.float32).eps


def layer(tokens: int, *, causal: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(attention, values, head outputs, output projection) of a random layer in general position."""
    random = torch.Generator().manual_seed(tokens)
    logits = 2 * torch.randn(HEADS, tokens, tokens, generator=random)
    if causal:
        logits = logits.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), float("-inf"))
    attention = logits.softmax(-1)
    values = torch.randn(HEADS, tokens, WIDTH, generator=random)
    weight = torch.randn(HEADS, WIDTH, MODEL, generator=random) / MODEL**0.5
    return attention, values, attention @ values, weight


def by_full_svd(attention: Tensor, values: Tensor, weight: Tensor) -> Tensor:
    """The baseline."""
    effective = torch.empty_like(attention)
    for head in range(HEADS):
        u, s, _ = torch.linalg.svd(values[head] @ weight[head], full_matrices=True)
        null = u[:, int((s > s[0] * max(len(u), WIDTH) * EPS).sum()) :]
        effective[head] = attention[head] - (attention[head] @ null) @ null.T
    return effective


def by_row_svd(attention: Tensor, values: Tensor) -> Tensor:
    """The baseline where every row sees other keys: one thin SVD a row."""
    effective = torch.zeros_like(attention)
    for head in range(HEADS):
        for query in range(attention.shape[1]):
            u, s, _ = torch.linalg.svd(values[head, : query + 1].double(), full_matrices=False)
            u = u[:, s > s[0] * max(query + 1, WIDTH) * EPS].float()
            effective[head, query, : query + 1] = (attention[head, query, : query + 1] @ u) @ u.T
    return effective


def main() -> None:
    torch.set_num_threads(1)
    for tokens in (256, 1024):
        attention, values, outputs, weight = layer(tokens)
        bounds = [0] * tokens, [tokens] * tokens
        ours = lambda: linalg.effective_attention(values, *bounds, eps=EPS, outputs=outputs, output_weight=weight)  # noqa: B023, E731
        slow = lambda: by_full_svd(attention, values, weight)  # noqa: B023, E731
        difference = float((ours()[0] - slow()).abs().max())
        row(f"effective attention, n = {tokens} (largest difference {difference:.0e})", median_seconds(ours, 9), median_seconds(slow, 3), at_least=40)
    for tokens in (512, 1024):
        attention, values, outputs, weight = layer(tokens)
        bounds = [0] * tokens, [tokens] * tokens
        product = median_seconds(lambda: attention @ values, 15)  # noqa: B023
        limit = median_seconds(lambda: outputs @ values.mT, 15)  # noqa: B023
        promised = 4 if tokens == 512 else None
        for start, given in (("head outputs", {"outputs": outputs}), ("attention", {"probabilities": attention})):
            ours = median_seconds(lambda: linalg.effective_attention(values, *bounds, eps=EPS, output_weight=weight, **given), 15)  # noqa: B023
            row(f"effective attention from {start} against A V, n = {tokens}", ours, product, at_most=promised if start == "head outputs" else None)
            line(f"the same against its limit, one n x n x d_v product a head", f"{ours:.3g} s", f"{limit:.3g} s", f"{ours / limit:.2f}x", "", True)
    tokens = 256
    attention, values, outputs, weight = layer(tokens, causal=True)
    bounds = [0] * tokens, list(range(1, tokens + 1))
    ours = lambda: linalg.effective_attention(values, *bounds, eps=EPS, probabilities=attention, output_weight=weight)  # noqa: E731
    difference = float((ours()[0] - by_row_svd(attention, values)).abs().max())
    row(f"causal effective attention, n = {tokens}, against an SVD a row (largest difference {difference:.0e})", median_seconds(ours), median_seconds(lambda: by_row_svd(attention, values), 1))


if __name__ == "__main__":
    main()
