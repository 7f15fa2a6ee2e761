"""Attention flow and value zeroing against their definitions, float64, one thread.

Flow of every pair: baseline is shortest augmenting paths in plain Python (12 tokens, all layers; above that only ours,
against its limit in seconds). Value zeroing of the demo model: baseline is the authors' way, a run of each layer for
each token, one at a time, by transformers' own module.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
import torch

import clearhead as ch
from benchmarks.decompositions import traced
from benchmarks.effective_attention import medians
from benchmarks.table import line, row


def plain_flow(capacities: np.ndarray, query: int, key: int) -> float:
    """One maximal flow: shortest augmenting paths on a dictionary of what is left of each edge."""
    layers, n = capacities.shape[:2]
    left: dict[tuple[int, int], dict[tuple[int, int], float]] = {}
    for level in range(layers):
        for i in range(n):
            for k in range(n):
                left.setdefault((level + 1, i), {})[level, k] = float(capacities[level, i, k])
                left.setdefault((level, k), {})[level + 1, i] = 0.0
    total, source, sink = 0.0, (layers, query), (0, key)
    while True:
        came, queue = {source: source}, deque([source])
        while queue and sink not in came:
            node = queue.popleft()
            for other, room in left[node].items():
                if room > 1e-15 and other not in came:
                    came[other] = node
                    queue.append(other)
        if sink not in came:
            return total
        path, node = [], sink
        while node != source:
            path.append((came[node], node))
            node = came[node]
        step = min(left[a][b] for a, b in path)
        for a, b in path:
            left[a][b] -= step
            left[b][a] += step
        total += step


def flow(model: ch.Model) -> None:
    trace = traced(model, 12)
    raw = ch.effective_attention(trace, part="raw").values.mean(1)
    capacities = 0.5 * raw + 0.5 * np.eye(12)
    found = ch.attention_flow(trace).values
    start = time.process_time()
    slow = np.array([[plain_flow(capacities[: k + 1], 5, j) for j in range(12)] for k in range(6)])
    baseline = 12 * (time.process_time() - start)  # one query of twelve
    (ours,) = medians(5, lambda: ch.attention_flow(trace))
    error = np.abs(found[:, 5] - slow).max()
    row(
        f"attention flow, 12 tokens, 6 layers, every pair (largest difference {error:.0e})", ours, baseline, at_least=50
    )
    line("the same in seconds", f"{ours:.3g} s", "", "", "at most 0.05 s", ours <= 0.05)
    long = traced(model, 64)
    start = time.process_time()
    ch.attention_flow(long)
    ours = time.process_time() - start
    line("attention flow, 64 tokens, 6 layers, every pair", f"{ours:.3g} s", "", "", "at most 20 s", ours <= 20)


def plain_zeroing(trace: ch.Trace) -> np.ndarray:
    """Each layer run again for each token by transformers' own modules, a hook on the value projection."""
    model: Any = trace.model
    distances = np.zeros((len(trace.layers), len(trace.tokens), len(trace.tokens)))
    for index, module in enumerate(model.layer_modules()):
        own = trace.hidden[index + 1]
        for key in range(len(trace.tokens)):

            def zero(_: Any, args: Any, output: torch.Tensor, key: int = key) -> torch.Tensor:
                output[:, key] = 0
                return output

            hook = module.attention.self.value.register_forward_hook(zero)
            with torch.no_grad():
                found = module(trace.hidden[index][None])
            hook.remove()
            found = (found[0] if isinstance(found, tuple) else found)[0]
            distances[index, :, key] = 1 - torch.nn.functional.cosine_similarity(found, own, dim=-1).numpy()
    return distances


def value_zeroing(model: ch.Model) -> None:
    trace = traced(model, 100)
    error = np.abs(ch.value_zeroing(trace, raw=True).values - plain_zeroing(trace)).max()
    ours, slow = medians(3, lambda: ch.value_zeroing(trace), lambda: plain_zeroing(trace))
    what = f"value zeroing, 100 tokens, 6 layers (largest difference {error:.0e})"
    row(what, ours, slow, at_least=1)
    line("the same in seconds", f"{ours:.3g} s", "", "", "at most 5 s", ours <= 5)


def main() -> None:
    torch.set_num_threads(1)
    model = ch.load("demo", dtype="float64")
    flow(model)
    value_zeroing(model)


if __name__ == "__main__":
    main()
