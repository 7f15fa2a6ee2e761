"""One trace analysed for the page: every map and table that it shows, each made by its method."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from clearhead.explorer.catalogue import check_pickable
from clearhead.methods.registry import find
from clearhead.target import Target

if TYPE_CHECKING:
    from clearhead.faithfulness.result import Comparison
    from clearhead.maps import Map, Table
    from clearhead.trace import Trace

WORK = 5e10
"""What the contributions of a report may cost, as probes * tokens^2 * layers * (width^2 + 5 * heads * tokens): about
40 s on one core."""
PATIENCE = 10
"""How many times `WORK` two probes may cost; beyond, contributions are left out unless asked for."""


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
    notices: tuple[str, ...] = ()
    """What was left out, and why."""
    nearest: Table | None = None
    """`token_identifiability_naive` of each depth and token."""
    extra: Mapping[str, Map] = field(default_factory=dict[str, "Map"])
    """Further maps that the page can show, by method."""
    comparison: Comparison | None = None
    """How faithful methods are, of this text or of others."""

    @property
    def null_share(self) -> np.ndarray:
        """||A - A_eff||^2 / ||A||^2 of each [layer, head], over its queries and keys."""
        return share(squares(self.raw.values - self.effective.values), squares(self.raw.values))

    @property
    def distance(self) -> np.ndarray:
        """1 - r of each [layer, head]: r the correlation of raw and effective weights over all pairs that may be seen;
        NaN where either is the same everywhere."""
        layers, heads = self.raw.values.shape[:2]
        found = np.empty((layers, heads))
        for index, layer in enumerate(self.trace.layers):
            seen = None if layer.visible.everything else layer.visible.mask().numpy()
            for head in range(heads):
                pair = self.raw.values[index, head], self.effective.values[index, head]
                found[index, head] = 1 - correlation(
                    *(values.ravel() if seen is None else values[seen] for values in pair)
                )
        return found

    @property
    def total_null_share(self) -> float:
        """The same over all layers and heads."""
        return float(squares(self.raw.values - self.effective.values).sum() / squares(self.raw.values).sum())


def squares(values: np.ndarray) -> np.ndarray:
    """Squared Frobenius norm of the last two axes, in float64."""
    return np.einsum("...qk,...qk->...", values, values, dtype=np.float64)


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Pearson's r in float64; NaN where either side is constant."""
    a, b = (np.asarray(values, np.float64) - values.mean(dtype=np.float64) for values in (one, other))
    size = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / size) if size > 0 else float("nan")


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole; 0 where the whole is 0 (a row whose whole weight went to a sink)."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def probes_for(trace: Trace) -> int:
    """Probes a token for the contributions of a report: 16 where `WORK` allows, fewer for longer texts and larger
    models, never fewer than the 2 that an error needs; 0 where those would cost more than `PATIENCE` times `WORK`."""
    depths, tokens, width = trace.hidden.shape
    heads = len(trace.layers[0].head_output)
    # The matrix products of a layer, and what its attention maps cost beside them (5: an estimate).
    one = tokens**2 * (depths - 1) * (width**2 + 5 * heads * tokens)
    return 0 if 2 * one > PATIENCE * WORK else max(2, min(16, width, int(WORK // one)))


def analyse(
    trace: Trace,
    *,
    probes: int | None = None,
    seed: int = 0,
    seconds: float = 30.0,
    also: Sequence[str] = (),
    target: Target = None,
    comparison: Comparison | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> Findings:
    """Apply the methods of the report to a trace.

    `probes`: for the contributions; None for `probes_for`, 0 to leave them out. `seconds`: after which no further row
    is examined for how far it can move (at least one is). `also`: further methods that `check_pickable` allows;
    `target`: what those that explain one number are to explain. `comparison`: what is said of their faithfulness.
    Errors: those of the methods.
    """
    for name in also:
        check_pickable(name)
    progress("effective attention")
    raw, effective = call("effective_attention", trace, part="raw"), call("effective_attention", trace)
    certificate = call("attention_identifiability", trace)
    contribution = None
    used = probes_for(trace) if probes is None else probes
    if used:
        progress(f"contributions, from {used} probes a token")
        contribution = call("hidden_token_attribution", trace, probes=used, seed=seed)
    naive = call("token_identifiability_naive", trace)
    nearest = call("token_identifiability_naive", trace, per_token=True)
    extra: dict[str, Map] = {}
    for name in also:
        progress(name)
        extra[name] = call(name, trace, **({"target": target} if find(name).explains else {}))
    rows = rows_to_move(raw.values, effective.values, certificate)
    if rows:
        progress(f"how far attention can move with the same output, in {len(rows)} rows")
    moved: list[Map] = []
    until = time.monotonic() + seconds
    for layer, head, query in rows:
        if moved and time.monotonic() > until:
            break
        moved.append(call("farthest_attention", trace, layer=layer, head=head, query=query, seed=seed))
    why = (
        "as asked (0 probes)" if probes == 0 else "this text and model would take very long (--probes 2 computes them)"
    )
    notices = () if used else (f"Contributions are left out: {why}.",)
    return Findings(
        trace, raw, effective, certificate, naive, contribution, tuple(moved), len(rows), notices, nearest, extra,
        comparison,
    )  # fmt: skip


def call(name: str, trace: Trace, **options: Any) -> Any:
    """A method by name on a trace."""
    return find(name).function(trace, **options)


def rows_to_move(raw: np.ndarray, effective: np.ndarray, certificate: Table) -> list[tuple[int, int, int]]:
    """(layer, head, query) of the row with the largest null-space share of each head that is not identifiable.

    Ordered so that a cut leaves all layers: of each layer the head with the largest share, then of each the next ...
    """
    null = np.einsum("lhqk,lhqk->lhq", raw - effective, raw - effective, dtype=np.float64)
    total = np.einsum("lhqk,lhqk->lhq", raw, raw, dtype=np.float64)
    row_share, head_share = share(null, total), share(null.sum(axis=2), total.sum(axis=2))
    free = np.zeros(head_share.shape, bool)
    free[certificate["layer"], certificate["head"]] = certificate["verdict"] == "not identifiable"
    rows: list[tuple[int, int, int, int]] = []
    for layer in range(len(head_share)):
        order = [int(head) for head in np.argsort(-head_share[layer], kind="stable") if free[layer, head]]
        rows += [(place, layer, head, int(row_share[layer, head].argmax())) for place, head in enumerate(order)]
    return [row[1:] for row in sorted(rows)]
