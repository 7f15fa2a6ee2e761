"""Maximal flow from the states of a layer down to the input, through layers of capacities. Needs OR-tools."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import MissingExtra, NotDefined
from clearhead.progress import each

SCALE = 2.0**52
"""Capacities are whole numbers of 2^-52, the spacing of float64 at 1."""
SECONDS_AN_ARC = 7e-8
"""Of one flow, measured (64 tokens, 6 layers)."""


def solver() -> Any:
    """OR-tools' module of maximal flows. Errors: MissingExtra."""
    try:
        from ortools.graph.python import max_flow
    except ModuleNotFoundError as error:
        raise MissingExtra("attention_flow needs OR-tools", do="pip install clearhead[flow]") from error
    return max_flow


def flow_cost(tokens: int, layers: Sequence[int], queries: int) -> float:
    """Seconds that `max_flows` will take, about."""
    arcs = sum((layer - 1) * tokens**2 + 2 * tokens for layer in layers if layer > 1)
    return queries * tokens * arcs * SECONDS_AN_ARC


def max_flows(
    capacities: Float[Tensor, "layer query key"], layers: Sequence[int], queries: Sequence[int]
) -> Float[Tensor, "chosen query_chosen key"]:
    """The maximal flow from each query after each of `layers` to each input key; an edge query <- key of layer l has
    capacity capacities[l, query, key].

    Of the lowest layer it is the capacity itself, of the second sum_k min(C_1[i, k], C_0[k, j]) (each path has an edge
    of its own at either end); above it is solved in whole numbers of 2^-52.
    Errors: MissingExtra without OR-tools; NotDefined where the solver does not find the optimum.
    """
    module = solver()
    whole = np.rint(capacities.double().cpu().numpy() * SCALE).astype(np.int64)
    chosen = list(queries)
    found: list[np.ndarray] = []
    for layer in each(layers):
        if layer == 0:
            flows = whole[0, chosen]
        elif layer == 1:
            flows = np.stack([np.minimum(whole[1, query][:, None], whole[0]).sum(0) for query in chosen])
        else:
            flows = _solved(module, whole[: layer + 1], chosen)
        found.append(flows / SCALE)
    return torch.from_numpy(np.stack(found))


def _solved(module: Any, whole: np.ndarray, queries: Sequence[int]) -> np.ndarray:
    """Flows [query, key] through three layers or more.

    The layers between first and last stand in one graph; the edges of one query (at its top) and of one key (at its
    bottom) are all that changes from flow to flow.
    """
    n = whole.shape[-1]
    solver = module.SimpleMaxFlow()
    middle = whole[-2:0:-1]
    level, upper, lower = np.nonzero(middle)
    solver.add_arcs_with_capacity(level * n + upper, (level + 1) * n + lower, middle[level, upper, lower])
    source, sink = (len(middle) + 1) * n, (len(middle) + 1) * n + 1
    ones, nodes = np.ones(n, np.int64), np.arange(n)
    top = solver.add_arcs_with_capacity(source * ones, nodes, ones)
    bottom = solver.add_arcs_with_capacity(len(middle) * n + nodes, sink * ones, ones)
    flows = np.empty((len(queries), n), np.int64)
    for row, query in enumerate(queries):
        solver.set_arcs_capacity(top, whole[-1, query])
        for key in range(n):
            solver.set_arcs_capacity(bottom, whole[0, :, key])
            status = solver.solve(source, sink)
            if status != solver.OPTIMAL:
                raise NotDefined(f"the flow from query {query} to key {key}: the solver stopped with {status}")
            flows[row, key] = solver.optimal_flow()
    return flows
