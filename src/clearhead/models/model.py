"""The Model: a loaded model with its tokenizer and family row, and the traces that it makes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from clearhead import linalg
from clearhead.errors import ClearheadError, InputError
from clearhead.models.capture import base_of, children
from clearhead.models.families import Family
from clearhead.models.goals import goal_of
from clearhead.models.inputs import Encoded, encode
from clearhead.models.outcome import outcome
from clearhead.models.rerun import from_embedding
from clearhead.models.structure import affine, block, head
from clearhead.models.tracing import ProofKind, trace_batch
from clearhead.target import Goal, Target
from clearhead.tokens import Tokens
from clearhead.trace import Capture, Embedding, Trace
from clearhead.versions import versions

if TYPE_CHECKING:
    from clearhead.linalg.block import Block, Head
    from clearhead.linalg.rank import Directions

Text = str | tuple[str, str]
BATCH_BYTES = 512 * 2**20
"""`trace_many`: the most memory that the attention maps of one batch may take."""


@dataclass(frozen=True, repr=False)
class Model:
    """A model that clearhead can trace. Made by `clearhead.load`; `hf` is the user's own model, never changed."""

    hf: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    family: Family
    name: str
    source: Path | None = None
    """Where its weights were read from; None for a model handed over in memory."""
    commit: str | None = None
    random: tuple[str, ...] = ()
    """Weights that the files lack and that are random: they play no part in a trace."""
    _proven: set[str] = field(default_factory=set[str])
    _lock: Any = field(default_factory=threading.RLock)
    _directions: dict[int, tuple[tuple[int, float], Directions]] = field(default_factory=dict[int, Any])

    @property
    def config(self) -> PretrainedConfig:
        return base_of(self.hf).config

    @property
    def dtype(self) -> str:
        """Of the weights: "float32", "float64", "float16" or "bfloat16"."""
        return str(self.hf.dtype).removeprefix("torch.")

    @property
    def precision(self) -> str:
        """The lowest precision on the path of a forward pass."""
        return "float32" if self.family.float32_inside and self.dtype == "float64" else self.dtype

    @property
    def heads(self) -> int:
        return int(self.config.num_attention_heads)

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values; fewer than `heads` where groups of heads share them."""
        return int(getattr(self.config, "num_key_value_heads", None) or self.heads)

    @property
    def width(self) -> int:
        """Of a hidden state."""
        return int(self.config.hidden_size)

    @property
    def head_width(self) -> int:
        """Of a query, key or value vector of one head."""
        return int(getattr(self.config, "head_dim", None) or self.width // self.heads)

    @property
    def layers(self) -> int:
        """Layers that a text passes (a shared layer counts once each time)."""
        return int(self.config.num_hidden_layers) * int(getattr(self.config, "inner_group_num", 1))

    @cached_property
    def revision(self) -> str:
        """The hub's commit, or `sha256:` of the weight files, or "in memory"."""
        if self.commit:
            return self.commit
        if self.source is None:
            return "in memory"
        files = [self.source] if self.source.is_file() else sorted(self.source.glob("*.safetensors"))
        files = files or sorted(self.source.glob("*.bin"))
        digest = hashlib.sha256()
        for path in files:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest() if len(files) > 1 else file.read())
        return f"sha256:{digest.hexdigest()}"

    @property
    def origin(self) -> Mapping[str, Any]:
        """What every result says of the model that it came from."""
        return {
            "model": self.name,
            "revision": self.revision,
            "family": self.family.name,
            "dtype": self.dtype,
            "versions": versions(),
        }

    def __repr__(self) -> str:
        heads = f"{self.heads} heads" + (f" on {self.kv_heads} key-value heads" if self.kv_heads != self.heads else "")
        return (
            f"Model({self.name}: {self.family.name}, {self.layers} layers, {heads} of width {self.head_width}, "
            f"hidden width {self.width}, {self.dtype})"
        )

    def trace(
        self, text: str, pair: str | None = None, *, capture: Capture = "full", proof: ProofKind = "auto"
    ) -> Trace:
        """One forward pass of `text` (with `pair`), captured and proven.

        `capture="outputs"` keeps no n x n matrix: values, head outputs and row norms only, under fused attention.
        `proof="full"` compares with an untouched forward pass even where this situation was compared before.

        Errors: InputError for a text that is empty, too long or not a string; ProofError where the capture does not
        rebuild the model's own output; UnsupportedModel where the family is not followed in this respect.
        """
        check_option("capture", capture, ("full", "outputs"))
        check_option("proof", proof, ("auto", "full"))
        return self._trace([self._encode(text, pair)], capture, proof)[0]

    @overload
    def trace_many(
        self, texts: Sequence[Text], *, capture: Capture = ..., proof: ProofKind = ..., errors: Literal["raise"] = ...
    ) -> list[Trace]: ...
    @overload
    def trace_many(
        self, texts: Sequence[Text], *, capture: Capture = ..., proof: ProofKind = ..., errors: Literal["return"]
    ) -> list[Trace | ClearheadError]: ...

    def trace_many(
        self,
        texts: Sequence[Text],
        *,
        capture: Capture = "full",
        proof: ProofKind = "auto",
        errors: Literal["raise", "return"] = "raise",
    ) -> list[Trace] | list[Trace | ClearheadError]:
        """Trace each text (or (text, pair)); each Trace equals its text traced alone, to the precision of the path.

        Batches texts of similar length within a memory budget. `errors="return"` puts the error of a text in its
        place instead of raising it, so that one bad text costs no other; "raise" raises the first by position, which
        its message names.
        """
        check_option("capture", capture, ("full", "outputs"))
        check_option("proof", proof, ("auto", "full"))
        check_option("errors", errors, ("raise", "return"))
        if isinstance(texts, str):
            raise InputError("trace_many: texts must be a list", got="one string", do="Use trace for one text.")
        encoded: dict[int, Encoded] = {}
        results: dict[int, Trace | ClearheadError] = {}
        for index, item in enumerate(texts):
            text, pair = item if isinstance(item, tuple) else (item, None)
            try:
                encoded[index] = self._encode(text, pair)
            except ClearheadError as error:
                results[index] = numbered(error, index, errors)
        for batch in self._batches(encoded, capture):
            try:
                traces = self._trace([encoded[index] for index in batch], capture, proof)
            except ClearheadError as error:
                traces = [
                    self._alone(encoded[index], index, capture, proof, errors, len(batch), error) for index in batch
                ]
            results.update(zip(batch, traces, strict=True))
        return [results[index] for index in range(len(texts))]  # pyright: ignore[reportReturnType]

    def _alone(
        self,
        text: Encoded,
        index: int,
        capture: Capture,
        proof: ProofKind,
        errors: str,
        batch: int,
        failed: ClearheadError,
    ) -> Trace | ClearheadError:
        """One text of a batch that failed: each alone shows which was at fault. The others say what happened."""
        if batch == 1:
            return numbered(failed, index, errors)
        try:
            trace = self._trace([text], capture, proof)[0]
        except ClearheadError as error:
            return numbered(error, index, errors)
        return replace(trace, warnings=(*trace.warnings, f"traced alone, since a batch with it failed: {failed}"))

    def forget_proofs(self) -> None:
        """Compare the next trace of every situation with the untouched model again, as if nothing was proven yet."""
        self._proven.clear()

    def tokens_of(self, text: str, pair: str | None = None) -> Tokens:
        """The tokens of a text (or pair), without running the model. Errors: as `trace` for the text."""
        return self._encode(text, pair).tokens

    def output_weight(self, layer: int, part: str | None = None) -> Tensor:
        """W_O of one layer as [head, value_width, width]."""
        return output_projection(self.layer_modules()[layer], self.family, self.heads)[0]

    def output_directions(self, layer: int, part: str | None = None) -> Directions:
        """What each head's W_O of one layer reads of a value (`linalg.read_directions`); decided once for a weight."""
        weight = self.output_weight(layer, part).detach()
        # A write changes the version, or, behind the back of autograd, the norm.
        seen = weight._version, float(torch.linalg.vector_norm(weight))  # pyright: ignore[reportPrivateUsage]
        if self._directions.get(layer, (None, ()))[0] != seen:
            self._directions[layer] = seen, linalg.read_directions(weight)
        return self._directions[layer][1]

    def output_bias(self, layer: int, part: str | None = None) -> Tensor | None:
        """b_O of one layer [width], or None."""
        return output_projection(self.layer_modules()[layer], self.family, self.heads)[1]

    def block(self, layer: int, part: str | None = None) -> Block:
        """The structure and weights of one block, as its family's row names them. Errors: UnsupportedModel."""
        return block(self.layer_modules()[layer], self.family, self.config, self.heads, self.kv_heads)

    def head(self, trace: Trace) -> Head:
        """From the last state to logits, with the model's own logits. Errors: NotDefined, UnsupportedModel."""
        return head(self.hf, self.family, trace.inputs, self.random, self._lock)

    def from_embedding(
        self, trace: Trace, embedding: Embedding = "output"
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """(x, f): the token vectors x [token, width] where they enter the model ("output": what the first layer
        reads; "sum": what the embedding normalisation reads) and f(x) = states [layer, token, width] after each
        layer, differentiable in forward and reverse mode."""
        check_option("embedding", embedding, ("output", "sum"))
        return from_embedding(self.hf, self.family, trace.inputs, embedding, self._lock)

    def goal(self, trace: Trace, target: Target = None, *, logit: bool = False) -> Goal:
        """A target made ready for the text of a trace (`clearhead.target`), with this model's own number for it."""
        return goal_of(self, trace, target, logit=logit)

    def outcome(
        self, trace: Trace, goal: Goal, depth: int, of: Literal["states", "attention"] = "states"
    ) -> Callable[[Tensor], Tensor]:
        """F(x) -> the goal's number [batch], differentiable in what a block reads, or in its attention."""
        check_option("of", of, ("states", "attention"))
        return outcome(self, trace, goal, depth, of)

    def layer_modules(self) -> list[nn.Module]:
        """The module of each layer; a shared one serves several (ALBERT: equal runs of passes through a group)."""
        groups = [list(listing.children()) for listing in children(base_of(self.hf), self.family.layers)]
        inner = len(groups[0])
        passes = self.layers // inner
        return [groups[layer // inner * len(groups) // passes][layer % inner] for layer in range(self.layers)]

    def output_projections(self) -> list[tuple[Tensor, Tensor | None]]:
        """(W_O [head, value_width, width], b_O [width] or None) of each layer.

        Errors: UnsupportedModel for a projection that is not a plain linear map.
        """
        return [output_projection(layer, self.family, self.heads) for layer in self.layer_modules()]

    def _encode(self, text: str, pair: str | None) -> Encoded:
        return encode(text, pair, self.tokenizer, self.config, self.family)

    def _batches(self, encoded: Mapping[int, Encoded], capture: Capture) -> list[list[int]]:
        """Positions of texts of similar length, as many a batch as the memory budget holds; longest first."""
        item = torch.finfo(self.hf.dtype).bits // 8
        batches: list[list[int]] = []
        for index in sorted(encoded, key=lambda i: (-len(encoded[i].ids), i)):
            longest = len(encoded[batches[-1][0]].ids) if batches else 0
            room = BATCH_BYTES // (item * self.layers * self.heads * longest * longest) if longest else 0
            alike = batches and len(encoded[index].ids) * 4 >= longest * 3
            # A fused pass of padded texts would form an n x n mask: there each text goes alone.
            if capture == "full" and alike and len(batches[-1]) < min(room, 64):
                batches[-1].append(index)
            else:
                batches.append([index])
        return batches

    def _trace(self, texts: Sequence[Encoded], capture: Capture, proof: ProofKind) -> list[Trace]:
        # Autocast around a trace would lower the precision of the pass and of its proof.
        with self._lock, torch.autocast(self.hf.device.type, enabled=False):
            return trace_batch(self, texts, capture, proof, self._proven)


def check_option(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Errors: InputError for a value that is not one of those allowed."""
    if value not in allowed:
        raise InputError(f"no such {name}", got=repr(value), allowed=", ".join(map(repr, allowed)))


def numbered(error: ClearheadError, index: int, errors: str) -> ClearheadError:
    """The error with the position of its text; raised where errors are to be raised."""
    error.args = (f"text {index}: {error.args[0]}",)
    if errors == "raise":
        raise error
    return error


def output_projection(layer: nn.Module, family: Family, heads: int) -> tuple[Tensor, Tensor | None]:
    """(W_O [head, value_width, width], b_O [width] or None) of a layer module.

    Errors: UnsupportedModel for a projection that is not a plain linear map (quantised, with adapters ...).
    """
    found = affine(layer, family.output)
    return found.weight.unflatten(0, (heads, -1)), found.bias
