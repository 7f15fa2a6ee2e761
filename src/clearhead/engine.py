"""(model, text, method, options) -> Map or Table: the one way in for command line, report, server and corpus runs."""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from clearhead.errors import InputError
from clearhead.methods.registry import Method, find

if TYPE_CHECKING:
    from clearhead.maps import Map, Table
    from clearhead.models.model import Model


def run(
    model: Model, text: str, method: str, options: Mapping[str, Any] | None = None, *, pair: str | None = None
) -> Map | Table:
    """Trace `text` (with `pair`) and apply a method by name.

    Errors: InputError for an unknown method or option, or one that is missing, before the model runs; those of
    `Model.trace` and of the method.
    """
    chosen = find(method)
    given = dict(options or {})
    check_options(chosen, given)
    return chosen.function(model.trace(text, pair), **given)


def check_options(method: Method, names: Iterable[str]) -> None:
    """Errors: InputError for options that the method does not have, or needs and was not given."""
    names = list(names)
    unknown = [name for name in names if name not in method.options]
    if unknown:
        allowed = ", ".join(method.options) or "none"
        raise InputError(f"{method.name}: no such option", got=", ".join(unknown), allowed=allowed)
    missing = [name for name in method.required if name not in names]
    if missing:
        raise InputError(f"{method.name} needs {', '.join(missing)}", got=", ".join(names) or "no options")


def parse_options(method: Method, given: Iterable[str]) -> dict[str, Any]:
    """`["probes=16", "norm=spectral"]` as values of the types in the method's signature ("none" for None).

    Errors: InputError for what is not name=value, a name given twice, an unknown or a missing option, a wrong value.
    """
    texts: dict[str, str] = {}
    for item in given:
        name, equals, value = item.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise InputError(f"{method.name}: an option", got=repr(item), allowed="name=value")
        if name in texts:
            raise InputError(f"{method.name}: option {name} given twice", got=f"{texts[name]!r} and {value!r}")
        texts[name] = value.strip()
    check_options(method, texts)
    kinds = option_types(method)
    return {name: parse(f"{method.name}: {name}", value, kinds[name]) for name, value in texts.items()}


def option_types(method: Method) -> dict[str, Any]:
    """The type of each option, from the signature."""
    function = inspect.unwrap(method.function)
    options = SimpleNamespace(__annotations__={name: p.annotation for name, p in method.options.items()})
    return get_type_hints(options, globalns=getattr(function, "__globals__"))  # noqa: B009


def parse(what: str, text: str, kind: Any) -> Any:
    """`text` as a value of `kind`: None, bool, int, float, str, a Literal, or a union of them (first that fits).

    Errors: InputError with what is allowed.
    """
    for alternative in sorted(alternatives(kind), key=lambda one: one is not type(None)):  # "none" is no text
        if alternative is type(None) and text.lower() == "none":
            return None
        if alternative is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if get_origin(alternative) is Literal:
            matching = [value for value in get_args(alternative) if str(value) == text]
            if matching:
                return matching[0]
        if alternative in (int, float):
            try:
                number = alternative(text)
            except ValueError:
                continue
            if math.isfinite(number):
                return number
        if alternative is str:
            return text
    raise InputError(what, got=repr(text), allowed=spell(kind))


def typed(value: Any) -> str:
    """A value of an option as it is typed."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def choices(kind: Any) -> list[str]:
    """What may be typed where only a few things may; else none."""
    found: list[str] = []
    for alternative in alternatives(kind):
        if get_origin(alternative) is Literal:
            found += [str(value) for value in get_args(alternative)]
        elif alternative is bool:
            found += ["true", "false"]
        elif alternative is type(None):
            found.append("none")
        else:
            return []
    return found


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The members of a union, else the type alone."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def spell(kind: Any) -> str:
    """A type in words: "int, none", "'frobenius', 'spectral'", "true, false"; what cannot be spelled is left out."""
    words: list[str] = []
    for alternative in alternatives(kind):
        if get_origin(alternative) is not Literal and alternative not in (int, float, str, bool, type(None)):
            continue
        if get_origin(alternative) is Literal:
            words += [str(value) for value in get_args(alternative)]
        else:
            name = getattr(alternative, "__name__", str(alternative))
            words.append({"NoneType": "none", "bool": "true, false"}.get(name, name))
    return ", ".join(words)
