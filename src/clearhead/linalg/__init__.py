"""The mathematics: tensors in, tensors out. No model, no text, no files.

Importing this package loads nothing: torch and scipy come with the first function used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clearhead.linalg.block import replay, row_errors
    from clearhead.linalg.carried import Rules, carry, carry_cost, carry_head
    from clearhead.linalg.concept import concept_direction, told_apart
    from clearhead.linalg.decompose import head_norms, mixing, part_norms, proximity
    from clearhead.linalg.flow import flow_cost, max_flows
    from clearhead.linalg.gradients import (
        completeness,
        gauss_legendre,
        gradient,
        left_sum,
        mean_gradient,
        points_a_pass,
    )
    from clearhead.linalg.jacobian import (
        contributions,
        disagreement,
        jackknife,
        orthogonal_probes,
        sampled_norms,
        spectral_norms,
        squared_norms,
    )
    from clearhead.linalg.neighbours import nearest_candidates
    from clearhead.linalg.nullspace import effective_attention, effective_row_sums
    from clearhead.linalg.polytope import farthest_weights, relative_change, weight_bounds
    from clearhead.linalg.rank import certificate, read_directions, value_matrix
    from clearhead.linalg.zeroing import value_distances

__all__ = [
    "Rules",
    "carry",
    "carry_cost",
    "carry_head",
    "certificate",
    "completeness",
    "concept_direction",
    "contributions",
    "disagreement",
    "effective_attention",
    "effective_row_sums",
    "farthest_weights",
    "flow_cost",
    "gauss_legendre",
    "gradient",
    "head_norms",
    "jackknife",
    "left_sum",
    "max_flows",
    "mean_gradient",
    "mixing",
    "nearest_candidates",
    "orthogonal_probes",
    "part_norms",
    "points_a_pass",
    "proximity",
    "read_directions",
    "relative_change",
    "replay",
    "row_errors",
    "sampled_norms",
    "spectral_norms",
    "squared_norms",
    "told_apart",
    "value_distances",
    "value_matrix",
    "weight_bounds",
]

_HOME = {
    "Rules": "carried",
    "carry": "carried",
    "carry_cost": "carried",
    "carry_head": "carried",
    "certificate": "rank",
    "completeness": "gradients",
    "concept_direction": "concept",
    "contributions": "jacobian",
    "disagreement": "jacobian",
    "effective_attention": "nullspace",
    "effective_row_sums": "nullspace",
    "farthest_weights": "polytope",
    "flow_cost": "flow",
    "gauss_legendre": "gradients",
    "gradient": "gradients",
    "head_norms": "decompose",
    "jackknife": "jacobian",
    "left_sum": "gradients",
    "max_flows": "flow",
    "mean_gradient": "gradients",
    "mixing": "decompose",
    "nearest_candidates": "neighbours",
    "orthogonal_probes": "jacobian",
    "part_norms": "decompose",
    "points_a_pass": "gradients",
    "proximity": "decompose",
    "read_directions": "rank",
    "relative_change": "polytope",
    "replay": "block",
    "row_errors": "block",
    "sampled_norms": "jacobian",
    "spectral_norms": "jacobian",
    "squared_norms": "jacobian",
    "told_apart": "concept",
    "value_distances": "zeroing",
    "value_matrix": "rank",
    "weight_bounds": "polytope",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
