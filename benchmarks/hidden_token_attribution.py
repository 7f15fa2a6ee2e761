"""Hidden Token Attribution: forward sweeps against batched reverse products, 12 tokens, float32, every layer.

    python -m benchmarks.hidden_token_attribution [--quick | --whole]

The baseline keeps one graph and asks it for the gradients of 96 output numbers at a time, from each layer's own output.
It repeats the same work 48 times a layer (4,608 output numbers), so 3 of those are timed and their median multiplied
by 48; `--whole` runs all of them. The exact sweeps are timed whole (`--quick`: a few chunks of tangents, multiplied).
Counting products alone, the forward sweep wins by (L + 1) / 2 for L layers: 3.5 at 6, 6.5 at 12. Seconds are those of
the one thread on the processor, so that other work on the machine counts for neither side.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertModel

import clearhead as ch
from benchmarks.table import line, row
from clearhead import linalg
from clearhead.models.load import load

TEXT = "The quick brown fox jumps over the lazy dog."
CHUNK = 96
ERROR = 0.05
SEEDS = 5


def states_of(hf: Any, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """(x, states): a leaf where the first block reads, and each block's output, in one graph."""
    states: list[Tensor] = []
    leaf = hf.embeddings(input_ids=ids).detach().requires_grad_()

    def enter(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (leaf, *args[1:])

    def keep(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        states.append(out[0] if isinstance(out, tuple) else out)

    hooks = [layer.register_forward_hook(keep) for layer in hf.encoder.layer]
    hooks.append(hf.encoder.layer[0].register_forward_pre_hook(enter))
    hf(input_ids=ids)
    for hook in hooks:
        hook.remove()
    return leaf, states


def reverse_products(hf: Any, ids: Tensor, whole: bool) -> float:
    """Seconds of the baseline for every layer's Jacobian norms."""
    leaf, states = states_of(hf, ids)
    numbers = states[0].numel()

    def chunk(state: Tensor, first: int) -> None:
        cotangents = torch.zeros(CHUNK, numbers)
        cotangents[range(CHUNK), range(first, first + CHUNK)] = 1
        got = torch.autograd.grad(
            state, leaf, cotangents.view(CHUNK, *state.shape), retain_graph=True, is_grads_batched=True
        )
        got[0].square().sum(-1)

    total = 0.0
    for state in states:
        chunk(state, 0)
        starts = range(0, numbers, CHUNK) if whole else range(0, 3 * CHUNK, CHUNK)
        times = [once(lambda first=first, state=state: chunk(state, first)) for first in starts]
        total += sum(times) if whole else statistics.median(times) * numbers / CHUNK
    return total


def once(function: Callable[[], object]) -> float:
    """Processor seconds of one call."""
    begun = time.process_time()
    function()
    return time.process_time() - begun


def exact_seconds(trace: ch.Trace, quick: bool) -> float:
    """Seconds of the exact map; `quick`: of 32 tangents a token, multiplied."""
    if not quick:
        return once(lambda: ch.hidden_token_attribution(trace, probes=None))
    x, f = trace.model.from_embedding(trace, "output")
    probes = linalg.orthogonal_probes(32, x.shape[1], 0)
    return once(lambda: linalg.sampled_norms(f, x, probes)) * x.shape[1] / len(probes)


def compare_exact(name: str, trace: ch.Trace, promised: float, options: argparse.Namespace) -> float:
    """Print the exact map against the baseline; the baseline's seconds."""
    hf: Any = copy.deepcopy(trace.model.hf).requires_grad_(False)  # pyright: ignore[reportAttributeAccessIssue]
    hf.set_attn_implementation("eager")
    baseline = reverse_products(hf, trace.inputs["input_ids"], options.whole)
    ours = exact_seconds(trace, options.quick)
    layers = len(trace.layers)
    row(f"exact HTA, {name}, all {layers} layers", ours, baseline, at_least=promised)
    limit = (layers + 1) / 2
    near = baseline / ours / limit
    line(
        f"&nbsp; its limit by products alone, {layers} layers", "", "", f"{limit:g}x", f"{near:.0%} of it reached", True
    )
    return baseline


def compare_estimate(trace: ch.Trace, baseline: float) -> None:
    """Print the estimator with the fewest probes whose mean relative error of c is at most 5 %."""
    truth = ch.hidden_token_attribution(trace, probes=None).values
    for probes in (4, 6, 8, 10, 12, 16):
        runs = [ch.hidden_token_attribution(trace, probes=probes, seed=seed) for seed in range(SEEDS)]
        error = float(np.mean([np.abs(run.values / truth - 1).mean() for run in runs]))
        if error <= ERROR:
            break
    else:
        raise SystemExit(f"16 probes leave a mean relative error of {error:.1%}")
    ours = statistics.median(once(lambda: ch.hidden_token_attribution(trace, probes=probes)) for _ in range(SEEDS))
    row(f"HTA by {probes} probes ({error:.1%} mean relative error), 6 layers", ours, baseline, at_least=100)


def deep_model() -> ch.Model:
    """A random model of the demo's width with 12 layers, on the demo's tokenizer."""
    demo = load("demo")
    config: Any = copy.deepcopy(demo.config)
    config.num_hidden_layers = 12
    torch.manual_seed(0)
    deep = BertModel(config).eval()
    return load((deep, demo.tokenizer))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="time parts and multiply")
    parser.add_argument("--whole", action="store_true", help="run the whole baseline too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    trace = load("demo").trace(TEXT)
    baseline = compare_exact("MiniLM", trace, 2, options)
    compare_estimate(trace, baseline)
    compare_exact("random, same width", deep_model().trace(TEXT), 3.5, options)


if __name__ == "__main__":
    main()
