"""Map: values with named axes, token labels, a unit and an origin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clearhead.errors import InputError, MissingExtra, NotDefined
from clearhead.maps import files
from clearhead.maps.arrays import as_json, finite, same
from clearhead.maps.choose import Label, Selector, by_label, by_position, in_words, spell
from clearhead.tokens import Tokens

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes

DIMS = ("layer", "head", "query", "key", "target", "bound")


@dataclass(frozen=True, eq=False, repr=False)
class Map:
    """Values with named axes, the tokens along them, a unit and an origin.

    `values` has one axis for each name in `dims`, out of layer, head, query, key, target, bound. `tokens` has an entry
    for "query" and for "key" where those are dims. `stderr` is the standard error of each value, where they are
    estimates. `coords` labels each axis: 0, 1, 2, ... unless given ("low", "high" for bound). `meta` says where the
    numbers come from; it is kept as JSON. Arrays are copied, and read-only.
    Errors: InputError for NaN or infinity, and for shapes, labels or a meta that do not fit.
    """

    values: np.ndarray
    dims: tuple[str, ...]
    tokens: Mapping[str, Tokens] = field(kw_only=True)
    unit: str = field(kw_only=True)
    meta: Mapping[str, Any] = field(kw_only=True)
    stderr: np.ndarray | None = field(default=None, kw_only=True)
    coords: Mapping[str, tuple[Label, ...]] = field(default_factory=dict[str, tuple[Label, ...]], kw_only=True)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "values", finite("Map.values", self.values))
        put(self, "dims", tuple(self.dims))
        put(self, "tokens", dict(self.tokens))
        put(self, "meta", as_json("Map.meta", self.meta))
        if self.stderr is not None:
            put(self, "stderr", finite("Map.stderr", self.stderr))
            if self.stderr.shape != self.values.shape or (self.stderr < 0).any():
                allowed = f"shape {self.values.shape}, nothing below 0"
                raise InputError(
                    "Map.stderr", got=f"shape {self.stderr.shape}, least {self.stderr.min()}", allowed=allowed
                )
        if (
            len(self.dims) != self.values.ndim
            or len(set(self.dims)) < len(self.dims)
            or not set(self.dims) <= set(DIMS)
        ):
            allowed = f"one name for each axis of shape {self.values.shape}, out of {', '.join(DIMS)}"
            raise InputError("Map.dims", got=self.dims, allowed=allowed)
        if not set(self.coords) <= set(self.dims):
            raise InputError("Map.coords: labels of", got=", ".join(self.coords), allowed=", ".join(self.dims))
        put(self, "coords", {dim: self._labels(dim, size) for dim, size in self.sizes.items()})
        lengths = {dim: len(tokens) for dim, tokens in self.tokens.items()}
        wanted = {dim: size for dim, size in self.sizes.items() if dim in ("query", "key")}
        if lengths != wanted:
            raise InputError("Map.tokens: tokens of each axis", got=lengths, allowed=str(wanted))

    def _labels(self, dim: str, size: int) -> tuple[Label, ...]:
        labels = tuple(self.coords.get(dim, ("low", "high") if dim == "bound" else range(size)))
        if len(labels) != size or len(set(labels)) < size or size == 0:
            allowed = f"{size} different labels" if size else "at least one"
            raise InputError(f"Map.coords: labels of {dim}", got=spell(labels), allowed=allowed)
        return labels

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each axis by name."""
        return dict(zip(self.dims, self.values.shape, strict=True))

    def sel(self, **wanted: Selector) -> Map:
        """The part with these labels: `m.sel(layer=3, head=[0, 5], query=slice(2, 9))`.

        One label drops its axis; a list, or a slice over labels (stop excluded), keeps it. A negative number counts
        from the end. What was chosen stands in `meta["selected"]`.
        Errors: InputError for an axis or a label that is not there, and where nothing is left.
        """
        unknown = [dim for dim in wanted if dim not in self.dims]
        if unknown:
            raise InputError("Map.sel: no such axis", got=", ".join(unknown), allowed=", ".join(self.dims))
        return self._take({dim: by_label(dim, self.coords[dim], label) for dim, label in wanted.items()})

    def __getitem__(self, index: Any) -> Map:
        """The part at these positions, axis by axis as in numpy: `m[3, 5]`, `m[-1, ..., :4]`, `m[0, [1, 2]]`.

        Always a Map; `float(m[0, 0, 1, 2])` is its number. Errors: InputError for a position that is not there.
        """
        return self._take(by_position(self.sizes, index))

    def _take(self, positions: Mapping[str, int | list[int]]) -> Map:
        values, stderr = self.values, self.stderr
        coords, tokens = dict(self.coords), dict(self.tokens)
        selected: dict[str, Any] = dict(self.meta.get("selected", {}))
        for dim, at in positions.items():
            if at == list(range(len(coords[dim]))):
                continue
            axis = list(coords).index(dim)  # coords keep the order of the axes that are left
            values = np.take(values, at, axis=axis)
            stderr = None if stderr is None else np.take(stderr, at, axis=axis)
            if isinstance(at, int):
                selected[dim] = coords.pop(dim)[at]
                if dim in tokens:
                    selected[f"{dim}_token"] = tokens.pop(dim).labels[at]
            else:
                coords[dim] = tuple(coords[dim][i] for i in at)
                selected[dim] = list(coords[dim])
                if dim in tokens:
                    tokens[dim] = tokens[dim].take(at)
        meta = {**self.meta, "selected": selected} if selected else self.meta
        return replace(self, values=values, dims=tuple(coords), coords=coords, tokens=tokens, stderr=stderr, meta=meta)

    def by_word(self) -> Map:
        """The same numbers over words (see `Tokens.by_word`): sums over sources (key), means over targets (query).

        Rows keep their sums, and the mean over queries, each entry weighing as many as its pieces, stays what it was. A
        piece that touches k words counts 1/k for each; template tokens and white space stay entries of their own.
        `stderr` becomes an upper bound: the errors of a word's pieces are added as if fully correlated.
        Errors: InputError without a token axis, or with a part of one; NotDefined for bounds (the highest weight of a
        word is not the sum of the highest weights of its pieces).
        """
        if not self.tokens:
            raise InputError("Map.by_word: no token axis", got=self.dims, allowed="a Map with query or key")
        if "bound" in self.dims or "bound" in self.meta.get("selected", {}):
            raise NotDefined("Map.by_word: the bounds of single pieces do not add up to the bounds of their word")
        part = [dim for dim in self.tokens if dim in self.meta.get("selected", {})]
        if part:
            raise InputError(f"Map.by_word: only a part of {part[0]} is left", do="Call by_word() before sel().")
        values, stderr, tokens = self.values.astype(np.float64), self.stderr, dict(self.tokens)
        for dim in self.tokens:
            tokens[dim], weights = self.tokens[dim].by_word()
            if dim == "query":
                weights = weights / weights.sum(axis=1)[:, None]
            values = _along(weights, values, self.dims.index(dim))
            stderr = None if stderr is None else _along(weights, stderr, self.dims.index(dim))
        if self.values.dtype == np.float32:
            values = values.astype(np.float32)
        meta = {**self.meta, "by_word": list(self.tokens)}
        if stderr is not None:
            meta["stderr"] = "upper bound: the errors of a word's pieces added as if fully correlated"
        coords = {dim: labels for dim, labels in self.coords.items() if dim not in self.tokens}
        return replace(self, values=values, tokens=tokens, coords=coords, stderr=stderr, meta=meta)

    def rollout(self, *, residual: float | None = None) -> Map:
        """The layers chained down to the input: entry l is A~_l A~_{l-1} ... A~_0, A~ = (1 - residual) M + residual I.

        M is the layer's map, the mean over heads where there are heads. `residual` is the share of the identity, 0 to
        1: by default that of the map's method (0.5 for attention, which leaves the residual connection out; 0 for
        ALTI, GlobEnc and value zeroing, which have it in them, so that it is counted once). Rows are not normalised.
        Errors: NotDefined, with the reason, for a map whose layers may not be chained; InputError for a residual out
        of [0, 1], or needed and not given.
        """
        from clearhead.maps.chain import rollout

        return rollout(self, residual)

    def equals(self, other: object) -> bool:
        """True where all is the same: values and their dtype, dims, labels, tokens, unit, meta, stderr."""
        return (
            isinstance(other, Map)
            and (self.dims, self.coords, self.tokens) == (other.dims, other.coords, other.tokens)
            and (self.unit, self.meta) == (other.unit, other.meta)
            and same(self.values, other.values)
            and same(self.stderr, other.stderr)
        )

    def columns(self) -> dict[str, np.ndarray]:
        """One row a number: labels by axis, `query_token` and `key_token`, `value`, and `stderr` if there is one."""
        shape = self.values.shape
        columns: dict[str, np.ndarray] = {}
        for axis, (dim, size) in enumerate(self.sizes.items()):
            along = [-1 if other == axis else 1 for other in range(len(shape))]
            index = np.broadcast_to(np.arange(size).reshape(along), shape).ravel()
            labels = self.coords[dim]
            columns[dim] = np.array(labels, dtype=object if any(isinstance(x, str) for x in labels) else int)[index]
            if dim in self.tokens:
                columns[f"{dim}_token"] = np.array(self.tokens[dim].labels, dtype=object)[index]
        columns["value"] = self.values.ravel()
        return columns if self.stderr is None else columns | {"stderr": self.stderr.ravel()}

    def to_pandas(self) -> pd.DataFrame:
        """A data frame of `columns()`; its `attrs` hold unit and meta."""
        import pandas as pd

        frame = pd.DataFrame(self.columns())
        frame.attrs.update(self.meta, unit=self.unit)
        return frame

    def to_xarray(self) -> xr.DataArray:
        """A DataArray with the same dims and labels; tokens as coordinates `query_token` and `key_token`, the standard
        error as coordinate `stderr`, unit as `attrs["units"]`, meta as JSON. Errors: MissingExtra without xarray."""
        try:
            import xarray as xr
        except ModuleNotFoundError as error:
            raise MissingExtra("Map.to_xarray needs xarray", do="pip install clearhead[xarray]") from error
        coords: dict[str, Any] = {dim: list(labels) for dim, labels in self.coords.items()}
        coords |= {f"{dim}_token": (dim, list(tokens.labels)) for dim, tokens in self.tokens.items()}
        if self.stderr is not None:
            coords["stderr"] = (self.dims, self.stderr)
        attrs = {"units": self.unit, "clearhead": json.dumps(self.meta)}
        return xr.DataArray(self.values, coords=coords, dims=self.dims, name=self.meta.get("method"), attrs=attrs)

    def plot(self, ax: Axes | None = None, *, layer: int | None = None, head: int | None = None) -> Axes:
        """Draw it with matplotlib: a heat map of two axes, or curves over one, with labels and the unit.

        `layer` and `head` choose; of a Map by layer over two more axes the last layer is drawn unless told. The title
        says what is shown. Errors: InputError where more than two axes are left.
        """
        from clearhead.maps.plot import plot

        return plot(self, ax, layer, head)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write to .safetensors, .parquet or .json (all come back equal), or .csv. Appears whole or not at all.

        Errors: InputError for another suffix, an existing file (unless `overwrite`), a folder that is not there.
        """
        return files.write(path, self._record(), overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path) -> Map:
        """The Map that `save` wrote. Errors: InputError naming the file and what is wrong with it."""

        def build(about: Mapping[str, Any], arrays: Mapping[str, Any]) -> tuple[Map, files.Record]:
            found: dict[str, np.ndarray] = {
                name: np.array(arrays[name], dtype=dtype).reshape(about["shape"])
                for name, dtype in about["dtypes"].items()
            }
            built = Map(
                found["value"],
                tuple(about["dims"]),
                tokens={dim: _tokens(fields) for dim, fields in about["tokens"].items()},
                unit=about["unit"],
                meta=about["meta"],
                stderr=found.get("stderr"),
                coords={dim: tuple(labels) for dim, labels in about["coords"].items()},
            )
            return built, built._record()

        return files.read(path, "map", build)

    def _record(self) -> files.Record:
        arrays = {"value": self.values} if self.stderr is None else {"value": self.values, "stderr": self.stderr}
        about = {
            "dims": self.dims,
            "shape": self.values.shape,
            "dtypes": {name: array.dtype.name for name, array in arrays.items()},
            "unit": self.unit,
            "coords": self.coords,
            "tokens": {dim: asdict(tokens) for dim, tokens in self.tokens.items()},
            "meta": self.meta,
        }
        return files.Record("map", about, arrays, self.columns)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype, copy=copy)

    def __float__(self) -> float:
        if self.dims:
            raise InputError("float(Map): axes are left", got=spell(self.dims), do="Choose one number with sel().")
        return float(self.values)

    def summary(self) -> dict[str, str]:
        """What it is, in words: axes, unit, range, origin, and what was selected."""
        lines = {
            "axes": " × ".join(f"{dim} {size}" for dim, size in self.sizes.items()) or "none (one number)",
            "unit": self.unit,
            "range": f"{self.values.min():.4g} to {self.values.max():.4g} ({self.values.dtype})",
            "method": str(self.meta.get("method", "")),
            "model": str(self.meta.get("model", "")),
            "selected": in_words(self.meta.get("selected", {})),
        }
        if self.stderr is not None:
            lines["standard error"] = f"at most {self.stderr.max():.2g}"
        return {name: line for name, line in lines.items() if line}

    def __repr__(self) -> str:
        return "\n".join(["Map", *(f"  {name + ':':<15} {line}" for name, line in self.summary().items())])

    def _repr_html_(self) -> str:
        from clearhead.maps.html import html

        return html(self)


def _along(weights: Any, values: np.ndarray, axis: int) -> np.ndarray:
    """`weights` [entry, piece] applied along one axis of `values`."""
    first = np.moveaxis(values, axis, 0)
    merged = weights @ first.reshape(first.shape[0], -1)
    return np.moveaxis(merged.reshape(-1, *first.shape[1:]), 0, axis)


def _tokens(fields: Mapping[str, Any]) -> Tokens:
    def tuples(value: Any) -> Any:
        return tuple(tuples(item) for item in value) if isinstance(value, list) else value

    return Tokens(**{name: tuples(value) for name, value in fields.items()})
