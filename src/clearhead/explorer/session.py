"""One analysed trace and what is asked of it afterwards: the same for the server's worker and the notebook."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from clearhead import engine
from clearhead.errors import InputError
from clearhead.explorer.catalogue import PICKABLE
from clearhead.explorer.data import payload
from clearhead.explorer.findings import analyse, call
from clearhead.explorer.maps_told import extra_told
from clearhead.explorer.querykey import Kind, points
from clearhead.methods.registry import Method, find

if TYPE_CHECKING:
    from clearhead.maps import Map
    from clearhead.trace import Trace

Say = Callable[[str], None]


@dataclass(frozen=True)
class Session:
    """A trace, and the maps that were computed on it, by id."""

    trace: Trace
    maps: dict[str, Map] = field(default_factory=dict[str, "Map"])


def first_page(session: Session, *, probes: int | None = None, seconds: float = 5.0, say: Say) -> dict[str, Any]:
    """The payload of the page; its large maps stay here. Errors: those of the methods."""
    found = analyse(session.trace, probes=probes, seconds=seconds, progress=say)
    session.maps.update(raw=found.raw, effective=found.effective)
    if found.contribution is not None:
        session.maps["contribution"] = found.contribution
    say("writing the page")
    return payload(found, remote=True)


def add_map(session: Session, method: str, options: Mapping[str, Any], *, say: Say) -> dict[str, Any]:
    """Compute a method, unless it is there; what the page is told of it, with its `id`.

    Errors: InputError for an unknown method or option, and for one whose result the page cannot show.
    """
    chosen = find(method)
    given = typed_options(chosen, options)
    if chosen.returns != "map" or chosen.dims not in PICKABLE:
        raise InputError(f"the page cannot show {method}", got=f"a {chosen.returns} of {', '.join(chosen.dims)}")
    name = map_id(method, given)
    if name not in session.maps:
        say(method)
        session.maps[name] = whole(call(method, session.trace, **given), session.trace)
    return extra_told(method, session.maps[name], 0, [], remote=True) | {"id": name, "reason": None}


def whole(made: Map, trace: Trace) -> Map:
    """A Map that the page can show. Errors: InputError for one of other axes, or of a part of the layers or queries."""
    depths, tokens = trace.hidden.shape[:2]
    sizes = {"layer": depths - 1, "query": tokens, "key": tokens}
    if made.dims not in PICKABLE or any(made.sizes[dim] != size for dim, size in sizes.items()):
        got = ", ".join(f"{dim} {size}" for dim, size in made.sizes.items())
        raise InputError(
            f"the page cannot show {made.meta['method']} with these options", got=got,
            allowed="every layer, query and key", do="`clearhead map` writes these numbers.",
        )  # fmt: skip
    return made


def map_id(method: str, options: Mapping[str, Any]) -> str:
    """The method, with a hash of its options where some were given."""
    if not options:
        return method
    return f"{method}-{hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12]}"


def typed_options(method: Method, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that came as JSON, as values of the types in the method's signature. Errors: InputError."""
    engine.check_options(method, options)
    kinds = engine.option_types(method)
    return {
        name: engine.parse(f"{method.name}: {name}", engine.typed(value), kinds[name])
        for name, value in options.items()
    }


def interval(session: Session, layer: int, head: int, query: int) -> dict[str, Any]:
    """Lowest and highest weight of each key of a row with the same output. Errors: those of identifiable_interval."""
    found = call("identifiable_interval", session.trace, layer=layer, head=head, query=query)
    low, high = found.values.tolist()
    return {"low": low, "high": high, "free": found.meta["nullity_row_sum"]}


def query_key(session: Session, layer: int, head: int, kind: Kind, *, say: Say) -> dict[str, Any]:
    """The joint query-key map of a head. Errors: InputError, NotDefined, MissingExtra."""
    layers = session.trace.layers
    if not 0 <= layer < len(layers):
        raise InputError("query-key map: layer", got=layer, allowed=f"0 to {len(layers) - 1}")
    say(f"query-key map by {kind}")
    found = points(layers[layer], head, kind)
    return {
        "at": found.at.tolist(), "norms": found.norms.tolist(), "scale": found.scale, "agreement": found.agreement,
        "kept": found.kept,
    }  # fmt: skip


def numbers(values: np.ndarray, *, layer: int | None, head: int, query: int | None) -> np.ndarray:
    """A part of a map [layer, (head,) query, key] as float32: of one layer all queries, or of one query all layers.

    Errors: InputError for a part that is not there.
    """
    if (layer is None) == (query is None):
        raise InputError("numbers: a layer or a query, not both", got=f"layer {layer}, query {query}")
    if values.ndim == 4:
        check("head", head, values.shape[1])
        values = values[:, head]
    if layer is not None:
        check("layer", layer, values.shape[0])
        return np.ascontiguousarray(values[layer], np.float32)
    check("query", query or 0, values.shape[1])
    return np.ascontiguousarray(values[:, query or 0], np.float32)


def check(what: str, got: int, count: int) -> None:
    """Errors: InputError for a position that is not there."""
    if not 0 <= got < count:
        raise InputError(f"numbers: {what}", got=got, allowed=f"0 to {count - 1}")
