"""The charts of a report: curves over the layers, as plain JSON types."""

from __future__ import annotations

from typing import Any

import numpy as np

from clearhead.explorer.findings import Findings
from clearhead.explorer.verdicts import not_own, own_share
from clearhead.maps import Map

DISTANCES = (("1 token away", 1, 1), ("2", 2, 2), ("3", 3, 3), ("4–5", 4, 5), ("6–10", 6, 10), ("11 or more", 11, None))
"""The groups of Brunner et al. 2020, figure 4a: name, from, to; left and right together."""


def curves_of(findings: Findings) -> list[dict[str, Any]]:
    """The charts over layers."""
    charts = [null_curve(findings), identity_curves(findings)]
    return charts if findings.contribution is None else charts + distance_curves(findings.contribution)


def null_curve(findings: Findings) -> dict[str, Any]:
    """Null-space share of each layer, and of its heads."""
    shares = findings.null_share
    return {
        "title": "Attention without effect",
        "note": "Null-space share of the heads of a layer: the median head, the band from the least to the largest.",
        "axis": "in layer",
        "top": 1.0,
        "series": [
            {
                "name": "null-space share",
                "values": np.median(shares, axis=1).tolist(),
                "low": shares.min(axis=1).tolist(),
                "high": shares.max(axis=1).tolist(),
            }
        ],
    }


def identity_curves(findings: Findings) -> dict[str, Any]:
    """What is left of a token's identity."""
    series: list[dict[str, Any]] = [{"name": "nearest to own input", "values": findings.naive["rate"][1:].tolist()}]
    note = "Nearest to own input: tokens whose hidden state is nearest, by cosine, to their own input vector."
    contribution = findings.contribution
    if contribution is not None:
        low, median, high = np.quantile(own_share(contribution), (0.25, 0.5, 0.75), axis=1).tolist()
        series.append({"name": "own contribution", "values": median, "low": low, "high": high})
        series.append({"name": "not own largest", "values": not_own(contribution).tolist()})
        note += (
            " Own contribution: median over the tokens, the band from the first to the third quartile. "
            "Not own largest: tokens to which another token contributes more than their own input."
        )
    return {"title": "Identity", "note": note, "axis": "after layer", "top": 1.0, "series": series}


def distance_curves(contribution: Map) -> list[dict[str, Any]]:
    """Contribution by distance between source and target: the share, and its change with depth."""
    values = contribution.values
    n = values.shape[-1]
    apart = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    groups = [(name, (apart >= low) & (apart <= (n if high is None else high))) for name, low, high in DISTANCES]
    totals = {name: values[:, pairs].sum(axis=1) for name, pairs in groups if pairs.any()}
    totals = {name: total for name, total in totals.items() if total.sum() > 0}
    if not totals:
        return []
    return [
        {
            "title": "Where contributions come from",
            "note": "Share of a token's state that comes from all tokens at each distance, left and right together; "
            "mean over tokens. The rest is its own.",
            "axis": "after layer",
            "from_zero": True,
            "ordered": True,
            "series": [{"name": name, "values": (total / n).tolist()} for name, total in totals.items()],
        },
        {
            "title": "Near and far with depth",
            "note": "The same, each curve divided by its sum over the layers (Brunner et al. 2020, figure 4a): a "
            "rising curve is a distance that matters more in later layers.",
            "axis": "after layer",
            "from_zero": False,
            "ordered": True,
            "series": [{"name": name, "values": (total / total.sum()).tolist()} for name, total in totals.items()],
        },
    ]
