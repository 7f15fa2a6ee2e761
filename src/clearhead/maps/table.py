"""Table: columns with their meaning and origin."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clearhead.errors import InputError
from clearhead.maps import files
from clearhead.maps.arrays import as_json, same

if TYPE_CHECKING:
    import pandas as pd

KINDS = {bool: "bool", int: "int64", float: "float64", str: "object"}
"""What a column may hold, and the numpy dtype that it is kept in."""
NULLABLE = {bool: "boolean", int: "Int64", float: "Float64", str: "string"}
"""The pandas dtype of a column with missing values."""


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Columns of equal length, each with its meaning and unit in `about`, and the origin in `meta`.

    A column holds whole numbers, numbers, text or true/false, kept as int64, float64, object or bool; None stands for
    a missing value (such a column is kept as object). Errors: InputError for NaN, mixed kinds, unequal lengths, a
    column without a meaning.
    """

    columns: Mapping[str, np.ndarray]
    meta: Mapping[str, Any] = field(kw_only=True)
    about: Mapping[str, str] = field(kw_only=True)

    def __post_init__(self) -> None:
        columns = {name: _column(name, values) for name, values in self.columns.items()}
        sizes = {name: len(values) for name, values in columns.items()}
        if len(set(sizes.values())) != 1:
            raise InputError("Table: columns", got=sizes, allowed="one or more, of equal length")
        if set(self.about) != set(columns):
            raise InputError("Table.about", got=list(self.about), allowed=f"a meaning for each of {list(columns)}")
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "about", {name: self.about[name] for name in columns})
        object.__setattr__(self, "meta", as_json("Table.meta", self.meta))

    def __getitem__(self, column: str) -> np.ndarray:
        if column not in self.columns:
            raise InputError("Table: no such column", got=repr(column), allowed=", ".join(self.columns))
        return self.columns[column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def equals(self, other: object) -> bool:
        """True where columns (in order), kinds, values, meanings and meta are the same."""
        return (
            isinstance(other, Table)
            and list(self.columns) == list(other.columns)
            and (self.about, self.meta) == (other.about, other.meta)
            and all(same(values, other.columns[name]) for name, values in self.columns.items())
        )

    def to_pandas(self) -> pd.DataFrame:
        """A data frame; columns with missing values in pandas' nullable dtypes. `attrs` holds meta and meanings."""
        import pandas as pd

        columns: dict[str, Any] = {name: _for_pandas(values) for name, values in self.columns.items()}
        frame = pd.DataFrame(columns)
        frame.attrs.update(self.meta, about=dict(self.about))
        return frame

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write to .parquet or .json (both come back equal), or .csv. The file appears whole or not at all.

        Errors: InputError for another suffix, an existing file (unless `overwrite`), a folder that is not there.
        """
        return files.write(path, self._record(), overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path) -> Table:
        """The Table that `save` wrote to .parquet or .json. Errors: InputError naming the file and what is wrong."""

        def build(about: Mapping[str, Any], arrays: Mapping[str, Any]) -> tuple[Table, files.Record]:
            table = Table({name: arrays[name] for name in about["about"]}, meta=about["meta"], about=about["about"])
            return table, table._record()

        return files.read(path, "table", build)

    def _record(self) -> files.Record:
        return files.Record("table", {"about": self.about, "meta": self.meta}, self.columns, lambda: self.columns)

    def __repr__(self) -> str:
        return f"{self._title()}\n{self.to_pandas().to_string(max_rows=12)}"

    def _repr_html_(self) -> str:
        rows = self.to_pandas().to_html(max_rows=24, border=0)
        meanings = "".join(f"<li><b>{html.escape(k)}</b>: {html.escape(v)}</li>" for k, v in self.about.items())
        about = f"<details><summary>what the columns mean</summary><ul>{meanings}</ul></details>"
        return f"<div><p>{html.escape(self._title())}</p>{rows}{about}</div>"

    def _title(self) -> str:
        origin = ", ".join(str(self.meta[key]) for key in ("method", "model") if key in self.meta)
        return f"Table of {len(self)} rows" + (f" ({origin})" if origin else "")


def _column(name: str, values: Any) -> np.ndarray:
    if isinstance(values, np.ndarray) and values.dtype in (np.int64, np.float64, np.bool_) and values.ndim == 1:
        if not np.isfinite(values).all():
            raise InputError(f"Table column {name!r}", got="NaN or infinity", allowed="finite numbers")
        array = values.copy()
        array.flags.writeable = False
        return array
    items: list[Any] = [value.item() if isinstance(value, np.generic) else value for value in values]
    kinds = {type(item) for item in items if item is not None}
    if kinds == {int, float}:
        items, kinds = [item if item is None else float(item) for item in items], {float}
    allowed = "one kind: whole numbers, numbers, text or true/false (None where missing)"
    if len(kinds) > 1 or not kinds <= set(KINDS) or (items and not kinds):
        got = ", ".join(sorted(kind.__name__ for kind in kinds)) or "only None"
        raise InputError(f"Table column {name!r}", got=got, allowed=allowed)
    if kinds == {float} and not all(item is None or np.isfinite(item) for item in items):
        raise InputError(f"Table column {name!r}", got="NaN or infinity", allowed=allowed)
    dtype = KINDS[kinds.pop()] if kinds and None not in items else "object"
    try:
        array = np.array(items, dtype=dtype)
    except OverflowError as error:
        raise InputError(f"Table column {name!r}", got="a whole number beyond 64 bits", allowed="int64") from error
    array.flags.writeable = False
    return array


def _for_pandas(values: np.ndarray) -> Any:
    import pandas as pd

    if values.dtype != object or None not in values.tolist():
        return values
    kind = next(type(value) for value in values.tolist() if value is not None)
    return pd.array(values.tolist(), dtype=NULLABLE[kind])
