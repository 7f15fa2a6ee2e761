"""The checks that every Map and Table passes when it is made, and equality of arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from clearhead.errors import InputError

DTYPES = ("float32", "float64", "int32", "int64")


def finite(name: str, values: Any) -> np.ndarray:
    """A read-only array, C-contiguous: itself where it is one already and no view of another, else a copy.

    Errors: InputError for another dtype than `DTYPES`, NaN or infinity.
    """
    array = values if _settled(values) else np.array(values, order="C")
    if array.dtype.name not in DTYPES or not array.dtype.isnative:
        raise InputError(f"{name}: dtype", got=array.dtype, allowed=", ".join(DTYPES))
    there = np.isfinite(array)
    if not there.all():
        bad = np.argwhere(~there)
        first = tuple(bad[0].tolist())
        raise InputError(f"{name}: {len(bad)} values are not finite, the first at {first}", got=array[first])
    array.flags.writeable = False
    return array


def _settled(values: Any) -> bool:
    """Whether nobody can write to these numbers any more."""
    if type(values) is not np.ndarray or values.base is not None:
        return False
    return values.flags.c_contiguous and not values.flags.writeable


def as_json(name: str, meta: Mapping[str, Any]) -> dict[str, Any]:
    """`meta` as it will be read from a file: tuples become lists, numpy numbers plain ones.

    Errors: InputError for what JSON does not know, NaN and infinity included.
    """

    def plain(value: object) -> object:
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"{value!r} of type {type(value).__name__}")

    try:
        return json.loads(json.dumps(dict(meta), allow_nan=False, default=plain))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} must fit into JSON", got=error, allowed="text, finite numbers, lists, dicts"
        ) from error


def same(one: np.ndarray | None, two: np.ndarray | None) -> bool:
    """True where dtype, shape and values are equal (for objects, the type of each as well)."""
    if one is None or two is None:
        return one is two
    if one.dtype != two.dtype or not np.array_equal(one, two):
        return False
    return one.dtype != object or [type(value) for value in one.flat] == [type(value) for value in two.flat]
