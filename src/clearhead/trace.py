"""One captured forward pass, and what may be asked of the model behind it.

A `Trace` is what `Model.trace` returns: tokens, and for each part of the model (encoder, decoder, cross) the layers
and hidden states as the model itself computed them, with the proof of it. Methods read a Trace; those that must run the
model again see it through the `Runner` protocol below.

Counting: *layer* 0..L-1 is a block; *depth* 0..L a state between blocks (0 = what the first block reads, depth l+1 =
the state after block l, before any final norm).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Literal, Protocol

from clearhead import linalg
from clearhead.errors import InputError, NotDefined, ProofError
from clearhead.maps.html import facts_page, framed
from clearhead.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor

    from clearhead.linalg.block import Block, Head, Replay
    from clearhead.linalg.rank import Directions
    from clearhead.target import Goal, Target

Capture = Literal["full", "outputs"]
Embedding = Literal["output", "sum"]

SITES: dict[str, tuple[tuple[str, ...], str]] = {
    "query": (("head", "query", "width"), "query vectors as the attention reads them (after rotary positions)"),
    "key": (("kv_head", "key", "width"), "key vectors as the attention reads them, before groups are repeated"),
    "value": (("kv_head", "key", "value_width"), "value vectors, value bias included, before groups are repeated"),
    "probabilities": (("head", "query", "key"), "attention weights as multiplied with the values"),
    "head_output": (("head", "query", "value_width"), "weighted sums of values, before the output projection"),
    "norm_squared": (("head", "query"), "squared Euclidean norm of each row of attention weights"),
    "hidden": (("depth", "query", "width"), "states between blocks"),
}
"""The one vocabulary of what a capture records: name -> (dims, meaning)."""

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Machine epsilon of each precision."""


class Runner(Protocol):
    """The model behind a Trace, as methods may see it."""

    @property
    def origin(self) -> Mapping[str, Any]:
        """Name, revision, dtype and library versions, for the `meta` of a Map."""
        ...

    def output_weight(self, layer: int, part: str | None = None) -> Tensor:
        """W_O of one layer as [head, value_width, width]: the attention output is sum_h head_output_h @ W_O_h + b_O."""
        ...

    def output_directions(self, layer: int, part: str | None = None) -> Directions:
        """What each head's W_O of one layer reads of a value (`linalg.read_directions`)."""
        ...

    def output_bias(self, layer: int, part: str | None = None) -> Tensor | None:
        """b_O of one layer [width], or None where the projection has no bias."""
        ...

    def block(self, layer: int, part: str | None = None) -> Block:
        """The structure and weights of one block. Methods take it through `Trace.replay`, which proves it."""
        ...

    def head(self, trace: Trace) -> Head:
        """From the last state to logits, and the logits of the untouched model. Errors: NotDefined without a head."""
        ...

    def from_embedding(self, trace: Trace, embedding: Embedding) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """(x, f): the token vectors x [query, width] where they enter the model, and the differentiable function
        f(x) = hidden states [layer, query, width] after every block. f admits forward and reverse mode and `vmap`."""
        ...

    def goal(self, trace: Trace, target: Target, *, logit: bool = False) -> Goal:
        """A target made ready for the text of a trace, with the untouched model's own number as its `value`.

        A class or token is its probability, or its logit. Errors: InputError; NotDefined without such a head.
        """
        ...

    def outcome(
        self, trace: Trace, goal: Goal, depth: int, of: Literal["states", "attention"] = "states"
    ) -> Callable[[Tensor], Tensor]:
        """F(x) -> the goal's number [batch], differentiable: the model from block `depth` on (L: its end).

        x: what that block reads [batch, token, width], or of="attention", what stands in place of its own weights
        [batch, head, query, key]. Errors: NotDefined where the trace recorded no attention; ProofError where the
        trace's own x does not give `goal.value`.
        """
        ...

    def trace_many(self, texts: Sequence[str | tuple[str, str]]) -> list[Trace]:
        """As `Tracer.trace_many`."""
        ...


class Tracer(Protocol):
    """A model that traces texts, as studies of many texts see it."""

    @property
    def origin(self) -> Mapping[str, Any]:
        """Name, revision, dtype and library versions."""
        ...

    def trace_many(self, texts: Sequence[str | tuple[str, str]]) -> list[Trace]:
        """Each text traced and proven. Errors: as `Model.trace_many`, naming the text by its position."""
        ...

    def tokens_of(self, text: str, pair: str | None = None) -> Tokens:
        """The tokens of a text, without running the model. Errors: InputError, TextTooLong."""
        ...


@dataclass(frozen=True)
class Visible:
    """Which keys each query may see: the interval [start, stop) of key positions, one a query.

    Holds every mask followed here: bidirectional, causal, sliding window, prefix.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    keys: int

    @cached_property
    def everything(self) -> bool:
        """True where every query sees every key."""
        return not any(self.start) and all(stop == self.keys for stop in self.stop)

    def mask(self, device: object = "cpu", rows: Sequence[int] | None = None) -> Tensor:
        """[query, key] booleans, True where the query may see the key; of all queries or of some."""
        import torch

        key = torch.arange(self.keys, device=device)  # pyright: ignore[reportArgumentType, reportCallIssue]
        chosen = range(len(self.start)) if rows is None else rows
        start, stop = (
            torch.tensor([bound[row] for row in chosen], device=key.device)[:, None]
            for bound in (self.start, self.stop)
        )
        return (key >= start) & (key < stop)


@dataclass(frozen=True)
class Layer:
    """What one attention layer did, as captured. Shapes in `SITES`; tensors in the model's own dtype and device."""

    value: Tensor
    head_output: Tensor
    visible: Visible
    query: Tensor | None = None
    key: Tensor | None = None
    probabilities: Tensor | None = None
    norm_squared: Tensor | None = None


