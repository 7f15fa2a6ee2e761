"""What a caller wrote between brackets or in `sel` -> positions on each axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

import numpy as np

from clearhead.errors import InputError

Label = int | str
Selector = Label | slice | Sequence[Label] | np.ndarray


def by_label(dim: str, labels: Sequence[Label], wanted: Selector) -> int | list[int]:
    """Position(s) of one label, a list of labels, or a slice over whole-number labels (stop excluded).

    A negative number counts from the end. Errors: InputError for a label that is not there, and for anything else.
    """
    if isinstance(wanted, slice):
        return _by_slice(dim, labels, wanted)
    if isinstance(wanted, int | np.integer | str) and not isinstance(wanted, bool):
        return _position(dim, labels, wanted)
    if isinstance(wanted, Sequence | np.ndarray):
        return _some(dim, labels, [_position(dim, labels, label) for label in wanted])
    raise InputError(f"Map.sel: {dim}", got=repr(wanted), allowed="a label, a list of labels, a slice")


def _position(dim: str, labels: Sequence[Label], label: Label) -> int:
    if isinstance(label, int | np.integer) and not isinstance(label, bool) and -len(labels) <= label < 0:
        return int(label) + len(labels)
    if isinstance(label, bool | np.bool_) or label not in labels:
        raise InputError(f"Map.sel: no such {dim}", got=repr(label), allowed=spell(labels))
    return labels.index(label)


def _by_slice(dim: str, labels: Sequence[Label], wanted: slice) -> list[int]:
    numbers = [label for label in labels if isinstance(label, int)]
    bounds = (wanted.start, wanted.stop)
    if len(numbers) < len(labels) or wanted.step not in (None, 1) or any(isinstance(b, str) for b in bounds):
        raise InputError(f"Map.sel: {dim}", got=wanted, allowed="a slice of whole numbers without a step; or a list")
    start, stop = (numbers[max(b, -len(numbers))] if b is not None and b < 0 else b for b in bounds)
    low = min(numbers) if start is None else start
    high = max(numbers) + 1 if stop is None else stop
    return _some(dim, labels, [i for i, number in enumerate(numbers) if low <= number < high])


def _some(dim: str, labels: Sequence[Label], positions: list[int]) -> list[int]:
    if not positions:
        raise InputError(f"Map: nothing is left of {dim}", allowed=spell(labels))
    return positions


def by_position(sizes: Mapping[str, int], index: Any) -> dict[str, int | list[int]]:
    """Positions on each axis from a numpy-like index: whole numbers, slices, lists, masks and one `...`.

    Errors: InputError for a position that is not there, too many of them, and anything else.
    """
    items: list[Any] = list(index) if isinstance(index, tuple) else [index]  # pyright: ignore[reportUnknownArgumentType]
    gaps = [i for i, item in enumerate(items) if isinstance(item, EllipsisType)]
    if len(items) - len(gaps) > len(sizes) or len(gaps) > 1:
        raise InputError("Map[...]", got=repr(index), allowed=f"at most {len(sizes)} positions: {', '.join(sizes)}")
    at = gaps[0] if gaps else len(items)
    items[at : at + len(gaps)] = [slice(None)] * (len(sizes) - len(items) + len(gaps))
    positions: dict[str, int | list[int]] = {}
    for (dim, size), item in zip(sizes.items(), items, strict=True):
        try:
            found = np.arange(size)[item]
        except (IndexError, ValueError) as error:
            raise InputError(f"Map[...]: no such {dim}", got=repr(item), allowed=f"{-size} to {size - 1}") from error
        if found.ndim > 1:
            raise InputError(f"Map[...]: {dim}", got=repr(item), allowed="a position, a slice, a list of positions")
        positions[dim] = int(found) if found.ndim == 0 else _some(dim, range(size), found.tolist())
    return positions


def spell(labels: Sequence[Label]) -> str:
    """The labels in words: "0 to 11", or one by one."""
    if len(labels) > 4 and list(labels) == list(range(len(labels))):
        return f"0 to {len(labels) - 1}"
    return ", ".join(map(str, labels))


def in_words(selected: Mapping[str, Any]) -> str:
    """`meta["selected"]` for a reader: "layer 3, query 7 “fox”, key (4 of them)"."""
    parts = {
        dim: f"{dim} ({len(label)} of them)" if isinstance(label, list) else f"{dim} {label}"  # pyright: ignore[reportUnknownArgumentType]
        for dim, label in selected.items()
        if not dim.endswith("_token")
    }
    return ", ".join(
        f"{words} “{selected[f'{dim}_token']}”" if f"{dim}_token" in selected else words for dim, words in parts.items()
    )
