"""A hub id -> a local folder, answered quickly: from the cache, or after one short question, or not at all."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from clearhead.errors import LoadError

FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]
CONNECT_SECONDS = 3.0
DEADLINE_SECONDS = 4.5


def fetch(name: str, revision: str | None, allow_pickle: bool) -> tuple[Path, str]:
    """(folder, commit) of a hub id. An id that is unknown or cannot be reached is answered within 5 seconds.

    Errors: LoadError.
    """
    patterns = FILES + (["*.bin"] if allow_pickle else [])
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns, local_files_only=True))
        if (folder / "config.json").is_file() and (any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))):
            return folder, folder.name
    except LocalEntryNotFoundError:
        pass  # not in the cache: ask the hub
    ask(name, revision)
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns, ignore_patterns=["*/*"]))
    except (OSError, HfHubHTTPError) as error:
        raise LoadError(
            f"load: the download of {name} failed", got=str(error).split("\n")[0], do="Try again; it resumes."
        ) from error
    return folder, folder.name


def ask(name: str, revision: str | None) -> None:
    """One question to the hub: is there a configuration under this id? Errors: LoadError."""
    local = "a folder on this machine, a .gguf file, or a hub id once the hub can be reached"
    if constants.HF_HUB_OFFLINE:
        raise LoadError(
            f"load: {name!r} is not in the cache, and the hub is switched off (HF_HUB_OFFLINE)", allowed=local
        )
    answers: queue.Queue[Exception | None] = queue.Queue()

    def question() -> None:
        try:
            get_hf_file_metadata(hf_hub_url(name, "config.json", revision=revision), timeout=CONNECT_SECONDS)
            answers.put(None)
        except Exception as error:  # noqa: BLE001  # handed over to the waiting thread, which names it
            answers.put(error)

    threading.Thread(target=question, daemon=True).start()
    try:
        error = answers.get(timeout=DEADLINE_SECONDS)
    except queue.Empty:
        raise LoadError(f"load: {name!r} is not in the cache, and the hub does not answer", allowed=local) from None
    if error is None:
        return
    where = f" at revision {revision!r}" if revision else ""
    if isinstance(error, GatedRepoError):
        raise LoadError(f"load: {name!r} needs a login that accepts its terms", do="Run: hf auth login") from error
    if isinstance(error, RepositoryNotFoundError):
        raise LoadError(
            f"load: the hub knows no model {name!r}", do="Check the spelling; a private model needs: hf auth login"
        ) from error
    if isinstance(error, RevisionNotFoundError):
        raise LoadError(f"load: {name!r} has no revision {revision!r}") from error
    if isinstance(error, EntryNotFoundError):
        raise LoadError(f"load: {name!r}{where} has no config.json, so it is no transformers model") from error
    raise LoadError(
        f"load: {name!r} is not in the cache, and the hub cannot be reached", got=type(error).__name__, allowed=local
    ) from error
