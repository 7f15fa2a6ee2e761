"""The joint map of a head's queries and keys (AttentionViz, Yeh et al. 2023, arXiv 2305.03210).

Neither step changes the attention: keys are moved so that their mean is that of the queries (adds the same number to
every logit of a query), and queries are multiplied by c, keys by 1 / c (leaves every q . k). c is chosen so that
distance tells attention: the correlation of q . k with -||q - k|| over all pairs is as large as it can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from clearhead.errors import InputError, MissingExtra, NotDefined

if TYPE_CHECKING:
    from clearhead.trace import Layer

Kind = Literal["pca", "umap", "tsne"]
MOST_PAIRS = 256
"""Queries and keys, evenly spaced, over which c is sought."""


@dataclass(frozen=True)
class Points:
    """Where each query and key lies: `at` [side, token, axis] (side 0 queries, 1 keys), `norms` [side, token] before
    scaling; `scale` is c, `agreement` the correlation of q . k with -||q - k||, `kept` the variance that PCA keeps."""

    at: np.ndarray
    norms: np.ndarray
    scale: float
    agreement: float
    kept: float | None


def points(layer: Layer, head: int, kind: Kind = "pca", seed: int = 0) -> Points:
    """The map of one head. Errors: InputError, NotDefined without captured queries, MissingExtra for umap and tsne."""
    if kind not in get_args(Kind):
        raise InputError("query-key map: kind", got=repr(kind), allowed=", ".join(get_args(Kind)))
    if layer.query is None or layer.key is None:
        raise NotDefined("query-key map: this trace has no queries and keys", do='Trace with capture="full".')
    heads, kv_heads = len(layer.query), len(layer.key)
    if not 0 <= head < heads:
        raise InputError("query-key map: head", got=head, allowed=f"0 to {heads - 1}")
    query = layer.query[head].double().cpu().numpy()
    key = layer.key[head // (heads // kv_heads)].double().cpu().numpy()
    norms = np.stack([np.linalg.norm(side, axis=1) for side in (query, key)])
    moved = key + (query.mean(axis=0) - key.mean(axis=0))
    scale, agreement = best_scale(query, moved)
    joint = np.concatenate([scale * query, moved / scale])
    at, kept = (*pca(joint),) if kind == "pca" else (embedded(joint, kind, seed), None)
    return Points(at.reshape(2, len(query), 2), norms, scale, agreement, kept)


def best_scale(query: np.ndarray, key: np.ndarray) -> tuple[float, float]:
    """(c, agreement): c > 0 with the largest correlation of q . k and -||c q - k / c||, to 1 % (golden-section search
    over log c from the best of a grid); (1, 0) where all pairs are alike."""
    q, k = (side[np.linspace(0, len(side) - 1, min(len(side), MOST_PAIRS)).astype(int)] for side in (query, key))
    logits, q2, k2 = q @ k.T, (q**2).sum(axis=1)[:, None], (k**2).sum(axis=1)[None]
    if np.ptp(logits) == 0:
        return 1.0, 0.0

    def agreement(log: float) -> float:
        c2 = np.exp(2 * log)
        distance = np.sqrt(np.maximum(c2 * q2 + k2 / c2 - 2 * logits, 0))
        return 0.0 if np.ptp(distance) == 0 else float(np.corrcoef(logits.ravel(), -distance.ravel())[0, 1])

    grid = np.linspace(-3, 3, 25) + 0.25 * np.log(max(k2.mean(), 1e-300) / max(q2.mean(), 1e-300))
    best = float(max(grid, key=agreement))
    low, high, golden = best - 0.25, best + 0.25, (5**0.5 - 1) / 2
    while high - low > 0.01:
        one, two = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, two) if agreement(one) >= agreement(two) else (one, high)
    found = max((low + high) / 2, best, key=agreement)
    return float(np.exp(found)), agreement(found)


def pca(points: np.ndarray) -> tuple[np.ndarray, float]:
    """([point, 2], share of the variance kept). The sign of an axis: its largest loading is positive."""
    centred = points - points.mean(axis=0)
    variance, axes = np.linalg.eigh(centred.T @ centred)
    axes = axes[:, ::-1][:, :2]
    if axes.shape[1] < 2:
        axes = np.concatenate([axes, np.zeros((len(axes), 1))], axis=1)
    axes = axes * np.where(axes[np.abs(axes).argmax(axis=0), range(2)] < 0, -1, 1)
    total = float(variance.sum())
    return centred @ axes, float(variance[::-1][:2].sum() / total) if total > 0 else 1.0


def embedded(points: np.ndarray, kind: Kind, seed: int) -> np.ndarray:
    """[point, 2] by UMAP or t-SNE. Errors: MissingExtra; NotDefined for fewer than 10 points."""
    if len(points) < 10:
        raise NotDefined(
            f"query-key map: {kind} of so few points", got=len(points), allowed="10 or more", do="Use pca."
        )
    neighbours = min(15, len(points) // 3)
    if kind == "umap":
        umap: Any = _need("umap", "umap-learn")
        reducer = umap.UMAP(n_neighbors=neighbours, random_state=seed, n_jobs=1, min_dist=0.15)
    else:
        manifold: Any = _need("sklearn.manifold", "scikit-learn")
        reducer = manifold.TSNE(perplexity=neighbours, random_state=seed, init="pca", n_jobs=1)
    return np.asarray(reducer.fit_transform(points), np.float64)


def _need(module: str, package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtra(f"query-key map needs {package}", do="pip install clearhead[projection]") from error
