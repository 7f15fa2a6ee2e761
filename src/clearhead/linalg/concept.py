"""The direction that separates the vectors of a concept from others."""

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import minimize
from torch import Tensor

from clearhead.errors import NotDefined

FOLDS = 5


def concept_direction(vectors: Float[Tensor, "text width"], concept: Int[Tensor, " text"]) -> Float[Tensor, " width"]:
    """The unit normal of a logistic regression of `concept` (1 or 0) on the vectors, towards the concept; float64.

    It minimises sum log(1 + exp(-s (w . x + b))) + ||w||^2 / 2, s = 1 or -1; b is not penalised.
    Errors: NotDefined where all vectors are the same.
    """
    x, sign = vectors.double().cpu().numpy(), 2.0 * concept.cpu().numpy() - 1
    weights, _ = _fitted(x, sign)
    norm = np.linalg.norm(weights)
    if norm == 0:
        raise NotDefined("ttcav: the texts of the concept and the others have the same states", got="no direction")
    return torch.from_numpy(weights / norm)


def told_apart(vectors: Float[Tensor, "text width"], concept: Int[Tensor, " text"]) -> float:
    """Share of the texts that a regression on the others puts on the right side, in `FOLDS` parts (every fifth text of
    each class), the two classes counted alike: chance is 1/2."""
    x, truth = vectors.double().cpu().numpy(), concept.cpu().numpy().astype(bool)
    fold = np.empty(len(truth), dtype=int)
    for one in (truth, ~truth):
        fold[one] = np.arange(one.sum()) % FOLDS
    right = np.empty(len(truth), dtype=bool)
    for number in np.unique(fold):
        out = fold == number
        weights, bias = _fitted(x[~out], 2.0 * truth[~out] - 1)
        right[out] = (x[out] @ weights + bias > 0) == truth[out]
    return float((right[truth].mean() + right[~truth].mean()) / 2)


def _fitted(x: np.ndarray, sign: np.ndarray) -> tuple[np.ndarray, float]:
    """(w, b) of the regression."""
    mean = x.mean(0)
    z = x - mean  # the same minimum, better conditioned

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        w, b = point[:-1], point[-1]
        margin = sign * (z @ w + b)
        pull = -sign / (1 + np.exp(np.clip(margin, -500, 500)))
        return float(np.logaddexp(0, -margin).sum() + w @ w / 2), np.append(z.T @ pull + w, pull.sum())

    found = minimize(loss, np.zeros(x.shape[1] + 1), jac=True, method="L-BFGS-B", options={"gtol": 1e-10, "ftol": 0.0})
    return found.x[:-1], float(found.x[-1] - mean @ found.x[:-1])
