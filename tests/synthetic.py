"""Findings made of numbers alone, for the page: real linear algebra, no model."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from clearhead.explorer.findings import Findings
from clearhead.maps import Map, Table
from clearhead.tokens import Tokens
from clearhead.trace import Layer, Proof, Trace, Visible

WORDS = "the river bank was quiet when the clerk of the bank came to count the boats and found none of them".split()
HOSTILE = (
    "<script>window.hacked=1</script>", '"quotes\'', "&amp;", "\u202eright to left\u202c", "\u200b", "a\u0000b", "🙂",
    "👩‍👩‍👧", "مرحبا", "بالعالم", "</script>", "<!--", "]]>", "x" * 300, "{{payload}}", "\\u003c", "\u2028", "漢字",
    "<img src=x onerror=window.hacked=1>",
)  # fmt: skip
ORIGIN = {
    "model": "made of numbers", "revision": "none", "family": "bert", "dtype": "float32",
    "versions": {"clearhead": "0.1.0", "torch": "2.13.0", "numpy": "2.4.0", "python": "3.11.2"},
}  # fmt: skip


def tokens_of(words: Sequence[str]) -> Tokens:
    """[CLS] words [SEP], a word a token."""
    text = " ".join(words)
    spans: list[tuple[int, int] | None] = [None]
    reached = 0
    for word in words:
        spans.append((reached, reached + len(word)))
        reached += len(word) + 1
    n = len(words) + 2
    origin = ("template", *["text"] * len(words), "template")
    return Tokens(text, None, tuple(range(n)), ("[CLS]", *words, "[SEP]"), (*spans, None), (0,) * n, origin)


def findings(
    tokens: int = 24, layers: int = 4, heads: int = 6, width: int = 8, *, words: Sequence[str] = (),
    causal: bool = False, contribution: bool = True, sharp: float = 1.5, seed: int = 0,
    extra: dict[str, tuple[np.ndarray, tuple[str, ...]]] | None = None,
) -> Findings:  # fmt: skip
    """Random attention over random values of a width, projected for real."""
    rng = np.random.default_rng(seed)
    words = list(words) or [WORDS[i % len(WORDS)] for i in range(tokens - 2)]
    labels = tokens_of(words)
    n = len(labels)
    raw, effective = np.empty((2, layers, heads, n, n))
    position = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    for layer in range(layers):
        for head in range(heads):
            logits = (
                sharp * rng.standard_normal((n, n))
                - 0.4 * (head % 3) * position
                + 3.0 * layer / layers * (np.arange(n) == n - 1)
            )
            if causal:
                logits[np.triu_indices(n, 1)] = -np.inf
            raw[layer, head] = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            values = rng.standard_normal((n, width))
            for query in range(n):
                seen = query + 1 if causal else n
                basis = np.linalg.svd(values[:seen], full_matrices=False)[0]
                effective[layer, head, query, :seen] = raw[layer, head, query, :seen] @ basis @ basis.T
                effective[layer, head, query, seen:] = 0
                if not causal:
                    effective[layer, head] = raw[layer, head] @ basis @ basis.T
                    break
    stop = tuple(range(1, n + 1)) if causal else (n,) * n
    nothing = torch.zeros(0)
    sides = torch.tensor(rng.standard_normal((layers, 2, heads, n, width)))
    visible = Visible((0,) * n, stop, n)
    captured = tuple(Layer(nothing, nothing, visible, query=query, key=key) for query, key in sides)
    part: Any = SimpleNamespace(layers=captured)
    proof = Proof(
        "rebuilt and compared",
        "float32",
        1e-5,
        (3e-7,) * layers,
        (1e-7,) * layers,
        (2e-7,) * (layers + 1),
        layers,
        "first text",
    )
    runner: Any = SimpleNamespace(origin=ORIGIN)
    trace = Trace(runner, labels, {"encoder": part}, {}, proof)

    def made(
        name: str, values: np.ndarray, dims: tuple[str, ...], stderr: np.ndarray | None = None, **options: Any
    ) -> Map:
        named = {dim: labels for dim in dims if dim in ("query", "key")}
        meta = {"method": name, "options": options, "text_sha256": "0" * 64, "seed": 0}
        return Map(values, dims, tokens=named, unit="share", meta=meta, stderr=stderr)

    pair = ("layer", "head", "query", "key")
    moved = tuple(
        farthest(raw, labels, layer, layer % heads, layer % n) for layer in range(layers if n > width + 1 else 0)
    )
    mixed = contributions(rng, layers, n, causal) if contribution else None
    return Findings(
        trace,
        made("effective_attention", raw, pair, part="raw"),
        made("effective_attention", effective, pair, part="effective"),
        certificate(layers, heads, n, width),
        naive(layers, n),
        None
        if mixed is None
        else made("hidden_token_attribution", mixed, ("layer", "query", "key"), 0.1 * mixed, probes=16, seed=0),
        moved,
        len(moved),
        nearest=nearest(rng, layers, n),
        extra={name: made(name, values, dims) for name, (values, dims) in (extra or {}).items()},
    )


def contributions(rng: np.random.Generator, layers: int, n: int, causal: bool) -> np.ndarray:
    """Shares that spread with depth; rows sum to 1."""
    position = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    values = np.empty((layers, n, n))
    for layer in range(layers):
        spread = np.exp(-position / (1 + layer)) * rng.uniform(0.5, 1, (n, n)) + 0.4 * np.eye(n) / (layer + 1)
        spread = np.tril(spread) if causal else spread
        values[layer] = spread / spread.sum(axis=1, keepdims=True)
    return values


def certificate(layers: int, heads: int, n: int, width: int) -> Table:
    """As `attention_identifiability` gives it, with one uncertain head where there are several."""
    pairs = [(layer, head) for layer in range(layers) for head in range(heads)]
    rank = min(n, width)
    verdict = ["not identifiable" if n > width + 1 else "identifiable"] * len(pairs)
    if layers * heads > 1 and n > width + 1:
        verdict[1] = "uncertain"
    same = {"keys": n, "d_v": width, "rank": rank, "nullity": n - rank, "nullity_row_sum": max(0, n - rank - 1)}
    columns: dict[str, Any] = {"layer": [layer for layer, _ in pairs], "head": [head for _, head in pairs]}
    columns |= {name: [value] * len(pairs) for name, value in same.items()}
    columns |= {
        "smallest_kept": [0.1 + 0.01 * i for i in range(len(pairs))],
        "largest_dropped": [1e-16] * len(pairs),
        "verdict": verdict,
    }
    meta = {"method": "attention_identifiability", "options": {"per_query": False}}
    return Table(columns, meta=meta, about={name: f"meaning of {name}" for name in columns})


def farthest(raw: np.ndarray, labels: Tokens, layer: int, head: int, query: int) -> Map:
    """As `farthest_attention` gives it."""
    options = {"layer": layer, "head": head, "query": query, "starts": 8, "seed": 0}
    meta = {"method": "farthest_attention", "options": options, "total_variation": 0.3 + 0.01 * layer, "residual": 3e-9}
    return Map(raw[layer, head, query], ("key",), tokens={"key": labels}, unit="attention weight", meta=meta)


def naive(layers: int, n: int) -> Table:
    """As `token_identifiability_naive` gives it."""
    rate = np.linspace(1, 0.6, layers + 1).tolist()
    columns = {
        "depth": list(range(layers + 1)),
        "tokens": [n] * (layers + 1),
        "identical": [0] * (layers + 1),
        "rate": rate,
        "strict_rate": rate,
    }
    meta = {"method": "token_identifiability_naive", "options": {"distance": "cosine"}}
    return Table(columns, meta=meta, about={name: f"meaning of {name}" for name in columns})


def nearest(rng: np.random.Generator, layers: int, n: int) -> Table:
    """As `token_identifiability_naive(per_token=True)` gives it."""
    found = [
        [i if rng.random() > 0.15 * depth else int(rng.integers(n)) for i in range(n)] for depth in range(layers + 1)
    ]
    columns = {
        "depth": [depth for depth in range(layers + 1) for _ in range(n)],
        "token": list(range(n)) * (layers + 1),
        "nearest": [i for row in found for i in row],
    }
    meta = {"method": "token_identifiability_naive", "options": {"per_token": True}}
    return Table(columns, meta=meta, about={name: f"meaning of {name}" for name in columns})
