"""From a recorded pass of a batch to proven Traces, one a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    compare = proof == "full" or key not in proven
    # One text stands for its situation; the shortest has the most padding. With proof="full", every text.
    chosen = range(len(texts)) if proof == "full" else [min(range(len(texts)), key=lambda k: batch.lengths[k])]
    masks: dict[int, Visible] = {}
    traces = [
        one_trace(model, text, batch, row, recording, capture, situation, compare and row in chosen, masks)
        for row, text in enumerate(texts)
    ]
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
                f"the capture of {what} ran {count} times", allowed=f"{model.layers} times, once a layer",
                do="The model does not run as its family's row says; nothing is shown.",
            )
    for number, layer in enumerate(recording.layers):
        if layer is not model.layer_module(number):
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


def one_trace(
    model: Model,
    text: Encoded,
    batch: Batch,
    row: int,
    recording: Recording,
    capture: Capture,
    situation: str,
    compare: bool,
    masks: dict[int, Visible],
) -> Trace:
    """The part of a recorded batch that belongs to one text, with its proof."""
    start, stop = batch.starts[row], batch.starts[row] + batch.lengths[row]

    def own(tensor: Tensor) -> Tensor:
        """This text's tokens of [batch, (head,) token, width]; a copy where the batch was padded."""
        cut = tensor[row][..., start:stop, :]
        return cut.clone() if batch.padded else cut

    hidden = torch.stack([own(state) for state in recording.states])
    layers = tuple(layer_of(call, own, start, stop, row, capture, masks) for call in recording.calls)
    precision, keys = model.precision, stop - start
    allowed = proofs.tolerance(precision, max(model.width, keys))
    for number, layer in enumerate(layers):
        proofs.check_finite(number, layer, hidden[number + 1], precision)
    weights = [None if c.probabilities is None else own(c.probabilities)[..., start:stop] for c in recording.calls]
    rebuilt = tuple(
        layer_error(model, number, layer, probabilities, recording.calls[number].scaling, own(recording.outputs[number]))
        for number, (layer, probabilities) in enumerate(zip(layers, weights, strict=True))
    )
    proofs.verdict(rebuilt, allowed, "layer {}: what was captured does not rebuild its attention output")
    sums = tuple(proofs.row_sum_error(p, k.visible) for p, k in zip(weights, layers, strict=True) if p is not None)
    proofs.verdict(sums, allowed, "layer {}: the attention weights on visible keys do not sum to 1")
    inputs = alone(batch.inputs, row, start, stop)
    compared = compare_with_untouched(model, inputs, hidden, allowed) if compare else None
    part = Part(model.family.part, text.tokens, text.tokens, layers, hidden)
    return Trace(
        model=model,
        tokens=text.tokens,
        parts={part.name: part},
        inputs=inputs,
        proof=Proof(
            kind="rebuilt" if compared is None else "rebuilt and compared",
            precision=precision,
            tolerance=allowed,
            rebuilt=rebuilt,
            row_sum_error=sums,
            compared=compared,
            calls=len(recording.calls),
            situation=situation,
        ),
        capture=capture,
        warnings=text.warnings,
    )


def alone(inputs: Mapping[str, Tensor], row: int, start: int, stop: int) -> dict[str, Tensor]:
    """The model's inputs for one text of a batch, without padding."""
    return {name: tensor[row : row + 1, start:stop] for name, tensor in inputs.items()}


def layer_of(
    call: Call, own: Callable[[Tensor], Tensor], start: int, stop: int, row: int, capture: Capture, masks: dict[int, Visible]
) -> Layer:
    """One layer's capture for one text. With `capture="outputs"` the probabilities, if there are any, leave their norms."""
    visible = visible_keys(call, row, start, stop, masks)
    query, key, value, head_output = (own(t) for t in (call.query, call.key, call.value, call.head_output))
    probabilities = None if call.probabilities is None else own(call.probabilities)[..., start:stop]
    if capture == "full":
        if probabilities is None:
            raise UnsupportedModel("the family's eager attention function gives no probabilities")
        return Layer(value, head_output, visible, query, key, probabilities)
    if probabilities is None:
        norms = squared_row_norms(query, key, visible, call.scaling)
    else:
        norms = proofs.working(probabilities).square().sum(-1)
    return Layer(value, head_output, visible, query, key, norm_squared=norms)


def visible_keys(call: Call, row: int, start: int, stop: int, masks: dict[int, Visible]) -> Visible:
    """The keys that each query of one text may see, from the mask that the attention itself was given."""
    count = stop - start
    if call.mask is None:
        return Visible((0,) * count, tuple(range(1, count + 1)) if call.causal else (count,) * count, count)
    key = id(call.mask) * 65536 + row
    if key not in masks:
        mask = call.mask[min(row, call.mask.shape[0] - 1), 0, start:stop, start:stop]
        seen = mask if mask.dtype == torch.bool else mask == 0
        first = seen.int().argmax(-1)
        counts = seen.sum(-1)
        last = seen.shape[-1] - seen.flip(-1).int().argmax(-1)
        if bool(((last - first) != counts).any()) or bool((counts == 0).any()):
            raise UnsupportedModel("an attention mask leaves holes between the keys that a query may see")
        masks[key] = Visible(tuple(first.tolist()), tuple(last.tolist()), count)
    return masks[key]


def layer_error(
    model: Model, number: int, layer: Layer, probabilities: Tensor | None, scaling: float, own_output: Tensor
) -> float:
    """The relative error of one layer's attention output, rebuilt from what was captured of it."""
    weight, bias = model.output_weight(number), model.output_bias(number)
    if probabilities is not None:
        return proofs.row_error(proofs.rebuilt_output(probabilities, layer.value, weight, bias), own_output)
    through = proofs.row_error(proofs.projected(layer.head_output, weight, bias), own_output)
    return max(through, proofs.sampled_rows_error(layer, scaling))


def compare_with_untouched(model: Model, inputs: Mapping[str, Tensor], hidden: Tensor, allowed: float) -> tuple[float, ...]:
    """The relative error of each depth against an untouched forward pass. Errors: ProofError beyond the tolerance."""
    states = untouched(model.hf, model.family, inputs)
    if len(states) != hidden.shape[0]:
        raise ProofError("the untouched model ran another number of layers", got=len(states) - 1, allowed=str(model.layers))
    errors = tuple(proofs.row_error(mine, own[0]) for mine, own in zip(hidden, states, strict=True))
    for depth, error in enumerate(errors):
        proofs.verdict(
            [error], 3 * allowed * (depth + 1) ** 0.5, f"depth {depth}: the captured states differ from the untouched model's"
        )
    return errors
