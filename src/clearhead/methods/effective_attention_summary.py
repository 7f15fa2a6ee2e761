"""What remains of effective attention where its matrix is too large to form."""

from __future__ import annotations

import numpy as np

from clearhead import linalg
from clearhead.errors import NotDefined, ProofError
from clearhead.maps import Table
from clearhead.methods.registry import method, origin_of
from clearhead.progress import each
from clearhead.trace import Layer, Trace

ABOUT = {
    "layer": "block, from 0",
    "head": "attention head, from 0",
    "token": "position of the token, as query (norms, share) and as key (received)",
    "norm_squared": "squared norm of its row of attention",
    "norm_squared_effective": "squared norm of its row of effective attention",
    "null_space_share": "1 - norm_squared_effective / norm_squared: share that no head output can see, 0 to 1",
    "received_effective": "effective attention that it receives as key, summed over queries",
}


@method(
    paper="Brunner et al. 2020 (arXiv 1908.04211), section 3; the sums beyond the paper",
    dims=("layer", "head"),
    unit="attention weight",
    returns="table",
    cost="as effective_attention",
    can="How far raw and effective attention are apart, by layer and head.",
    cannot="Which weights differ: look at the maps for that.",
)
def effective_attention_summary(trace: Trace) -> Table:
    """Norms and received mass of effective attention by layer, head and token, without a query x key matrix.

    The sums of `effective_attention(trace)`, in time linear in the number of tokens, for traces of any length: with
    capture="outputs" no n x n matrix is formed anywhere. With y_i = (V_S^T V_S)^+ o_i, || a_eff,i ||^2 = y_i . o_i, and
    key j receives v_j . (sum of y_i over the queries that see j).
    Returns one row a layer, head and token. Squared norms are those of the rows of attention, in float64.
    `meta["rounding"]`: how far the rounding of the captured numbers may move a row, relative to its norm, at worst.
    Errors: NotDefined where the precision cannot decide a rank, or where queries and keys are different tokens;
    ProofError where an effective row comes out longer than its row beyond rounding.
    """
    part = trace.part()
    if part.queries != part.keys:
        raise NotDefined("effective_attention_summary: queries and keys are different tokens here", got=part.name)
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ABOUT}
    worst = 1.0
    for index, layer in enumerate(each(trace.layers)):
        sums = linalg.effective_row_sums(
            layer.value,
            layer.visible.start,
            layer.visible.stop,
            eps=trace.eps,
            probabilities=layer.probabilities,
            outputs=layer.head_output,
            directions=trace.model.output_directions(index),
        )
        worst = max(worst, sums.condition)
        raw = _norm_squared(layer)
        effective = np.where(sums.exact.cpu().numpy(), raw, sums.norm_squared.cpu().numpy())
        share = 1 - effective / raw
        allowed = 8 * trace.eps * max(sums.condition, np.sqrt(raw.shape[-1]))
        if share.min() < -allowed or share.max() > 1 + allowed:
            raise ProofError(
                f"effective_attention_summary: layer {index}: null-space share out of range",
                got=f"{share.min():.3g} to {share.max():.3g}",
                allowed=f"0 to 1 within {allowed:.1g}",
            )
        heads, tokens = np.indices(raw.shape)
        received = sums.received.cpu().numpy()
        shares = share.clip(0.0, 1.0)
        for name, values in zip(
            ABOUT, (np.full(raw.shape, index), heads, tokens, raw, effective, shares, received), strict=True
        ):
            columns[name].append(values.ravel())
    return Table(
        {name: np.concatenate(parts) for name, parts in columns.items()},
        about=ABOUT,
        meta=origin_of(trace, "effective_attention_summary", {}) | {"rounding": worst * trace.eps},
    )


def _norm_squared(layer: Layer) -> np.ndarray:
    """[head, query] of the rows of attention, recorded or from the probabilities."""
    if layer.norm_squared is not None:
        return layer.norm_squared.double().cpu().numpy()
    if layer.probabilities is None:
        raise NotDefined("effective_attention_summary: neither row norms nor probabilities were recorded")
    return layer.probabilities.double().square().sum(-1).cpu().numpy()
