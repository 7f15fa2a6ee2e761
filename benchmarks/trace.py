"""A trace, with its proof by rebuilding, against a plain eager forward pass that returns attentions and hidden states.

Both from the text (tokenised by the model's tokenizer), the demo model, float32, one thread. The once-only comparison
with the untouched model is made before. What a trace adds by its nature: one more reading of the attention (n^2 heads
numbers a layer) and of the projections, and the memory of queries, keys and values, which it keeps.
"""

from __future__ import annotations

import statistics
import time

import torch

from benchmarks.table import line
from clearhead.models.load import load

TEXT = "Attention weights are read as explanations, yet many of them could move and nothing that follows would change. "


def main() -> None:
    torch.set_num_threads(1)
    traced, plain = load("demo"), load("demo")
    plain.hf.set_attn_implementation("eager")
    for words, most in ((128, 1.15), (512, 1.3)):
        text = " ".join((TEXT * 40).split()[: words * 115 // 130])
        inputs = traced.trace(text).inputs
        ours: list[float] = []
        baseline: list[float] = []
        for _ in range(3 + (60 if words == 128 else 25)):  # in turn, so that a change of speed meets both
            start = time.perf_counter()
            with torch.no_grad():
                encoded = plain.tokenizer(text, return_tensors="pt")
                plain.hf(**encoded, output_attentions=True, output_hidden_states=True)
            middle = time.perf_counter()
            traced.trace(text)
            ours.append(time.perf_counter() - middle)
            baseline.append(middle - start)
        ratio = statistics.median(a / b for a, b in zip(ours[3:], baseline[3:], strict=True))
        count = inputs["input_ids"].shape[1]
        mine, theirs = (f"{statistics.median(times[3:]):.3g} s" for times in (ours, baseline))
        line(f"trace of {count} tokens", mine, theirs, f"{ratio:.3g}x", f"at most {most:g}x", ratio <= most)


if __name__ == "__main__":
    main()
