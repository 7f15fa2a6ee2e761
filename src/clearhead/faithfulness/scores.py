"""From a Map to one score a token: the one place that decides it."""

from __future__ import annotations

import numpy as np

from clearhead.errors import NotDefined
from clearhead.maps import Map
from clearhead.target import Reads

RULE = (
    "The last layer's row of the position that the target reads (first token: a classifier's [CLS]; last: a next "
    "token; mean over rows: mean pooling), of the map chained by its method's own residual where it may be chained, "
    "else as it is (heads averaged); of a map without queries the last layer, of one by target the first target's row."
)


def scores(found: Map, reads: Reads) -> np.ndarray:
    """One number a token [key], by `RULE`. Errors: NotDefined for a map without keys."""
    if "key" not in found.dims:
        raise NotDefined(f"a score for each token from {found.meta.get('method', 'a map')}", got=f"axes {found.dims}")
    if found.meta.get("residual") is not None and {"layer", "query"} <= set(found.dims):
        found = found.rollout()
    if "layer" in found.dims:
        found = found[tuple(-1 if dim == "layer" else slice(None) for dim in found.dims)]
    if "target" in found.dims:
        found = found.sel(target=found.coords["target"][0])
    values, dims = found.values.astype(np.float64), list(found.dims)
    if "head" in dims:
        values = values.mean(dims.index("head"))
        dims.remove("head")
    if "query" in dims:
        rows = np.moveaxis(values, dims.index("query"), 0)
        values = rows.mean(0) if reads == "mean" else rows[0 if reads == "first" else -1]
        dims.remove("query")
    if dims != ["key"]:
        raise NotDefined(f"a score for each token from {found.meta.get('method', 'a map')}", got=f"axes {dims}")
    return values
