"""Effective attention of one layer (12 heads, d_v = 64, d = 768) against one full SVD a head, and against A V.

Float32 on one thread. Ours starts from values and head outputs, or from the attention itself; the baseline is the
published way in plain torch: T = V H, a full singular value decomposition, A - A U_0 U_0^T.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from benchmarks.table import median_seconds, row
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


def against_svd(tokens: int) -> None:
    """From values and head outputs, the check of the output projection's rank included."""
    attention, values, outputs, weight = layer(tokens)
    ours = partial(
        linalg.effective_attention,
        values,
        [0] * tokens,
        [tokens] * tokens,
        eps=EPS,
        outputs=outputs,
        output_weight=weight,
    )
    theirs = partial(by_full_svd, attention, values, weight)
    difference = float((ours()[0] - theirs()).abs().max())
    what = f"effective attention against a full SVD a head, n = {tokens} (largest difference {difference:.0e})"
    row(what, median_seconds(ours, 15), median_seconds(theirs, 3), at_least=40)


def against_product(tokens: int, *, promised: float | None) -> None:
    """Against A V, and against its limit: what must be computed is one product o' V' of n x n x d_v a head."""
    attention, values, outputs, weight = layer(tokens)
    bounds = [0] * tokens, [tokens] * tokens
    product = median_seconds(lambda: attention @ values, 15)
    limit = median_seconds(lambda: outputs @ values.mT, 15)
    from_outputs = partial(linalg.effective_attention, values, *bounds, eps=EPS, outputs=outputs, output_weight=weight)
    from_attention = partial(
        linalg.effective_attention, values, *bounds, eps=EPS, probabilities=attention, output_weight=weight
    )
    for start, ours in (("head outputs", from_outputs), ("attention", from_attention)):
        seconds = median_seconds(ours, 15)
        row(f"effective attention from {start} against A V, n = {tokens}", seconds, product, at_most=promised)
        row("its limit, one n x n x d_v product a head", seconds, limit)
    assert torch.allclose(from_outputs()[0], from_attention()[0], atol=1e-5)


def causal(tokens: int) -> None:
    """Each row sees other keys."""
    attention, values, _, weight = layer(tokens, causal=True)
    bounds = [0] * tokens, list(range(1, tokens + 1))
    ours = partial(linalg.effective_attention, values, *bounds, eps=EPS, probabilities=attention, output_weight=weight)
    theirs = partial(by_row_svd, attention, values)
    difference = float((ours()[0] - theirs()).abs().max())
    what = f"causal effective attention against an SVD a row, n = {tokens} (largest difference {difference:.0e})"
    row(what, median_seconds(ours), median_seconds(theirs, 1), at_least=1)


def main() -> None:
    torch.set_num_threads(1)
    against_svd(256)
    against_svd(1024)
    against_product(512, promised=4)
    against_product(1024, promised=None)
    causal(256)


if __name__ == "__main__":
    main()
