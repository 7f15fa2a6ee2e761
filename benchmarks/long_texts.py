"""Texts too long for an n x n matrix: traces of outputs, the summary of effective attention and its certificate.

A random model of the demo's architecture (6 layers, 12 heads, d = 384) with positions for 16,384 tokens, float32, one
thread. Promises: 4,096 tokens with the certificate under 2 GiB (peak of a process of its own); from 4,096 to 16,384
tokens the time grows no faster than the model's own forward pass. One n x n float32 matrix a head and layer would be
4.8 GB at 4,096 tokens and 77 GB at 16,384.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks.table import line

LONG = 16_384


def subject() -> object:
    """A random model of the demo's architecture, with the demo's tokenizer."""
    import torch
    import transformers

    import clearhead as ch

    torch.manual_seed(0)
    demo = ch.load("demo")
    options: dict[str, Any] = demo.hf.config.to_dict() | {"max_position_embeddings": LONG}
    config = transformers.BertConfig(**options)
    return ch.load((transformers.BertModel(config).eval(), demo.tokenizer))


def text(tokens: int) -> str:
    words = "river stone light paper green seven house music winter apple cloud glass table north silver".split()
    return " ".join(np.random.default_rng(0).choice(words, tokens - 2))


def run(tokens: int) -> None:
    """In a process of its own: print seconds of the plain pass, of trace + summary, and peak memory in GiB."""
    import torch

    import clearhead as ch

    torch.set_num_threads(1)
    model = subject()
    assert isinstance(model, ch.Model)
    model.trace(text(64), capture="outputs")  # the once-only comparison
    content = text(tokens)
    start = time.perf_counter()
    trace = model.trace(content, capture="outputs")
    summary = ch.effective_attention_summary(trace)
    certificate = ch.attention_identifiability(trace)
    ours = time.perf_counter() - start
    inputs = trace.inputs
    start = time.perf_counter()
    with torch.no_grad():
        model.hf(**inputs)
    plain = time.perf_counter() - start
    assert len(trace.tokens) == tokens and len(summary) == 72 * tokens and len(certificate) == 72
    print(plain, ours, peak_gib())


def peak_gib() -> float:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**30 if sys.platform == "darwin" else peak / 2**20


def measure(tokens: int) -> tuple[float, float, float]:
    command = [sys.executable, "-m", "benchmarks.long_texts", str(tokens)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    plain, ours, peak = map(float, out.split())
    return plain, ours, peak


def main() -> None:
    plain, ours, peak = measure(4096)
    line("summary and certificate, 4,096 tokens: peak memory", f"{peak:.2f} GiB", "", "", "under 2 GiB", peak < 2)
    line(
        "trace, summary and certificate, 4,096 tokens",
        f"{ours:.3g} s",
        f"{plain:.3g} s plain pass",
        f"{ours / plain:.3g}x",
        "",
        True,
    )
    plain_long, ours_long, peak_long = measure(LONG)
    line("summary and certificate, 16,384 tokens: peak memory", f"{peak_long:.2f} GiB", "", "", "", True)
    growth, own = ours_long / ours, plain_long / plain
    line(
        "growth of time from 4,096 to 16,384 tokens",
        f"{growth:.3g}x",
        f"{own:.3g}x plain pass",
        f"{growth / own:.3g}x",
        "at most 1x",
        growth <= own,
    )


if __name__ == "__main__":
    run(int(sys.argv[1])) if len(sys.argv) > 1 else main()
