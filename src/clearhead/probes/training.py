"""Training many probes together, epoch by epoch, so that all advance and a kill loses little.

A finished probe is a file of its own; those still learning are in one checkpoint. What an epoch does depends on the
task and its number alone, so that a run that was killed ends with the same numbers.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.maps.files import whole_file
from clearhead.probes.features import Features, Progress
from clearhead.probes.probe import (
    Probe,
    Recipe,
    Weights,
    Whitening,
    apply,
    distance_loss,
    dropped,
    glorot,
    load_with_header,
    nearest_loss,
    plain,
    whitening,
)
from clearhead.probes.rates import Pairs, pair, rate, recovered

CHECKPOINT_SECONDS = 20.0
"""Work between two checkpoints of the probes that still learn."""


@dataclass(frozen=True)
class Task:
    """One probe to train and test. `training`, `validation`, `test`: examples, disjoint."""

    depth: int
    recipe: Recipe
    training: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]
    offset: int = 0
    """Which input to recover: that of the token itself, or of one so many positions further."""
    shuffled: bool = False
    """Control: the inputs of each example are shuffled, so that there is nothing to learn."""

    def key(self, features: Features) -> str:
        """A name that no other task on other features has."""
        about = json.dumps([features.meta, asdict(self)], sort_keys=True)
        return (
            f"{self.recipe.kind}_{self.recipe.distance}_{self.depth}_{hashlib.sha256(about.encode()).hexdigest()[:12]}"
        )

    def pairs(self, features: Features, examples: Sequence[int]) -> Pairs:
        return pair(features, examples, self.offset, self.recipe.seed if self.shuffled else None)


@dataclass(frozen=True)
class Fit:
    """A trained probe and what it achieved."""

    probe: Probe
    train: float
    validation: tuple[float, ...]
    """Validation rate before training and after each epoch."""
    epoch: int
    """The epoch that was kept: the first with the best validation rate."""
    right: tuple[np.ndarray, ...]
    """For each test example, which of its tokens are recovered."""
    strict: tuple[np.ndarray, ...]
    """The same, tokens that share their vector with another position counted as wrong."""
    seconds: float
    """Of training and evaluation."""


class Learner:
    """One probe while it learns. `state` and `restore` carry everything that changes."""

    def __init__(self, features: Features, task: Task) -> None:
        begun = time.perf_counter()
        self.task, self.features, self.recipe = task, features, task.recipe
        self.states, self.targets = features.states(task.depth), features.targets
        self.tokens = task.pairs(features, task.training)
        self.example = torch.repeat_interleave(torch.tensor(features.offsets).diff())
        """[token]: the example that it is of."""
        self.rates: list[float] = []
        self.kept = 0
        self.white: Whitening | None = None
        self.weights: Weights = {}
        if self.recipe.kind != "naive":
            self.white = whitening(self.states, self.targets, self.tokens.rows, self.tokens.wanted)
            first = self.white.start
            if self.recipe.kind == "mlp":
                first = glorot(self.states.shape[1], self.recipe.hidden, self.random(0))
            self.weights = {name: tensor.clone().requires_grad_() for name, tensor in first.items()}
            self.optimiser = torch.optim.Adam(list(self.weights.values()), lr=self.recipe.rate)
        self.best = self.copy()
        self.seconds = 0.0
        self.judge()
        self.seconds = time.perf_counter() - begun

    def random(self, epoch: int) -> torch.Generator:
        """The random numbers of one epoch: of seed, depth and epoch alone."""
        seed = [self.recipe.seed, self.task.depth, epoch]
        return torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))

    def copy(self) -> Weights:
        return {name: tensor.detach().clone() for name, tensor in self.weights.items()}

    def probe(self, weights: Weights) -> Probe:
        return Probe(self.recipe.kind, {} if self.white is None else plain(weights, self.white))

    @property
    def done(self) -> bool:
        epochs = len(self.rates) - 1
        perfect = self.rates[self.kept] == 1
        late = epochs - self.kept >= self.recipe.patience or epochs >= self.recipe.epochs
        return self.recipe.kind == "naive" or perfect or late

    @property
    def share(self) -> float:
        """How far it has come, 0 to 1, were it to use all its epochs."""
        return 1.0 if self.done else (len(self.rates) - 1) / self.recipe.epochs

    def epoch(self) -> None:
        """One pass over the training tokens in random order, then the validation rate."""
        begun = time.perf_counter()
        random = self.random(len(self.rates))
        batches = self.batches(random)
        for number, batch in enumerate(batches):
            passed = (len(self.rates) - 1 + number / len(batches)) / self.recipe.epochs
            self.optimiser.param_groups[0]["lr"] = self.recipe.rate * (1 - passed)
            self.optimiser.zero_grad(set_to_none=True)
            self.loss(batch, random).backward()
            self.optimiser.step()
        self.judge()
        self.seconds += time.perf_counter() - begun

    def batches(self, random: torch.Generator) -> Sequence[Tensor]:
        """Positions among the training tokens: random tokens; for the loss "nearest", all tokens of random examples."""
        count, sizes = len(self.tokens.rows), self.tokens.sizes
        if self.recipe.loss == "distance":
            return torch.randperm(count, generator=random).split(self.recipe.batch)
        places = torch.arange(count).split(sizes)
        examples = torch.randperm(len(sizes), generator=random).split(max(1, self.recipe.batch * len(sizes) // count))
        return [torch.cat([places[example] for example in group.tolist()]) for group in examples]

    def loss(self, batch: Tensor, random: torch.Generator) -> Tensor:
        """The loss of these training tokens, in whitened coordinates."""
        white, recipe = self.white, self.recipe
        assert white is not None
        rows, wanted = self.tokens.rows[batch], self.tokens.wanted[batch]
        inputs = (self.states[rows] - white.shift) @ white.turn
        keep = dropped((len(batch), recipe.hidden), recipe.dropout, random) if recipe.kind == "mlp" else None
        predicted = apply(self.weights, inputs, keep)
        if recipe.loss == "distance":
            return distance_loss(predicted, self.targets[wanted] / white.scale, recipe.distance)
        example = self.example[rows]
        candidates = self.features.rows(example.unique().tolist())
        allowed = example[:, None] == self.example[candidates]
        own = torch.searchsorted(candidates, wanted)
        return nearest_loss(predicted, self.targets[candidates] / white.scale, own, allowed, recipe.distance)

    def judge(self) -> None:
        """The validation rate of the weights as they are; kept where it is the best so far."""
        current = self.copy()
        self.rates.append(rate(self.test(current, self.task.validation)[0]))
        if self.rates[-1] > self.rates[self.kept]:
            self.kept, self.best = len(self.rates) - 1, current

    def test(self, weights: Weights, examples: Sequence[int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        task = self.task
        return recovered(
            self.features, task.depth, self.probe(weights), task.pairs(self.features, examples), self.recipe.distance
        )

    def finish(self) -> Fit:
        """What the kept weights achieve."""
        begun = time.perf_counter()
        train = rate(self.test(self.best, self.task.training)[0])
        right, strict = self.test(self.best, self.task.test)
        seconds = self.seconds + time.perf_counter() - begun
        probe = self.probe(self.best)
        return Fit(probe, train, tuple(self.rates), self.kept, tuple(right), tuple(strict), seconds)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(tensors, numbers) that `restore` goes on from."""
        tensors = {f"weights.{name}": tensor.detach() for name, tensor in self.weights.items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        for name, tensor in self.weights.items():
            for moment, value in self.optimiser.state.get(tensor, {}).items():
                tensors[f"{moment}.{name}"] = value
        return tensors, {"rates": self.rates, "kept": self.kept, "seconds": self.seconds}

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        with torch.no_grad():
            for name, tensor in self.weights.items():
                tensor.copy_(tensors[f"weights.{name}"])
                moments = ("step", "exp_avg", "exp_avg_sq")
                if f"step.{name}" in tensors:
                    self.optimiser.state[tensor] = {m: tensors[f"{m}.{name}"].clone() for m in moments}
        self.best = {name: tensors[f"best.{name}"].clone() for name in self.weights}
        self.rates, self.kept, self.seconds = list(numbers["rates"]), numbers["kept"], numbers["seconds"]


def train(features: Features, tasks: Sequence[Task], folder: Path, progress: Progress) -> list[Fit]:
    """Train all tasks together, one epoch each in turn. What `folder` holds of them is not done again.

    Errors: InputError where the disk is full; what is finished stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    keys = [task.key(features) for task in tasks]
    paths = [folder / f"{key}.safetensors" for key in keys]
    checkpoint = folder / f"learning_{hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:12]}.safetensors"
    finished = {index: load_fit(path) for index, path in enumerate(paths) if path.is_file()}
    learners = {index: Learner(features, task) for index, task in enumerate(tasks) if index not in finished}
    if checkpoint.is_file():
        restore(learners, checkpoint)
    saved = time.perf_counter()
    while True:
        for index, learner in list(learners.items()):
            if learner.done:
                finished[index] = learner.finish()
                save_fit(paths[index], finished[index])
                del learners[index]
            else:
                learner.epoch()
            progress(len(finished) + sum(one.share for one in learners.values()), len(tasks))
        if not learners:
            checkpoint.unlink(missing_ok=True)
            return [finished[index] for index in range(len(tasks))]
        if time.perf_counter() - saved > CHECKPOINT_SECONDS:
            save_learners(checkpoint, learners)
            saved = time.perf_counter()


def save_learners(path: Path, learners: Mapping[int, Learner]) -> None:
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    numbers: dict[int, Any] = {}
    for index, learner in learners.items():
        own, numbers[index] = learner.state()
        tensors |= {f"{index}.{name}": tensor.contiguous() for name, tensor in own.items()}
    write(path, save(tensors, metadata={"numbers": json.dumps(numbers)}))


def restore(learners: Mapping[int, Learner], path: Path) -> None:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        numbers = json.loads(file.metadata()["numbers"])
        names = list(file.keys())
        for index, learner in learners.items():
            own = {name.partition(".")[2]: file.get_tensor(name) for name in names if name.startswith(f"{index}.")}
            if str(index) in numbers:
                learner.restore(own, numbers[str(index)])


def save_fit(path: Path, fit: Fit) -> None:
    """The probe as a file of its own; its header says what it achieved."""
    about = {
        "train": fit.train,
        "validation": fit.validation,
        "epoch": fit.epoch,
        "right": [one.tolist() for one in fit.right],
        "strict": [one.tolist() for one in fit.strict],
        "seconds": fit.seconds,
    }
    try:
        fit.probe.save(path, overwrite=True, about=about)
    except OSError as error:
        raise cannot_write(path, error) from error


def load_fit(path: Path) -> Fit:
    probe, about = load_with_header(path)
    right, strict = (tuple(np.array(one, dtype=bool) for one in about[name]) for name in ("right", "strict"))
    return Fit(probe, about["train"], tuple(about["validation"]), about["epoch"], right, strict, about["seconds"])


def write(path: Path, data: bytes) -> None:
    try:
        with whole_file(path, overwrite=True) as file:
            file.write(data)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> InputError:
    return InputError(
        f"probes: {str(path)!r} cannot be written", got=error.strerror or type(error).__name__,
        do="Make room and run it again: what is finished in that folder is not done again.",
    )  # fmt: skip
