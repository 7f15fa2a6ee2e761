"""The verdicts of a report: plain sentences, each with the definition of its figures where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clearhead.explorer.findings import Findings

if TYPE_CHECKING:
    from clearhead.maps import Map, Table

NAMED = 12
"""Heads that a sentence names before it points to the certificate."""


@dataclass(frozen=True)
class Verdict:
    """One sentence (**bold** marked) and what its figures mean."""

    sentence: str
    meaning: str


def verdicts(findings: Findings) -> list[Verdict]:
    """All verdicts of a report, the most important first."""
    found = [identifiability(findings), null_space(findings)]
    if findings.moved:
        found.append(movable(findings))
    found.append(identity(findings))
    if findings.contribution is not None:
        found.append(contributions(findings.contribution))
    return found


def identifiability(findings: Findings) -> Verdict:
    """How many heads are identifiable, and which are uncertain."""
    table = findings.certificate
    verdict, total = table["verdict"], len(table)
    free, unsure = int((verdict == "not identifiable").sum()), verdict == "uncertain"
    widths = " or ".join(str(width) for width in sorted({int(width) for width in table["d_v"]}))
    start = f"{len(findings.trace.tokens)} tokens, heads of {widths} dimensions: "
    if free:
        sentence = f"{start}**{free} of {total} heads are not identifiable**."
    elif unsure.any():
        sentence = f"{start}no head is surely not identifiable."
    elif windowed(findings):
        sentence = (
            f"{start}**all {total} heads are identifiable at their last query**; queries before it see other keys."
        )
    else:
        sentence = (
            f"{start}**all {total} heads are identifiable**, so raw attention is unique: no other weights with the "
            "same sum give the same output."
        )
    if unsure.any():
        sentence += f" {uncertain(table, unsure)}"
    judged = " Where a mask limits what a query sees, a head is judged by its last query." if masked(findings) else ""
    return Verdict(
        sentence,
        "A head is identifiable where its output determines its attention weights: no other weights with the same sum "
        "give the same output. Decided by the rank of the value vectors in float64; uncertain where the singular "
        f"values leave no clear gap (a factor below 1000).{judged}",
    )


def uncertain(table: Table, unsure: np.ndarray) -> str:
    """The uncertain heads by name."""
    where = [place(at) for at in zip(table["layer"][unsure], table["head"][unsure], strict=True)]
    more = f"; and {len(where) - NAMED} more (see the certificate)" if len(where) > NAMED else ""
    verb = "is" if len(where) == 1 else "are"
    return f"**{len(where)} {verb} uncertain**: {'; '.join(where[:NAMED])}{more}."


def null_space(findings: Findings) -> Verdict:
    """How much of the attention has no effect."""
    share, total = findings.null_share, findings.total_null_share
    layers, heads = share.shape
    definition = (
        "Null-space share = ‖A − A_eff‖² ÷ ‖A‖², A the attention weights and A_eff the least-norm weights with the "
        f"same output, over all {layers} layers, {heads} heads, queries and keys."
    )
    if total < 1e-9:
        equal = "**Effective attention equals raw attention**: no part of it lies in the null space."
        return Verdict(equal, definition)
    most, least = np.unravel_index(share.argmax(), share.shape), np.unravel_index(share.argmin(), share.shape)
    return Verdict(
        f"**{percent(total)}** of the squared norm of the attention lies in the null space and has no effect on any "
        "head's output.",
        f"{definition} By head it runs from {percent(share[least])} ({place(least)}) to {percent(share[most])} "
        f"({place(most)}).",
    )


def movable(findings: Findings) -> Verdict:
    """How far one row can move with the same output."""
    best = farthest(findings.moved)
    where = best.meta["options"]
    residual = max(one.meta["residual"] for one in findings.moved)
    examined, planned = len(findings.moved), findings.rows_planned
    rows = findings.raw.values[..., 0].size
    cut = f" (of {planned} planned; the time for this ran out)" if examined < planned else ""
    return Verdict(
        f"Up to **{percent(best.meta['total_variation'])} of a row's weight** can move with the same output.",
        "The largest total variation distance, ½ Σ|a − a′|, from a row of attention a to a distribution a′ with the "
        f"same output (relative difference at most {scientific(residual)}) that farthest_attention found in {examined} "
        f"of {rows:,} rows{cut}: of each head that is not identifiable, the row with the largest null-space share. "
        f"Found in {place((where['layer'], where['head']))}, query {where['query']}; others may move farther.",
    )


def identity(findings: Findings) -> Verdict:
    """Naive token identifiability by depth."""
    rate, identical = findings.naive["rate"], int(findings.naive["identical"][0])
    same = f" {identical} tokens share their input vector with another position; either counts." if identical else ""
    return Verdict(
        f"After the last layer **{percent(rate[-1])} of tokens** are still nearest to their own input; after the "
        f"first, {percent(rate[1])}.",
        "Naive token identifiability: the share of tokens whose hidden state has its own input vector as the nearest, "
        f"by cosine, among the input vectors of this text. Nothing is trained; a trained map recovers more.{same}",
    )


def contributions(contribution: Map) -> Verdict:
    """Own-token contribution by depth."""
    own, away = own_share(contribution), not_own(contribution)
    median = np.median(own, axis=1)
    error = ""
    if contribution.stderr is not None:
        typical = float(np.median(np.diagonal(contribution.stderr, axis1=1, axis2=2)))
        probes = contribution.meta["options"]["probes"]
        error = f" From {probes} random probes a token; standard error of an own share: median {percent(typical)}."
    return Verdict(
        f"A token's own input contributes **{percent(median[0])}** to its state after the first layer and "
        f"**{percent(median[-1])}** after the last; by then **{percent(away[-1])} of tokens** are not their own "
        "largest contributor.",
        "Hidden Token Attribution: the norm of ∂(hidden token)/∂(input token), over the sum of the same for all input "
        f"tokens; medians over {own.shape[1]} tokens.{error}",
    )


# -------------------------------------------------------------------------------------------------- the figures behind


def farthest(moved: Sequence[Map]) -> Map:
    """The row that moved farthest."""
    return max(moved, key=lambda one: one.meta["total_variation"])


def own_share(contribution: Map) -> np.ndarray:
    """[layer, token]: contribution of each token to itself."""
    return np.diagonal(contribution.values, axis1=1, axis2=2)


def not_own(contribution: Map) -> np.ndarray:
    """Share of tokens that are not the largest contributor to their own position, after each layer."""
    return (contribution.values.max(axis=2) > own_share(contribution)).mean(axis=1)


def masked(findings: Findings) -> bool:
    """Whether any layer hides keys from a query."""
    return not all(layer.visible.everything for layer in findings.trace.layers)


def windowed(findings: Findings) -> bool:
    """Whether any query does not see the first keys, so that the last query's keys do not include all others'."""
    return any(any(layer.visible.start) for layer in findings.trace.layers)


def percent(share: float) -> str:
    """ "41 %"; a digit more below 10 and above 99, and never rounded to none or to all."""
    hundred = 100 * float(share)
    if 0 < hundred < 0.05:
        return "under 0.1 %"
    if 99.95 <= hundred < 100:
        return "over 99.9 %"
    return f"{hundred:.0f} %" if hundred in (0, 100) or 9.95 <= hundred <= 99 else f"{hundred:.1f} %"


def scientific(value: float) -> str:
    """ "4·10⁻⁹"."""
    digits, power = f"{value:.0e}".split("e")
    return f"{digits}·10{str(int(power)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}" if value else "0"


def place(index: tuple[Any, ...]) -> str:
    """ "layer 3, head 5"."""
    return f"layer {index[0]}, head {index[1]}"
