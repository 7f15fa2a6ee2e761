"""Raw against effective attention over many texts (Figures 1a to 1c of Brunner et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clearhead.errors import InputError, TextTooLong
from clearhead.maps.kept import Arrays, claim, kept
from clearhead.methods.effective_attention import effective_attention
from clearhead.probes.features import Progress, Text, fingerprint, no_progress
from clearhead.tokens import TEMPLATE, Tokens
from clearhead.trace import Trace, Tracer

TYPES = ("start", "separator", "full stop or comma")
"""Types of token: the special one at the start, the special ones after it, and "." or ","."""
SHORTEST, LONGEST = 20, 128
"""Tokens of the texts of Figure 1."""


@dataclass(frozen=True)
class RawAndEffective:
    """By text; arrays in the order of the texts."""

    tokens: np.ndarray
    """[text]."""
    pearson: np.ndarray
    """[text]: Pearson r of raw and effective weights, mean over all layers and heads."""
    raw: np.ndarray
    """[text, layer, type]: attention to the tokens of a type, summed over them, mean over heads and queries."""
    effective: np.ndarray
    present: np.ndarray
    """[text, type]: whether the text has such a token."""

    def mean_attention(self, kind: str, which: str) -> np.ndarray | None:
        """[layer]: `kind` "raw" or "effective", to a type, mean over the texts that have it; None where none has."""
        place = TYPES.index(which)
        texts = self.present[:, place]
        return getattr(self, kind)[texts][:, :, place].mean(0) if texts.any() else None


def choose_texts(model: Tracer, texts: Sequence[str], most: int) -> list[str]:
    """At most `most` texts of 20 to 128 tokens, spread evenly over the lengths there are.

    Errors: InputError where there is none.
    """
    sized: list[tuple[int, str]] = []
    for text in texts:
        try:
            sized.append((len(model.tokens_of(text)), text))
        except TextTooLong:
            continue
    sized = [(size, text) for size, text in sized if SHORTEST <= size <= LONGEST]
    if not sized:
        raise InputError("texts", got=f"{len(texts)} lines", allowed=f"one or more of {SHORTEST} to {LONGEST} tokens")
    sized.sort()
    places = np.unique(np.linspace(0, len(sized) - 1, min(most, len(sized))).round().astype(int))
    return [sized[place][1] for place in places]


def measure_attention(
    model: Tracer, texts: Sequence[Text], folder: Path, *, progress: Progress = no_progress
) -> RawAndEffective:
    """Every text traced, its raw and effective attention compared; kept text by text in `folder`."""
    claim(folder, {**model.origin, "texts": fingerprint(texts)})
    found: list[Arrays] = []
    for index, text in enumerate(texts):
        found.append(kept(folder / f"{index:05d}.npz", lambda text=text: compare(model.trace_many([text])[0])))
        progress(index + 1, len(texts))
    columns = {name: np.stack([one[name] for one in found]) for name in found[0]}
    return RawAndEffective(**columns)


def compare(trace: Trace) -> Arrays:
    """What the figures need of one text."""
    effective = effective_attention(trace).values
    raw = np.stack(
        [layer.probabilities.double().cpu().numpy() for layer in trace.layers if layer.probabilities is not None]
    )
    types = token_types(trace.tokens)
    return {
        "tokens": np.array(len(trace.tokens)),
        "pearson": np.array(np.mean([pearson(r, e) for r, e in zip(heads(raw), heads(effective), strict=True)])),
        "raw": attention_to(raw, types),
        "effective": attention_to(effective, types),
        "present": np.array(types.any(1)),
    }


def heads(values: np.ndarray) -> np.ndarray:
    """[layer x head, query x key]."""
    return values.reshape(values.shape[0] * values.shape[1], -1)


def pearson(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a, b)[0, 1])


def attention_to(values: np.ndarray, types: np.ndarray) -> np.ndarray:
    """[layer, type]: attention [layer, head, query, key] to the tokens of each type [type, key]."""
    return np.stack([values[..., keys].sum(-1).mean((1, 2)) for keys in types], axis=-1)


def token_types(tokens: Tokens) -> np.ndarray:
    """[type, token] booleans, in the order of `TYPES`."""
    template = np.array([origin == TEMPLATE for origin in tokens.origin])
    first = np.arange(len(tokens)) == 0
    stop = np.array([label in (".", ",") for label in tokens.labels])
    return np.stack([template & first, template & ~first, stop & ~template])
