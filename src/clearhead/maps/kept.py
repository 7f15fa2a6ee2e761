"""Results kept on disk piece by piece, so that long work that was killed goes on where it was."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clearhead.errors import InputError
from clearhead.maps.files import whole_file

Arrays = Mapping[str, np.ndarray]


def claim(folder: Path, source: Mapping[str, Any]) -> None:
    """Make the folder, marked with what its files come from.

    Errors: InputError where it cannot be made, or holds results of something else (naming what differs).
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder {str(folder)!r} cannot be made", got=error.strerror) from error
    mark = folder / "source.json"
    wanted = json.loads(json.dumps(source))
    if not mark.is_file():
        save_json(mark, wanted)
        return
    found = json.loads(mark.read_text())
    different = [name for name in {**wanted, **found} if found.get(name) != wanted.get(name)]
    if different:
        raise InputError(
            f"folder {str(folder)!r} holds results of something else", got=f"another {', '.join(different)}",
            do="Name another folder, or remove this one.",
        )  # fmt: skip


def kept(path: Path, compute: Callable[[], Arrays]) -> Arrays:
    """The arrays of this .npz file; computed and written, whole, where it is not there or was cut short."""
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        pass
    except (ValueError, EOFError, zipfile.BadZipFile):
        path.unlink()
    arrays = compute()
    buffer = io.BytesIO()
    np.savez(buffer, **dict[str, Any](arrays))
    with whole_file(path, overwrite=True) as file:
        file.write(buffer.getvalue())
    return arrays


def save_json(path: Path, value: Any) -> None:
    """Replace a JSON file as a whole."""
    with whole_file(path, overwrite=True) as file:
        file.write(json.dumps(value).encode())
