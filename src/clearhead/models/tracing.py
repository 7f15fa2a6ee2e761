"""From a recorded pass of a batch to proven Traces, one a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from clearhead.errors import ProofError, UnsupportedModel
from clearhead.models import proof as proofs
from clearhead.models.capture import Call, Recording, record, untouched
from clearhead.models.inputs import Batch, Encoded, collate
from clearhead.models.row_norms import squared_row_norms
from clearhead.trace import Capture, Layer, Part, Proof, Trace, Visible

if TYPE_CHECKING:
    from clearhead.models.model import Model

ProofKind = Literal["auto", "full"]
Masks = dict[tuple[int, bool, int, int], Visible]


@dataclass(frozen=True)
class Pass:
    """One recorded forward pass of a batch, and what its Traces share."""

    model: Model
    batch: Batch
    recording: Recording
    capture: Capture
    situation: str
    projections: list[proofs.Seen]
    masks: Masks


def trace_batch(
    model: Model, texts: Sequence[Encoded], capture: Capture, proof: ProofKind, proven: set[str]
) -> list[Trace]:
    """Trace a batch of texts in one forward pass. `proven`: the situations compared before; extended by this one.

    Errors: ProofError, UnsupportedModel.
    """
    side = "left" if model.tokenizer.padding_side == "left" else "right"
    batch = collate(texts, model.family, model.config, side, model.hf.device)
    recording = record(model.hf, model.family, batch.inputs, capture, model.heads)
    check_counts(recording, model)
    situation = situation_of(model, batch, texts, capture, side)
    # Weights that were changed since (their version counts writes) are another model.
    key = f"{situation}, weights {sum(int(p._version) for p in model.hf.parameters())}"  # pyright: ignore[reportPrivateUsage]
    # One text stands for its situation; the shortest has the most padding. With proof="full", every text.
    shortest = min(range(len(texts)), key=lambda k: batch.lengths[k])
    chosen = set(range(len(texts))) if proof == "full" else {shortest} if key not in proven else set[int]()
    projections = [proofs.seen(weight, bias) for weight, bias in model.output_projections()]
    ran = Pass(model, batch, recording, capture, situation, projections, {})
    traces = [one_trace(ran, row, text, compare=row in chosen) for row, text in enumerate(texts)]
    proven.add(key)
    return traces


def check_counts(recording: Recording, model: Model) -> None:
    """Errors: ProofError where attention, layers or output projections did not run once a layer, in order."""
    counts = {
        "attention": len(recording.calls),
        "the layers": len(recording.states) - 1,
        "the output projections": len(recording.outputs),
    }
    for what, count in counts.items():
        if count != model.layers:
            raise ProofError(
                f"the capture of {what} ran {count} times",
                allowed=f"{model.layers} times, once a layer",
                do="The model does not run as its family's row says; nothing is shown.",
            )
    for number, (ran, expected) in enumerate(zip(recording.layers, model.layer_modules(), strict=True)):
        if ran is not expected:
            raise ProofError(f"layer {number} ran another module than the family's row says")


def situation_of(model: Model, batch: Batch, texts: Sequence[Encoded], capture: Capture, side: str) -> str:
    """What the one comparison with the untouched model stands for, in words."""
    window = getattr(model.config, "sliding_window", None)
    words = [f"capture={capture}", model.dtype, f"{side} padding" if batch.padded else "no padding"]
    if any(text.tokens.pair is not None for text in texts):
        words.append("pair")
    if window and max(batch.lengths) > window:
        words.append("longer than its window")
    words.append(f"{model.hf.config._attn_implementation} attention")  # pyright: ignore[reportPrivateUsage]
    return ", ".join(words)


def one_trace(ran: Pass, row: int, text: Encoded, compare: bool) -> Trace:
    """The part of a recorded batch that belongs to one text, with its proof."""
    model, batch, precision = ran.model, ran.batch, ran.model.precision
    start, stop = batch.starts[row], batch.starts[row] + batch.lengths[row]

    padded = batch.padded

    def own(tensor: Tensor) -> Tensor:
        """This text's tokens of [batch, (head,) token, width]; a copy where the batch was padded."""
        return tensor[row][..., start:stop, :].clone() if padded else tensor[row]

    hidden = torch.stack([own(state) for state in ran.recording.states])
    outputs = [proofs.working(own(output)) for output in ran.recording.outputs]
    layers: list[Layer] = []
    for call in ran.recording.calls:
        visible = visible_keys(call, row, start, stop, ran.masks)
        query, key, value, head_output = (own(t) for t in (call.query, call.key, call.value, call.head_output))
        probabilities = None if call.probabilities is None else own(call.probabilities)[..., start:stop]
        layer = Layer(value, head_output, visible, query, key, probabilities)
        if probabilities is None:
            layer = replace(layer, norm_squared=squared_row_norms(query, key, visible, call.scaling))
        layers.append(layer)
    rebuilt = rebuilt_errors(ran, layers, outputs)
    proofs.check_finite(layers, hidden, rebuilt, precision)
    sums = (torch.stack([proofs.row_sums(layer) for layer in layers]) - 1).abs().flatten(1).amax(1).tolist()
    allowed = proofs.tolerance(precision, max(model.width, stop - start))
    proofs.verdict(rebuilt, allowed, "layer {}: what was captured does not rebuild its attention output")
    proofs.verdict(sums, allowed, "layer {}: the attention weights on visible keys do not sum to 1")
    if ran.capture == "outputs":
        layers = [without_probabilities(layer) for layer in layers]
    inputs = {name: tensor[row : row + 1, start:stop] for name, tensor in batch.inputs.items()}
    compared = compare_with_untouched(model, inputs, hidden, allowed) if compare else None
    part = Part(model.family.part, text.tokens, text.tokens, tuple(layers), hidden)
    return Trace(
        model=model,
        tokens=text.tokens,
        parts={part.name: part},
        inputs=inputs,
        proof=Proof(
            kind="rebuilt" if compared is None else "rebuilt and compared",
            precision=precision,
            tolerance=allowed,
            rebuilt=tuple(rebuilt),
            row_sum_error=tuple(sums),
            compared=compared,
            calls=len(layers),
            situation=ran.situation,
        ),
        capture=ran.capture,
        warnings=text.warnings,
    )


