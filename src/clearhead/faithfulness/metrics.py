"""How well scores of tokens predict what the model does without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
"""Of the tokens, for comprehensiveness and sufficiency (DeYoung et al. 2020, ERASER)."""
STEPS = 10
"""Most steps of the deletion and the insertion curve."""
FEWEST = 8
"""Texts of which a bootstrap interval is given."""
Without = Callable[[Sequence[Sequence[int]]], list[float]]


def ranked(scores: np.ndarray, tokens: Sequence[int]) -> list[int]:
    """The removable positions, highest score first; ties in the order of the text."""
    return sorted(tokens, key=lambda k: (-scores[k], k))


def measure(order: Sequence[int], without: Without) -> dict[str, float]:
    """The measures that an order of the removable positions has.

    comprehensiveness: mean over the shares of F(all) - F(without the first ceil(share m)); higher is better.
    sufficiency: mean over the shares of F(all) - F(only those); lower is better.
    deletion, insertion: area under F without the first k, and with only the first k, k from 0 to all m, by the
    trapezoid over k / m at up to 11 points; lower and higher is better.
    score: insertion - deletion; higher is better, 0 for an order that says nothing.
    """
    m = len(order)
    counts = [int(np.ceil(share * m - 1e-9)) for share in SHARES]
    points = sorted({round(k) for k in np.linspace(0, m, min(m, STEPS) + 1)})
    first, only = ([order[:k] for k in counts + points], [order[k:] for k in counts + points])
    values = np.array(without([*first, *only]))
    gone, kept = values[: len(first)], values[len(first) :]
    whole = without([[]])[0]
    along = np.array(points) / m
    deletion = float(np.trapezoid(gone[len(counts) :], along))
    insertion = float(np.trapezoid(kept[len(counts) :], along))
    return {
        "score": insertion - deletion,
        "comprehensiveness": float(whole - gone[: len(counts)].mean()),
        "sufficiency": float(whole - kept[: len(counts)].mean()),
        "deletion": deletion,
        "insertion": insertion,
    }


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float | None:
    """Spearman's; None where there are fewer than 3 tokens, or one side is constant."""
    from scipy.stats import spearmanr

    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(spearmanr(one, other).statistic)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]


def agreement(one: np.ndarray, other: np.ndarray) -> float | None:
    """Kendall's tau-b; None where it is not defined."""
    from scipy.stats import kendalltau

    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(kendalltau(one, other).statistic)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]


def interval(
    values: np.ndarray, random: np.random.Generator, draws: int = 2000
) -> tuple[float, float] | tuple[None, None]:
    """The 95 % bootstrap interval of a mean, by text; none of fewer than `FEWEST` texts, which it would understate."""
    if len(values) < FEWEST:
        return None, None
    picked = random.integers(0, len(values), (draws, len(values)))
    low, high = np.quantile(values[picked].mean(1), (0.025, 0.975))
    return float(low), float(high)
