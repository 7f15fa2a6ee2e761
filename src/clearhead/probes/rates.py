"""Rates: for which tokens is the nearest token vector of their text the right one, and how sure is that share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead import linalg
from clearhead.errors import ClearheadError, InputError
from clearhead.probes.features import Features
from clearhead.probes.probe import Distance, Probe

Split = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def split_examples(count: int, shares: tuple[float, float, float], seed: int) -> Split:
    """Training, validation and test examples, disjoint, drawn by example, never by token.

    Errors: InputError for shares that are no split, or too few examples for one.
    """
    if len(shares) != 3 or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
        raise InputError("probes: split", got=shares, allowed="three positive shares that sum to 1")
    order = shuffled(count, seed)
    first, second = round(count * shares[0]), round(count * (shares[0] + shares[1]))
    parts = order[:first], order[first:second], order[second:]
    if not all(parts):
        allowed = "at least one for each of training, validation and test"
        raise InputError(f"probes: too few examples for the split {shares}", got=count, allowed=allowed)
    return parts


def fold_examples(count: int, folds: int, seed: int) -> list[Split]:
    """Cross-validation: each fold in turn is the test, the next one the validation, the rest the training.

    Errors: InputError for fewer than 3 folds, or fewer examples than folds.
    """
    if type(folds) is not int or folds < 3:
        raise InputError("probes: folds", got=repr(folds), allowed="a whole number from 3 (test, validation, training)")
    if count < folds:
        raise InputError(f"probes: too few examples for {folds} folds", got=count, allowed="one or more a fold")
    order = shuffled(count, seed)
    parts = [order[fold::folds] for fold in range(folds)]
    return [
        (
            tuple(example for k, part in enumerate(parts) if k not in (fold, (fold + 1) % folds) for example in part),
            parts[(fold + 1) % folds],
            parts[fold],
        )
        for fold in range(folds)
    ]


def shuffled(count: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).permutation(count).tolist())


@dataclass(frozen=True)
class Pairs:
    """Which token vector each state is to give: `rows` and `wanted`, positions among all tokens; `sizes` by example."""

    examples: tuple[int, ...]
    rows: Tensor
    wanted: Tensor
    sizes: tuple[int, ...]


def pair(features: Features, examples: Sequence[int], offset: int = 0, shuffle: int | None = None) -> Pairs:
    """Every token of these examples with the input `offset` positions further; tokens without one are left out.

    `shuffle` (a seed): the inputs of each example in random order instead, the same in every call.
    Errors: InputError where no token has an input so far away.
    """
    rows: list[Tensor] = []
    wanted: list[Tensor] = []
    for example in examples:
        start, stop = features.offsets[example], features.offsets[example + 1]
        place = torch.arange(start, stop)
        place = place[(place + offset >= start) & (place + offset < stop)]
        goal = place + offset
        if shuffle is not None:
            order = np.random.default_rng([shuffle, example]).permutation(stop - start)
            goal = start + torch.from_numpy(order)[goal - start]
        rows.append(place)
        wanted.append(goal)
    sizes = tuple(len(one) for one in rows)
    if not any(sizes):
        raise InputError("probes: no example is long enough for this offset", got=offset)
    return Pairs(tuple(examples), torch.cat(rows), torch.cat(wanted), sizes)


def recovered(
    features: Features, depth: int, probe: Probe, pairs: Pairs, distance: Distance
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(right, strict) by example: the prediction is nearest to the wanted vector among all vectors of its text.

    Identical vectors are one candidate (`right`); `strict` counts only tokens whose wanted vector no other position
    has. A tie between different vectors counts as wrong. In float64.
    Errors: NotDefined, naming the example, where its tokens all have one vector, or for a cosine of a zero vector.
    """
    states, targets = features.states(depth), features.targets
    right: list[np.ndarray] = []
    strict: list[np.ndarray] = []
    with torch.no_grad():
        predicted = torch.cat([probe(states[part]) for part in pairs.rows.split(8192)])
    parts = zip(pairs.examples, predicted.split(pairs.sizes), pairs.wanted.split(pairs.sizes), strict=True)
    for example, prediction, wanted in parts:
        start, stop = features.offsets[example], features.offsets[example + 1]
        if not len(wanted):
            continue
        try:
            found = linalg.nearest_candidates(prediction[None], targets[start:stop], distance, wanted - start)
        except ClearheadError as error:
            error.args = (f"example {example}: {error.args[0]}",)
            raise
        right.append(found.right[0].numpy())
        strict.append((found.right[0] & found.alone).numpy())
    return right, strict


def rate(right: Sequence[np.ndarray]) -> float:
    """The share of right tokens."""
    return float(np.concatenate(right).mean())


def interval(right: Sequence[np.ndarray], seed: int, *, draws: int = 2000, level: float = 0.95) -> tuple[float, float]:
    """The bootstrap interval of the rate, drawn by example: the tokens of one example are not independent."""
    hits = np.array([one.sum() for one in right], dtype=float)
    sizes = np.array([len(one) for one in right], dtype=float)
    chosen = np.random.default_rng(seed).integers(0, len(hits), (draws, len(hits)))
    rates = hits[chosen].sum(1) / sizes[chosen].sum(1)
    low, high = np.quantile(rates, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
