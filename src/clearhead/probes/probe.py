"""Probes: maps g from a hidden state to a token vector, and how one is trained.

Training works in whitened coordinates: states are shifted and turned so that they are uncorrelated with variance 1, and
token vectors are scaled to a mean square of 1, so that one learning rate suits every model, depth and direction. What
comes out is an ordinary probe for ordinary states. `linear` starts from the closed-form ridge solution, `mlp` (one
hidden layer, GELU) from Glorot's initialisation; both are trained with Adam, its rate falling linearly to 0, on one of
two losses:

- "distance", as published: the distance between prediction and wanted vector, 1 - cos or squared Euclidean;
- "nearest": the cross-entropy of choosing the wanted vector among all vectors of the text, with probabilities that fall
  with the same distance. It trains what the rate measures, and recovers more in deep layers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.maps.files import whole_file

Kind = Literal["naive", "linear", "mlp"]
Distance = Literal["cosine", "l2"]
Loss = Literal["distance", "nearest"]
KINDS: tuple[Kind, ...] = ("naive", "linear", "mlp")
RIDGE = 1e-3
"""Added to the diagonal of the covariance of the states, relative to its mean."""
TEMPERATURE = 0.1
"""Of the loss "nearest", for distances in units of 1 - cos, or of half the mean squared difference of a component."""
USUAL = -1
"""For rate, batch and epochs: as in `SCHEDULES`."""
SCHEDULES: dict[str, dict[str, Any]] = {
    "ridge": {"rate": 3e-2, "batch": 512, "epochs": 6},
    "far": {"rate": 1e-2, "batch": 256, "epochs": 10},
}
"""How long and how fast: linear probes on the loss "distance" start at its neighbour, the ridge solution; all others
far away."""
ROWS = 8192
"""Rows read at a time where all are summed over."""

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Recipe:
    """How a probe is trained. `hidden` and `dropout` are the MLP's; `rate` is Adam's, in whitened coordinates."""

    kind: Kind = "linear"
    distance: Distance = "cosine"
    loss: Loss = "distance"
    hidden: int = 1000
    dropout: float = 0.0
    rate: float = USUAL
    """At the start; it falls linearly to 0 over all epochs."""
    batch: int = USUAL
    epochs: int = USUAL
    patience: int = 5
    """Epochs without a better validation rate before training stops."""
    seed: int = 0

    def __post_init__(self) -> None:
        start = "ridge" if (self.kind, self.loss) == ("linear", "distance") else "far"
        for name, value in SCHEDULES[start].items():
            if getattr(self, name) == USUAL:
                object.__setattr__(self, name, value)
        for name, allowed in (("kind", KINDS), ("distance", ("cosine", "l2")), ("loss", ("distance", "nearest"))):
            if getattr(self, name) not in allowed:
                what = "probe" if name == "kind" else name
                raise InputError(
                    f"probes: {what}", got=repr(getattr(self, name)), allowed=", ".join(map(repr, allowed))
                )
        if not 0 <= self.dropout < 1:
            raise InputError("probes: dropout", got=self.dropout, allowed="0 <= dropout < 1")
        for name in ("hidden", "batch", "epochs", "patience"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise InputError(f"probes: {name}", got=repr(getattr(self, name)), allowed="a whole number from 1")
        if not self.rate > 0:
            raise InputError("probes: rate", got=self.rate, allowed="above 0")
        if type(self.seed) is not int or not 0 <= self.seed < 2**31:
            raise InputError("probes: seed", got=repr(self.seed), allowed="a whole number from 0 to 2^31 - 1")


@dataclass(frozen=True)
class Probe:
    """g: states [token, width] -> predicted token vectors [token, width]. Weights in float32, by name."""

    kind: Kind
    weights: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor], repr=False)

    def __call__(self, states: Tensor) -> Tensor:
        return states if self.kind == "naive" else apply(self.weights, states)

    def save(self, path: str | Path, *, overwrite: bool = False, about: Mapping[str, Any] | None = None) -> Path:
        """Write to .safetensors. Errors: InputError where the file exists (unless `overwrite`)."""
        from safetensors.torch import save

        tensors = {name: tensor.contiguous() for name, tensor in self.weights.items()} or {"none": torch.zeros(0)}
        header = {"clearhead": json.dumps({"probe": self.kind, **(about or {})})}
        with whole_file(path, overwrite=overwrite) as file:
            file.write(save(tensors, metadata=header))
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Probe:
        """The probe that `save` wrote. Errors: InputError for a file that is none."""
        return load_with_header(path)[0]


def load_with_header(path: str | Path) -> tuple[Probe, dict[str, Any]]:
    """(probe, what was said about it). Errors: InputError for a file that holds none."""
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads(file.metadata()["clearhead"])
            weights = {name: file.get_tensor(name) for name in file.keys() if name != "none"}  # noqa: SIM118
            return Probe(header["probe"], weights), header
    except Exception as error:  # whatever a foreign file makes the library raise, this is no probe
        raise InputError(f"{str(path)!r} is no probe of clearhead", got=f"{type(error).__name__}: {error}") from error


def apply(weights: Mapping[str, Tensor], states: Tensor, keep: Tensor | None = None) -> Tensor:
    """The linear map, or the MLP where there is a second one; `keep` multiplies its hidden layer (dropout)."""
    first = torch.addmm(weights["bias"], states, weights["weight"])
    if "weight_out" not in weights:
        return first
    inner = torch.nn.functional.gelu(first)
    return torch.addmm(weights["bias_out"], inner if keep is None else inner * keep, weights["weight_out"])


@dataclass(frozen=True)
class Whitening:
    """Coordinates in which training works: z = (state - shift) @ turn, token vector / scale."""

    shift: Tensor
    turn: Tensor
    scale: float
    start: Weights
    """The ridge solution from z to the scaled token vector."""


def whitening(states: Tensor, targets: Tensor, rows: Tensor, wanted: Tensor) -> Whitening:
    """From the first and second moments of the training tokens, summed in float64.

    The covariance has `RIDGE` times its mean added on the diagonal; the linear start is the ridge solution for it:
    least squares of targets[wanted] on states[rows], centred.
    """
    count = len(rows)
    mean_in = sum(states[part].double().sum(0) for part in rows.split(ROWS)) / count
    mean_out = sum(targets[part].double().sum(0) for part in wanted.split(ROWS)) / count
    gram, cross, square = 0.0, 0.0, 0.0
    for part, goal in zip(rows.split(ROWS), wanted.split(ROWS), strict=True):
        centred, out = states[part].double() - mean_in, targets[goal].double()
        gram = gram + centred.T @ centred / count
        cross = cross + centred.T @ (out - mean_out) / count
        square = square + float(out.square().sum()) / count
    assert isinstance(gram, Tensor)
    assert isinstance(cross, Tensor)
    assert isinstance(mean_in, Tensor)
    assert isinstance(mean_out, Tensor)
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    values, vectors = torch.linalg.eigh(gram)
    turn = vectors / values.sqrt()
    scale = (square / targets.shape[1]) ** 0.5
    start = {"weight": (turn.T @ cross / scale).float(), "bias": (mean_out / scale).float()}
    return Whitening(mean_in.float(), turn.float(), scale, start)


def plain(weights: Mapping[str, Tensor], white: Whitening) -> Weights:
    """Weights for ordinary states and token vectors, from those in whitened coordinates."""
    outer = "weight_out" if "weight_out" in weights else "weight"
    bias = "bias_out" if "weight_out" in weights else "bias"
    turned = {name: tensor.detach().clone() for name, tensor in weights.items()}
    turned[outer] *= white.scale
    turned[bias] *= white.scale
    turned["bias"] -= white.shift @ white.turn @ turned["weight"]
    turned["weight"] = white.turn @ turned["weight"]
    return turned


def glorot(width: int, hidden: int, random: torch.Generator) -> Weights:
    """An untrained MLP (Glorot and Bengio 2010, uniform)."""

    def uniform(rows: int, columns: int) -> Tensor:
        return (2 * torch.rand(rows, columns, generator=random) - 1) * (6 / (rows + columns)) ** 0.5

    return {
        "weight": uniform(width, hidden),
        "bias": torch.zeros(hidden),
        "weight_out": uniform(hidden, width),
        "bias_out": torch.zeros(width),
    }


def distance_loss(predicted: Tensor, wanted: Tensor, distance: Distance) -> Tensor:
    """Mean over tokens of 1 - cos, or of the squared Euclidean distance."""
    if distance == "cosine":
        return (1 - torch.nn.functional.cosine_similarity(predicted, wanted, dim=-1)).mean()
    return (predicted - wanted).square().sum(-1).mean()


def nearest_loss(predicted: Tensor, candidates: Tensor, own: Tensor, allowed: Tensor, distance: Distance) -> Tensor:
    """Mean cross-entropy of choosing candidate own[token] among those allowed [token, candidate]."""
    if distance == "cosine":
        unit, others = (torch.nn.functional.normalize(vectors, dim=-1) for vectors in (predicted, candidates))
        logits = unit @ others.T
    else:
        inner = predicted @ candidates.T
        logits = inner - (predicted.square().sum(-1, keepdim=True) + candidates.square().sum(-1)) / 2
        logits = logits / predicted.shape[1]
    return torch.nn.functional.cross_entropy((logits / TEMPERATURE).masked_fill(~allowed, -torch.inf), own)


def dropped(shape: tuple[int, int], share: float, random: torch.Generator) -> Tensor | None:
    """A random mask that keeps the mean; None without dropout."""
    return None if not share else (torch.rand(shape, generator=random) >= share).float() / (1 - share)
