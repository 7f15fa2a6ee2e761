"""The one worker function: documents of a shard in, files of the shard out. Every engine runs it.

It is a pure function of the shard, the model and the settings: the same files come out wherever it runs. Only where
memory forced a smaller batch may numbers differ, within the precision of the pass; the shard then says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearhead.corpus import store
from clearhead.corpus.documents import Document, fingerprint
from clearhead.corpus.rows import Writer
from clearhead.corpus.settings import Settings, Shard
from clearhead.corpus.summaries import summaries
from clearhead.corpus.sums import Sums
from clearhead.errors import ClearheadError
from clearhead.maps import Map
from clearhead.methods.registry import find
from clearhead.trace import Trace

if TYPE_CHECKING:
    from clearhead.models.model import Model

Batch = Sequence[Document]


@dataclass
class Done:
    """What is counted while a shard is worked on."""

    tokens: int = 0
    halved: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    lengths: dict[int, int] = field(default_factory=dict[int, int])

    def failed(self, document: Document, error: BaseException | str, method: str | None = None) -> None:
        reason = error if isinstance(error, str) else " ".join(str(error).split()) or type(error).__name__
        kind = "Unreadable" if isinstance(error, str) else type(error).__name__
        self.errors.append(
            {"document": document.number, "place": document.place, "method": method, "kind": kind, "reason": reason}
        )


def work(shard: Shard, model: Model, settings: Settings, folder: Path) -> dict[str, Any]:
    """Compute a shard and store it in `folder`; what its shard.json says. Errors: InputError where there is no room."""
    return store.write_shard(folder, shard.number, lambda path: fill(shard, model, settings, path))


def fill(shard: Shard, model: Model, settings: Settings, path: Path) -> dict[str, Any]:
    """Write the files of a shard into `path`; its counts."""
    model.forget_proofs()  # so that which text is compared with the untouched model does not depend on shards before
    done, sums = Done(), Sums()
    with Writer(path, settings) as writer:
        usable = measured(shard.documents, model, done)
        for batch in batches(usable, done.lengths, settings.batch_tokens):
            run_batch(
                batch,
                model,
                settings,
                done,
                lambda document, trace: keep(document, trace, settings, writer, sums, done),
            )
        writer.documents(shard.documents, done)
        writer.sums(sums)
    failed = {error["document"] for error in done.errors}
    return {
        "shard": shard.number,
        "first": shard.documents[0].number,
        "documents": len(shard.documents),
        "failed": len(failed),
        "tokens": done.tokens,
        "characters": sum(len(one.text) + len(one.pair or "") for one in shard.documents),
        "halved": done.halved,
        "input": fingerprint(shard.documents),
        "errors": sorted(done.errors, key=lambda error: (error["document"], error["method"] or "")),
    }


def measured(documents: Batch, model: Model, done: Done) -> list[Document]:
    """The documents that the model can read, their lengths noted; the others become errors."""
    usable: list[Document] = []
    for document in documents:
        if document.problem:
            done.failed(document, document.problem)
            continue
        try:
            done.lengths[document.number] = len(model.tokens_of(document.text, document.pair))
        except Exception as error:  # noqa: BLE001 whatever a tokenizer raises on a text: the others go on
            done.failed(document, error)
        else:
            usable.append(document)
    return usable


def batches(documents: Batch, lengths: Mapping[int, int], most: int) -> list[list[Document]]:
    """Longest first, each of at most `most` tokens counted with their padding (one document at least)."""
    found: list[list[Document]] = []
    for document in sorted(documents, key=lambda one: (-lengths[one.number], one.number)):
        if found and (len(found[-1]) + 1) * lengths[found[-1][0].number] <= most:
            found[-1].append(document)
        else:
            found.append([document])
    return found


def run_batch(
    batch: Batch, model: Model, settings: Settings, done: Done, keep: Callable[[Document, Trace], None]
) -> None:
    """Trace a batch and keep each result. Out of memory: in halves. Where it fails: one by one."""
    try:
        texts = [one.text if one.pair is None else (one.text, one.pair) for one in batch]
        traces = model.trace_many(texts, errors="return")
    except Exception as error:  # noqa: BLE001 a model may raise anything; the documents that are not at fault go on
        if len(batch) == 1:
            done.failed(batch[0], error)
            return
        half = len(batch) // 2 if out_of_memory(error) else 1
        done.halved += out_of_memory(error)
        for start in range(0, len(batch), half):
            run_batch(batch[start : start + half], model, settings, done, keep)
        return
    for document, trace in zip(batch, traces, strict=True):
        if isinstance(trace, ClearheadError):
            done.failed(document, plain(trace))
        else:
            keep(document, trace)


def plain(error: ClearheadError) -> ClearheadError:
    """The error without "text 3: ", its position in a batch, which says nothing of the document."""
    error.args = (str(error.args[0]).partition(": ")[2] if str(error.args[0]).startswith("text ") else error.args[0],)
    return error


def out_of_memory(error: BaseException) -> bool:
    """Whether memory was short, on an accelerator or on the machine."""
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    words = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in words or "can't allocate memory" in words)


def keep(document: Document, trace: Trace, settings: Settings, writer: Writer, sums: Sums, done: Done) -> None:
    """Apply every method to a trace; a method that fails on it costs no other."""
    done.tokens += len(trace.tokens)
    writer.tokens(document, trace)
    for asked in settings.methods:
        try:
            result = find(asked.name).function(trace, **asked.options_of(document.number, settings.seed))
            found = summaries(trace, result)
        except Exception as error:  # noqa: BLE001 as above
            done.failed(document, error, asked.label)
            continue
        sums.add(asked.label, found, len(trace.tokens))
        if isinstance(result, Map):
            writer.map(document, asked.label, result)
        if settings.granularity in ("summary", "statistics") or not isinstance(result, Map):
            writer.summaries(document, asked.label, found)
