"""Effective attention of one layer (12 heads, d_v = 64, d = 768) against one full SVD a head, and against A V.

Float32 on one thread. Ours starts from values and head outputs, or from the attention itself; the baseline is the
published way in plain torch: T = V H, a full singular value decomposition, A - A U_0 U_0^T.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.table import row
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


def medians(rounds: int, *functions: Callable[[], object]) -> list[float]:
    """Median CPU seconds of each (one thread), in turn, so that whatever else the machine does falls on all alike."""
    seconds: list[list[float]] = [[] for _ in functions]
    for repeat in range(rounds + 1):
        for function, mine in zip(functions, seconds, strict=True):
            start = time.process_time()
            function()
            if repeat:  # the first round is not counted
                mine.append(time.process_time() - start)
    return [statistics.median(mine) for mine in seconds]


def against_svd(tokens: int) -> None:
    """From values and head outputs; then with the check that the output projection reads every direction of a value."""
    attention, values, outputs, weight = layer(tokens)
    theirs = partial(by_full_svd, attention, values, weight)
    difference = float((from_outputs(values, outputs, weight) - theirs()).abs().max())
    what = f"effective attention against a full SVD a head, n = {tokens} (largest difference {difference:.0e})"
    ours, checked = medians(25, partial(from_outputs, values, outputs), partial(from_outputs, values, outputs, weight))
    (slow,) = medians(3, theirs)
    row(what, ours, slow, at_least=40)
    row("the same with the rank of the output projection checked", checked, slow, at_least=1)


def against_product(tokens: int, *, promised: float | None) -> None:
    """Against A V, and against its limit: what must be computed is one product o' V' of n x n x d_v a head."""
    attention, values, outputs, weight = layer(tokens)
    short, long, product, limit = medians(
        25,
        partial(from_outputs, values, outputs, weight),
        partial(from_attention, values, attention, weight),
        lambda: attention @ values,
        lambda: outputs @ values.mT,
    )
    row(f"effective attention from head outputs against A V, n = {tokens}", short, product, at_most=promised)
    row("the same against its limit, one n x n x d_v product a head", short, limit)
    row(f"effective attention from the attention against A V, n = {tokens}", long, product)


def from_outputs(values: Tensor, outputs: Tensor, weight: Tensor | None = None) -> Tensor:
    n = values.shape[1]
    directions = None if weight is None else linalg.read_directions(weight)
    return linalg.effective_attention(values, [0] * n, [n] * n, eps=EPS, outputs=outputs, directions=directions)[0]


def from_attention(values: Tensor, attention: Tensor, weight: Tensor, *, causal: bool = False) -> Tensor:
    n = values.shape[1]
    stop = list(range(1, n + 1)) if causal else [n] * n
    directions = linalg.read_directions(weight)
    return linalg.effective_attention(values, [0] * n, stop, eps=EPS, probabilities=attention, directions=directions)[0]


def against_row_svd(tokens: int) -> None:
    """Causal: each row sees other keys."""
    attention, values, _, weight = layer(tokens, causal=True)
    ours = partial(from_attention, values, attention, weight, causal=True)
    theirs = partial(by_row_svd, attention, values)
    difference = float((ours() - theirs()).abs().max())
    what = f"causal effective attention against an SVD a row, n = {tokens} (largest difference {difference:.0e})"
    row(what, *medians(2, ours, theirs), at_least=1)


def main() -> None:
    torch.set_num_threads(1)
    torch.empty(7 * 2**20)  # 28 MiB, as in any forward pass: from then on the C library keeps freed memory for reuse
    against_svd(256)
    against_svd(1024)
    against_product(512, promised=4)
    against_product(1024, promised=None)
    against_row_svd(256)


if __name__ == "__main__":
    main()
