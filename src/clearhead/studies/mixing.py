"""How strongly tokens mix: Hidden Token Attribution over many texts (Figures 3 and 4 of Brunner et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clearhead.maps import Map
from clearhead.maps.kept import Arrays, claim, kept
from clearhead.methods.hidden_token_attribution import hidden_token_attribution
from clearhead.probes.features import Progress, Text, fingerprint, no_progress
from clearhead.trace import Tracer

GROUPS: tuple[tuple[str, int, int], ...] = (
    ("1st", 1, 1),
    ("2nd", 2, 2),
    ("3rd", 3, 3),
    ("4th to 5th", 4, 5),
    ("6th to 10th", 6, 10),
    ("11th on", 11, 10**9),
)
"""Neighbours by distance, left and right pooled: name, nearest, farthest."""
REACH = 10
"""Largest offset of Figure 4b."""


@dataclass(frozen=True)
class Mixing:
    """Contributions over all texts. Shares 0 to 1; `text` [token] says which text a token is of."""

    own: np.ndarray
    """[layer, token]: contribution of the input token at its own position."""
    own_stderr: np.ndarray
    """[layer, token]: its standard error (of the estimator, for one token)."""
    not_largest: np.ndarray
    """[layer, token] booleans: another input token contributes more."""
    group: np.ndarray
    """[text, layer, group]: sum of the contributions of the neighbours in each of `GROUPS`."""
    offset: np.ndarray
    """[text, layer, 2 REACH + 1]: sum of the contributions from each offset, -REACH to REACH."""
    text: np.ndarray

    def median_own(self) -> np.ndarray:
        """[layer]: median over tokens of the own contribution (Figure 3a)."""
        return np.median(self.own, axis=1)

    def share_not_largest(self) -> np.ndarray:
        """[layer]: share of tokens to which another token contributes most (Figure 3b)."""
        return self.not_largest.mean(axis=1)

    def by_distance(self) -> dict[str, np.ndarray]:
        """[layer] by distance group, those that the texts are long enough for: its contribution, which sums to 1 over
        the layers (Figure 4a)."""
        total = self.group.sum(axis=0).T
        return {name: row / row.sum() for (name, _, _), row in zip(GROUPS, total, strict=True) if row.any()}

    def by_offset(self) -> np.ndarray:
        """[layer, offset]: total contribution by offset, the largest in each layer 1, the own one left out as 0
        (Figure 4b)."""
        total = self.offset.sum(axis=0)
        total[:, REACH] = 0
        return total / total.max(axis=1, keepdims=True)


def measure_mixing(
    model: Tracer,
    texts: Sequence[Text],
    folder: Path,
    *,
    probes: int | None = 4,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Mixing:
    """Hidden Token Attribution of every text, kept text by text in `folder`.

    Each text has its own probes (seed + its position), so that their errors average out; first-order bias removed.
    """
    source = {**model.origin, "texts": fingerprint(texts), "probes": probes, "seed": seed}
    claim(folder, source)
    found: list[Arrays] = []
    for index, text in enumerate(texts):

        def one(text: Text = text, index: int = index) -> Arrays:
            trace = model.trace_many([text])[0]
            return summary(hidden_token_attribution(trace, probes=probes, seed=seed + index, debias=probes is not None))

        found.append(kept(folder / f"{index:05d}.npz", one))
        progress(index + 1, len(texts))

    def joined(name: str) -> np.ndarray:
        return np.concatenate([one[name] for one in found], axis=1)

    return Mixing(
        joined("own"),
        joined("own_stderr"),
        joined("not_largest"),
        np.stack([one["group"] for one in found]),
        np.stack([one["offset"] for one in found]),
        np.repeat(np.arange(len(found)), [one["own"].shape[1] for one in found]),
    )


def summary(contributions: Map) -> Arrays:
    """What the figures need of one text, from its Map (layer, query, key)."""
    values = contributions.values
    layers, tokens, _ = values.shape
    place = np.arange(tokens)
    offset = place[None, :] - place[:, None]
    own = values[:, place, place]
    stderr = np.zeros_like(own) if contributions.stderr is None else contributions.stderr[:, place, place]
    group = [values[:, (abs(offset) >= low) & (abs(offset) <= high)].sum(-1) for _, low, high in GROUPS]
    offsets = [values[:, offset == step].sum(-1) for step in range(-REACH, REACH + 1)]
    return {
        "own": own,
        "own_stderr": stderr,
        "not_largest": values.argmax(-1) != np.broadcast_to(place, (layers, tokens)),
        "group": np.stack(group, axis=-1),
        "offset": np.stack(offsets, axis=-1),
    }