@dataclass(frozen=True)
class Part:
    """One stack of attention layers: "encoder", "decoder" or "cross"."""

    name: str
    queries: Tokens
    keys: Tokens
    layers: tuple[Layer, ...]
    hidden: Tensor
    """[depth, query, width]: depth 0 is what the first block reads, before any final norm at the end."""


@dataclass(frozen=True)
class Proof:
    """How exactly the capture agrees with the model's own output.

    `rebuilt`: per layer, || P V W_O + b_O - own || / || own ||, from the captured probabilities and values.
    `compared`: per depth, the same between the captured hidden states and those of an untouched forward pass in the
    model's own attention; None where this situation of the model was compared before (`situation` names it).
    """

    kind: Literal["rebuilt", "rebuilt and compared"]
    precision: str
    tolerance: float
    rebuilt: tuple[float, ...]
    row_sum_error: tuple[float, ...]
    compared: tuple[float, ...] | None
    calls: int
    situation: str

    @property
    def worst(self) -> float:
        """The largest relative error of any layer, rebuilt or compared."""
        return max(self.rebuilt + (self.compared or ()))


@dataclass(frozen=True)
class Trace:
    """One captured, proven forward pass of one text."""

    model: Runner
    tokens: Tokens
    parts: Mapping[str, Part]
    inputs: Mapping[str, Tensor]
    """What the model was called with for this text alone (batch of one, no padding)."""
    proof: Proof
    capture: Capture = "full"
    warnings: tuple[str, ...] = field(default=())

    def part(self, name: str | None = None) -> Part:
        """A part by name; without a name, the only one. Errors: InputError for a part that is not there."""
        if name is None:
            if len(self.parts) == 1:
                return next(iter(self.parts.values()))
            raise InputError("trace.part: this trace has several parts", got="no name", allowed=", ".join(self.parts))
        if name not in self.parts:
            raise InputError("trace.part: no such part", got=repr(name), allowed=", ".join(self.parts))
        return self.parts[name]

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self.part().layers

    @property
    def hidden(self) -> Tensor:
        """[depth, query, width]."""
        return self.part().hidden

    @property
    def precision(self) -> str:
        """The lowest precision on the path: "float64", "float32", "float16" or "bfloat16"."""
        return self.proof.precision

    @property
    def eps(self) -> float:
        """Machine epsilon of `precision`."""
        return EPS[self.proof.precision]

    def replay(self, layer: int) -> Replay:
        """What went through one block, rebuilt in float64 from its parts and the captured attention, and proven.

        Tolerance: that of one product in the proof of the trace, since the rebuilding in float64 adds no rounding of
        its own (measured over all families and precisions: at most a quarter of it).

        Errors: NotDefined without probabilities; ProofError where values or hidden states come out otherwise than the
        model's own; UnsupportedModel for a block that is not followed.
        """
        captured, hidden = self.layers[layer], self.hidden
        if captured.probabilities is None:
            raise NotDefined(
                "trace.replay needs the attention itself",
                got=f"a trace with capture={self.capture!r}",
                do='Trace the text with capture="full".',
            )
        ran = linalg.replay(self.model.block(layer), hidden[layer], captured.probabilities, captured.value)
        allowed = self.proof.tolerance
        for what, found, own in (
            ("its values", ran.projected, captured.value),
            ("its output", ran.output, hidden[layer + 1]),
        ):
            error = linalg.row_errors(found, own)
            if not error <= allowed:
                raise ProofError(
                    f"layer {layer}: the block rebuilt from its parts does not give {what}",
                    got=f"relative error {error:.2g}",
                    allowed=f"at most {allowed:.2g}",
                    do="A decomposition would be wrong, so none is shown; please report the model and its versions.",
                )
        return ran

    def summary(self) -> dict[str, str]:
        """What it is, in words: model, tokens, layers, proof, warnings."""
        part = next(iter(self.parts.values()))
        shapes = ", ".join(f"{name}: {len(one.layers)} layers" for name, one in self.parts.items())
        lines = {
            "model": str(self.model.origin.get("model", "")),
            "tokens": str(len(part.queries)),
            "parts": shapes,
            "proof": f"{self.proof.kind}; largest relative error {self.proof.worst:.1e}, "
            f"tolerance {self.proof.tolerance:.1e} ({self.precision})",
        }
        return lines | ({"warnings": "; ".join(self.warnings)} if self.warnings else {})

    def _repr_html_(self) -> str:
        facts = self.summary()
        tokens = " ".join(f"<bdi>{escape(label)}</bdi>" for label in self.tokens.labels[:400])
        more = "" if len(self.tokens) <= 400 else f" … {len(self.tokens) - 400} more"
        return framed(
            facts_page(facts, f"<p>{tokens}{more}</p>"), min(420, 22 * len(facts) + 90 + len(self.tokens.text) // 4)
        )
