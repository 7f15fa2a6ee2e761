"""The layers of a Map chained down to the input."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from clearhead.errors import InputError, NotDefined

if TYPE_CHECKING:
    from clearhead.maps.map import Map


def rollout(found: Map, residual: float | None) -> Map:
    """`Map.rollout` (Abnar & Zuidema 2020, arXiv 2005.00928, section 3, with the residual's share as a parameter)."""
    refuse_unchained(found)
    share = share_of(found, residual)
    layers = found.values.astype(np.float64)
    if "head" in found.dims:
        layers = layers.mean(found.dims.index("head"))
    layers = (1 - share) * layers + share * np.eye(layers.shape[-1])
    chained = [layers[0]]
    for layer in layers[1:]:
        chained.append(layer @ chained[-1])
    product = np.stack(chained)
    if not np.abs(product).max(initial=0.0) <= np.finfo(found.values.dtype).max:  # "not <=" finds NaN as well
        raise NotDefined("Map.rollout: the product of the layers is beyond the range of numbers")
    values = product.astype(found.values.dtype, copy=False)
    meta: dict[str, Any] = {**found.meta, "residual": None, "rollout": {"residual": share}}
    coords = {"layer": found.coords["layer"]}
    return replace(found, values=values, dims=("layer", "query", "key"), coords=coords, meta=meta)


def refuse_unchained(found: Map) -> None:
    """Errors: NotDefined where a product of the layers would not lead from the last layer to the input."""
    dims = tuple(dim for dim in found.dims if dim != "head")
    method = str(found.meta.get("method", "this map"))
    reason, do = "", ""
    if "rollout" in found.meta:
        reason = "its layers are chained already"
    elif found.meta.get("residual", 0.0) is None:
        reason = f"the layers of {method} are not shares that the next layer passes on"
    elif dims != ("layer", "query", "key"):
        reason, do = f"its axes are {', '.join(found.dims)}", "A chain needs layer, query and key (and may have head)."
    elif "by_word" in found.meta:
        reason, do = "its tokens are merged to words already", "Chain first, then merge: map.rollout().by_word()."
    elif found.stderr is not None:
        reason = "its numbers are estimates, and the error of their product is not known"
    elif found.coords["layer"] != tuple(range(len(found.coords["layer"]))):
        reason, do = "layers are left out", "Chain first, then choose: map.rollout().sel(layer=...)."
    elif found.tokens["query"] != found.tokens["key"]:
        reason, do = "its queries are not its keys", "A chain needs every query and every key of one text."
    if reason:
        raise NotDefined(f"Map.rollout of {method}: {reason}", do=do)


def share_of(found: Map, residual: float | None) -> float:
    """The share of the identity: as given, else that of the map's method. Errors: InputError."""
    if residual is None and "residual" not in found.meta:
        raise InputError(
            "Map.rollout: residual", got="none, and the map names no method that has one", allowed="0 to 1"
        )
    share = found.meta["residual"] if residual is None else residual
    if type(share) not in (int, float) or not (math.isfinite(share) and 0 <= share <= 1):
        raise InputError("Map.rollout: residual", got=repr(share), allowed="0 to 1")
    return float(share)
