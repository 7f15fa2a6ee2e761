"""Long texts without an n x n matrix: memory at 4,096 tokens, and growth of time from there to 16,384.

A random model of the demo's architecture with longer positions, float32, one thread.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import clearhead as ch
from benchmarks.table import line
from clearhead.models.model import Model

SHORT, LONG = 4096, 16384
WORDS = 500
GIB = 2.0**30


def long_model() -> Model:
    """6 layers, 12 heads of width 32, d = 384, random weights that spread attention as trained ones do."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS + 2, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
        max_position_embeddings=LONG, initializer_range=0.1,
    )  # fmt: skip
    hf = transformers.BertModel(config, add_pooling_layer=False).eval()
    vocabulary = {"[PAD]": 0, "[UNK]": 1} | {f"w{k}": k + 2 for k in range(WORDS)}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]")
    return ch.load((hf, tokenizer))


def text(tokens: int) -> str:
    return " ".join(f"w{int(k)}" for k in torch.randint(WORDS, (tokens,), generator=torch.Generator().manual_seed(1)))


def peak_bytes() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)


def measure(tokens: int, answers: multiprocessing.Queue[tuple[float, float, float, float, float]]) -> None:
    """(forward pass, trace, summary and certificate in seconds; peak of this process and what it had before, bytes)."""
    torch.set_num_threads(1)
    model, words = long_model(), text(tokens)
    before = peak_bytes()
    start = time.perf_counter()
    trace = model.trace(words, capture="outputs")
    traced = time.perf_counter()
    summary, certificate = ch.effective_attention_summary(trace), ch.attention_identifiability(trace)
    summed = time.perf_counter()
    assert len(summary) == 72 * tokens and len(certificate) == 72
    peak = peak_bytes()
    forward = time.perf_counter()
    with torch.no_grad():
        model.hf(**trace.inputs)
    answers.put((time.perf_counter() - forward, traced - start, summed - traced, peak, before))


def measured(tokens: int) -> tuple[float, float, float, float, float]:
    """In a process of its own, so that peaks do not mix."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=measure, args=(tokens, answers))
    process.start()
    answer = answers.get(timeout=1800)
    process.join()
    return answer


def main() -> None:
    forward, traced, summed, peak, before = measured(SHORT)
    what = f"summary with certificate, {SHORT:,} tokens, capture=outputs: peak memory of the process"
    line(what, f"{peak / GIB:.2f} GiB", f"{before / GIB:.2f} GiB loaded", "", "below 2 GiB", peak < 2 * GIB)
    line("its trace and its summary", f"{traced:.2f} + {summed:.2f} s", f"{forward:.2f} s forward", "", "", True)
    forward2, traced2, summed2, peak2, _ = measured(LONG)
    grown, limit = (traced2 + summed2) / (traced + summed), forward2 / forward
    what = f"growth from {SHORT:,} to {LONG:,} tokens: trace, summary and certificate against the forward pass"
    # both are one run: a fifth of noise is allowed
    line(what, f"{grown:.1f}x", f"{limit:.1f}x", f"{grown / limit:.2f}x", "no faster", grown < 1.2 * limit)
    line(
        "the same, summary and certificate alone",
        f"{summed2 / summed:.1f}x",
        f"{limit:.1f}x",
        "",
        "",
        summed2 / summed < limit,
    )
    line(f"peak memory at {LONG:,} tokens", f"{peak2 / GIB:.2f} GiB", "", "", "", True)


if __name__ == "__main__":
    main()
