"""Which methods the page can colour a text by: every one in the registry that maps queries to keys by layer."""

from __future__ import annotations

from clearhead.errors import InputError
from clearhead.methods.registry import Method, find, methods

PICKABLE = (("layer", "query", "key"), ("layer", "head", "query", "key"))
"""Axes of the maps that the page can show."""


def pickable() -> dict[str, Method]:
    """The methods whose result the page can show, by name."""
    return {name: one for name, one in methods().items() if one.returns == "map" and one.dims in PICKABLE}


def title_of(name: str) -> str:
    """ "value_zeroing" as "Value zeroing"."""
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]


def why_not(method: Method) -> str | None:
    """Why the page cannot run a method by itself: an option that has no default. None where it can."""
    return f"needs the option {', '.join(method.required)}" if method.required else None


def check_pickable(name: str) -> Method:
    """The method of that name. Errors: InputError where it is unknown, gives no such map, or needs an option."""
    method = find(name)
    if method.returns != "map" or method.dims not in PICKABLE:
        allowed = ", ".join(name for name, one in pickable().items() if not one.required)
        raise InputError(f"the page cannot show {name}", got=f"{method.returns} {method.dims}", allowed=allowed)
    if method.required:
        raise InputError(f"the page cannot run {name}", got="no options", allowed=f"{name} {why_not(method)}")
    return method
