"""Gradient methods of a classifier on the demo model in float64, 100 tokens, one thread.

ATTATTR: our rule against the published left sum of 64 points, run the way of the authors' code (from the embeddings,
one layer's attention scaled, on the model with its own eager attention), of the last layer, times the layers.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
import transformers as tf
from torch import Tensor

import clearhead as ch
from benchmarks.decompositions import TOKENS, traced
from benchmarks.table import line
from clearhead.models.load import load

POINTS, BATCH = 64, 16
"""Of the published sum; points a pass."""


def classifier() -> ch.Model:
    demo: Any = load("demo", dtype="float64")
    torch.manual_seed(0)
    hf = tf.BertForSequenceClassification(demo.hf.config).double().eval()
    hf.set_attn_implementation("eager")
    hf.bert.load_state_dict(demo.hf.state_dict())
    return load((hf, demo.tokenizer))


def published(model: Any, text: str, layer: int) -> Tensor:
    """A * the mean gradient at k / 64 A, the softmax of one layer's attention scaled."""
    inputs = model.tokenizer(text, return_tensors="pt")
    own, total, kept = torch.nn.functional.softmax, 0.0, list[Tensor]()
    label = int(model.hf(**inputs).logits.argmax())
    for start in range(0, POINTS, BATCH):
        scale = torch.arange(start, start + BATCH).double().view(-1, 1, 1, 1) / POINTS
        calls: list[int] = []

        def softmax(*given: Any, calls: list[int] = calls, scale: Tensor = scale, **named: Any) -> Tensor:
            calls.append(0)
            found = own(*given, **named)
            if len(calls) == layer + 1:
                kept[:] = [found[0].detach(), (found.detach() * scale).requires_grad_()]
                found = kept[1]
            return found

        torch.nn.functional.softmax = softmax
        try:
            logits = model.hf(**{name: tensor.expand(BATCH, -1) for name, tensor in inputs.items()}).logits
        finally:
            torch.nn.functional.softmax = own
        total = total + torch.autograd.grad(logits.softmax(-1)[:, label].sum(), kept[1])[0].sum(0)
    return kept[0] * total / POINTS


def seconds(run: Any) -> tuple[float, Any]:
    start = time.process_time()
    found = run()
    return time.process_time() - start, found


def main() -> None:
    torch.set_num_threads(1)
    model = classifier()
    trace = traced(model, TOKENS)
    last = len(trace.layers) - 1
    ours, found = seconds(partial(ch.attention_attribution, trace))
    error = max(told["error"] for told in found.meta["completeness"])
    points = max(told["evaluations"] for told in found.meta["completeness"])
    theirs, expected = seconds(partial(published, model, trace.tokens.text, last))
    theirs *= len(trace.layers)
    same = ch.attention_attribution(trace, layer=last, variant="published").values[0]
    if not abs(same - expected.numpy()).max() <= 1e-9 * float(expected.abs().max()):
        raise SystemExit("the published variant is not the baseline's number")
    what = f"ATTATTR, {TOKENS} tokens, 6 layers (complete to {error:.0e}, at most {points} points a layer)"
    line(what, f"{ours:.2f} s", f"{theirs:.1f} s", f"{theirs / ours:.1f}", "at least 4", theirs >= 4 * ours)


if __name__ == "__main__":
    main()