def without_probabilities(layer: Layer) -> Layer:
    """What `capture="outputs"` keeps; of probabilities that the family forms anyway, their row norms."""
    if layer.probabilities is None:
        return layer
    norms = proofs.working(layer.probabilities).square().sum(-1)
    return replace(layer, probabilities=None, norm_squared=norms)


def visible_keys(call: Call, row: int, start: int, stop: int, masks: Masks) -> Visible:
    """The keys that each query of one text may see, from the mask that the attention itself was given."""
    count = stop - start
    key = (id(call.mask), call.causal, row, count)  # layers share a few masks; the recording keeps them alive
    if key not in masks and call.mask is None:
        masks[key] = Visible((0,) * count, tuple(range(1, count + 1)) if call.causal else (count,) * count, count)
    elif key not in masks:
        assert call.mask is not None
        mask = call.mask[min(row, call.mask.shape[0] - 1), 0, start:stop, start:stop]
        seen = mask if mask.dtype == torch.bool else mask == 0
        first = seen.int().argmax(-1)
        counts = seen.sum(-1)
        last = seen.shape[-1] - seen.flip(-1).int().argmax(-1)
        if bool(((last - first) != counts).any()) or bool((counts == 0).any()):
            raise UnsupportedModel("an attention mask leaves holes between the keys that a query may see")
        masks[key] = Visible(tuple(first.tolist()), tuple(last.tolist()), count)
    return masks[key]


def rebuilt_errors(ran: Pass, layers: Sequence[Layer], outputs: Sequence[Tensor]) -> list[float]:
    """The relative error of each layer's attention output, rebuilt from what was captured of it."""
    differences = [
        proofs.seen_difference(layer, projection, own)
        for layer, projection, own in zip(layers, ran.projections, outputs, strict=True)
    ]
    norms = torch.stack([own.norm(dim=-1) for own in outputs])
    errors = proofs.relative(torch.stack(differences).norm(dim=1), norms)
    sampled = [
        0.0 if layer.probabilities is not None else proofs.sampled_rows_error(layer, call.scaling)
        for layer, call in zip(layers, ran.recording.calls, strict=True)
    ]
    return [max(pair) for pair in zip(errors, sampled, strict=True)]


def compare_with_untouched(
    model: Model, inputs: Mapping[str, Tensor], hidden: Tensor, allowed: float
) -> tuple[float, ...]:
    """The relative error of each depth against an untouched forward pass. Errors: ProofError beyond the tolerance."""
    states = untouched(model.hf, model.family, inputs)
    if len(states) != hidden.shape[0]:
        raise ProofError(
            "the untouched model ran another number of layers", got=len(states) - 1, allowed=str(model.layers)
        )
    errors = tuple(proofs.row_error(mine, own[0]) for mine, own in zip(hidden, states, strict=True))
    for depth, error in enumerate(errors):
        proofs.verdict(
            [error],
            1.5 * allowed * (depth + 1) ** 0.5,
            f"depth {depth}: the captured states differ from the untouched model's",
        )
    return errors
