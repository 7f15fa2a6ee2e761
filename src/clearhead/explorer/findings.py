"""One trace analysed for the page: every map and table that it shows, each made by its method."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clearhead.methods.registry import find

if TYPE_CHECKING:
    from clearhead.maps import Map, Table
    from clearhead.trace import Trace

HEADS_A_LAYER = 2
"""Rows examined by `farthest_attention` in each layer: one in each of the heads with the largest null-space share."""


@dataclass(frozen=True)
class Findings:
    """All results of one trace."""

    trace: Trace
    raw: Map
    effective: Map
    certificate: Table
    naive: Table
    contribution: Map | None
    moved: tuple[Map, ...]
    """What `farthest_attention` found, one row each."""
    rows_planned: int
    """Rows that were to be examined for `moved`; fewer were where the time ran out."""

    @property
    def null_share(self) -> np.ndarray:
        """||A - A_eff||^2 / ||A||^2 of each [layer, head], over its queries and keys."""
        return share(squares(self.raw.values - self.effective.values), squares(self.raw.values))

    @property
    def total_null_share(self) -> float:
        """The same over all layers and heads."""
        return float(squares(self.raw.values - self.effective.values).sum() / squares(self.raw.values).sum())


def squares(values: np.ndarray) -> np.ndarray:
    """Squared Frobenius norm of the last two axes, in float64."""
    return np.einsum("...qk,...qk->...", values, values, dtype=np.float64)


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole; 0 where the whole is 0 (a row whose whole weight went to a sink)."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def probes_for(tokens: int) -> int:
    """Probes a token for the contributions of a report: 16 up to 100 tokens, then fewer, so that the time stays near
    that of 100 tokens (the work grows with the square of the length); never fewer than the 2 that an error needs."""
    return max(2, min(16, 160_000 // tokens**2))


def analyse(
    trace: Trace,
    *,
    probes: int | None = None,
    seed: int = 0,
    seconds: float = 30.0,
    progress: Callable[[str], None] = lambda step: None,
) -> Findings:
    """Apply the methods of the report to a trace.

    `probes`: for the contributions; None for `probes_for`, 0 to leave them out. `seconds`: after which no further row
    is examined for how far it can move (at least one is). Errors: those of the methods.
    """
    progress("effective attention")
    raw, effective = call("effective_attention", trace, part="raw"), call("effective_attention", trace)
    certificate = call("attention_identifiability", trace)
    contribution = None
    if probes != 0:
        progress("contributions")
        contribution = call("hidden_token_attribution", trace, probes=probes or probes_for(len(trace.tokens)), seed=seed)
    naive = call("token_identifiability_naive", trace)
    rows = rows_to_move(raw.values, effective.values, certificate)
    if rows:
        progress(f"how far attention can move with the same output, in {len(rows)} rows")
    moved: list[Map] = []
    until = time.monotonic() + seconds
    for layer, head, query in rows:
        if moved and time.monotonic() > until:
            break
        moved.append(call("farthest_attention", trace, layer=layer, head=head, query=query, seed=seed))
    return Findings(trace, raw, effective, certificate, naive, contribution, tuple(moved), len(rows))


def call(name: str, trace: Trace, **options: Any) -> Any:
    """A method by name on a trace."""
    return find(name).function(trace, **options)


def rows_to_move(raw: np.ndarray, effective: np.ndarray, certificate: Table) -> list[tuple[int, int, int]]:
    """(layer, head, query): in each layer, the least determined row of each of the `HEADS_A_LAYER` heads with the
    largest null-space share among those that are not identifiable. The head of each layer comes first."""
    null = np.einsum("lhqk,lhqk->lhq", raw - effective, raw - effective, dtype=np.float64)
    total = np.einsum("lhqk,lhqk->lhq", raw, raw, dtype=np.float64)
    row_share, head_share = share(null, total), share(null.sum(axis=2), total.sum(axis=2))
    free = np.zeros(head_share.shape, bool)
    free[certificate["layer"], certificate["head"]] = certificate["verdict"] == "not identifiable"
    rounds: list[list[tuple[int, int, int]]] = [[] for _ in range(HEADS_A_LAYER)]
    for layer in range(len(head_share)):
        order = [int(head) for head in np.argsort(-head_share[layer], kind="stable") if free[layer, head]]
        for place, head in enumerate(order[:HEADS_A_LAYER]):
            rounds[place].append((layer, head, int(row_share[layer, head].argmax())))
    return [row for one in rounds for row in one]
