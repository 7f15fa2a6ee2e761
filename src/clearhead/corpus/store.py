"""The directory of a run: a manifest, a lock, and shards that appear whole or not at all.

    DIR/manifest.json                   what the run is of; finished counts once it is complete
    DIR/shards/00000012/shard.json      counts, errors, and size and sha256 of the files beside it
                        documents.parquet, rows.parquet, statistics.parquet, covariance.parquet [, tokens.parquet]
    DIR/errors.parquet, statistics.parquet, covariance.parquet      of the whole corpus, once it is complete
    DIR/aside/                          shards being written; nothing there counts

A shard is a folder: written under aside/, every file fsynced, the folder fsynced, then renamed. So what is finished is
what shards/ says, and nothing else is kept of it.
"""

from __future__ import annotations

import errno
import hashlib
import heapq
import json
import os
import secrets
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clearhead.errors import InputError
from clearhead.maps.kept import save_json

MANIFEST, SHARDS, ASIDE, LOCK, SHARD = "manifest.json", "shards", "aside", "lock", "shard.json"
FORMAT = 1
NEWEST = 64
"""Shards whose contents are checked when a run goes on: those a power cut can have caught. Of the others, the sizes."""


@contextmanager
def explained(folder: Path) -> Generator[None]:
    """Errors of writing, in one line. Errors: InputError."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise InputError(
            f"corpus: {str(folder)!r} cannot be written", got="no space left" if full else error.strerror or str(error),
            do="Finished shards are safe: make room, and run the same command again.",
        ) from error  # fmt: skip


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """The directory to this run alone; the lock goes with the process. Errors: InputError naming who holds it."""
    with explained(folder), (folder / LOCK).open("a+") as file:
        if not _lock(file.fileno()):
            file.seek(0)
            raise InputError(
                f"corpus: another run is writing to {str(folder)!r}", got=f"a lock of process {file.read().strip()}",
                do="Wait for it, or stop it.",
            )  # fmt: skip
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _lock(handle: int) -> bool:
    """An exclusive lock of the operating system, without waiting."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def check_ours(folder: Path) -> None:
    """Errors: InputError for a directory that is a file, or holds anything that is not ours."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"corpus: output {str(folder)!r} is a file", allowed="a directory")
    if not folder.is_dir() or (folder / MANIFEST).is_file():
        return
    strangers = sorted(path.name for path in folder.iterdir() if path.name not in (SHARDS, ASIDE, LOCK))
    strangers = [name for name in strangers if not name.startswith(f".{MANIFEST}.")]  # a manifest that was cut short
    if strangers:
        raise InputError(
            f"corpus: output {str(folder)!r} is not a corpus directory", got=f"it holds {strangers[0]!r}",
            do="Name a new directory.",
        )  # fmt: skip


def prepare(folder: Path) -> None:
    """Make the directory. Errors: InputError where it cannot be made, or is not ours."""
    check_ours(folder)
    with explained(folder):
        for name in (SHARDS, ASIDE):
            (folder / name).mkdir(parents=True, exist_ok=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Errors: InputError where the folder is not a corpus directory."""
    try:
        found = json.loads((folder / MANIFEST).read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(f"{str(folder)!r} is not a corpus directory", got=f"no {MANIFEST} there") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{str(folder / MANIFEST)!r} cannot be read", got=error) from error
    if found.get("format") != FORMAT:
        raise InputError(f"{str(folder)!r}: format of the directory", got=found.get("format"), allowed=str(FORMAT))
    return found


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    with explained(folder):
        save_json(folder / MANIFEST, {"format": FORMAT, **manifest})
        sync(folder)


def claim(folder: Path, source: Mapping[str, Any]) -> None:
    """Mark the directory with what it is of. Errors: InputError naming what differs from what is there."""
    source = json.loads(json.dumps(source))
    if not (folder / MANIFEST).is_file():
        write_manifest(folder, {"source": source, "complete": False})
        return
    found = read_manifest(folder)["source"]
    different = sorted(differences(found, source))
    if different:
        raise InputError(
            f"corpus: {str(folder)!r} holds a run of something else", got="; ".join(different),
            do="Name another directory, or run as before.",
        )  # fmt: skip


def differences(there: Any, asked: Any, path: str = "") -> Iterator[str]:
    """ "granularity: there 'maps', asked 'top'", for every value that differs."""
    if isinstance(there, dict) and isinstance(asked, dict):
        for name in {**there, **asked}:
            yield from differences(there.get(name), asked.get(name), f"{path}.{name}" if path else str(name))
    elif there != asked:
        yield f"{path}: there {there!r}, asked {asked!r}"


def shard_folder(folder: Path, number: int) -> Path:
    return folder / SHARDS / f"{number:08d}"


def read_shard(path: Path, *, contents: bool = False) -> dict[str, Any] | None:
    """shard.json of a shard; None where it is not there or not whole: a size, or with `contents` a sha256, differs."""
    try:
        found = json.loads((path / SHARD).read_text("utf-8"))
        for name, file in found["files"].items():
            if (path / name).stat().st_size != file["bytes"]:
                return None
            if contents and sha256(path / name) != file["sha256"]:
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found


def drop_broken(folder: Path) -> int:
    """Remove what a power cut has left of the newest shards, and what was being written; how many shards that were."""
    with explained(folder):
        shutil.rmtree(folder / ASIDE)
        (folder / ASIDE).mkdir()
        with os.scandir(folder / SHARDS) as entries:
            newest = heapq.nlargest(NEWEST, entries, key=lambda entry: entry.stat().st_mtime_ns)
        broken = [Path(entry.path) for entry in newest if read_shard(Path(entry.path), contents=True) is None]
        for path in broken:
            discard(folder, path)
    return len(broken)


def discard(folder: Path, path: Path) -> None:
    """Take a shard that is not whole out of the way, at once, then delete it."""
    gone = folder / ASIDE / f"{path.name}.{secrets.token_hex(4)}.gone"
    path.rename(gone)
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()


def write_shard(folder: Path, number: int, fill: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Store a shard: `fill(path)` writes its files and returns its counts. Returns what shard.json says.

    Where another worker has stored the same shard meanwhile, that one stays: both are the same. Errors: InputError
    where there is no room.
    """
    final = shard_folder(folder, number)
    aside = folder / ASIDE / f"{number:08d}.{secrets.token_hex(4)}"
    with explained(folder):
        aside.mkdir()
        try:
            counts = fill(aside)
            about = {**counts, "files": {path.name: synced(path) for path in sorted(aside.iterdir())}}
            mark = aside / SHARD
            mark.write_text(json.dumps(about), "utf-8")
            sync(mark)
            sync(aside)
            try:
                aside.rename(final)
            except OSError:
                there = read_shard(final, contents=True)
                if there is not None:
                    return there
                if final.exists():
                    discard(folder, final)
                aside.rename(final)
            sync(final.parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return about


def synced(path: Path) -> dict[str, Any]:
    """Bring a file to the disk; its size and sha256."""
    sync(path)
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def sync(path: Path) -> None:
    """fsync a file, or (where the system can) a folder, so that a rename in it lasts."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def all_shards(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """(folder, shard.json) of every whole shard, in order."""
    for path in sorted((folder / SHARDS).iterdir()):
        found = read_shard(path)
        if found is not None:
            yield path, found
