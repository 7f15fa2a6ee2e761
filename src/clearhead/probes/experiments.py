"""Experiments with probes on features that are there: between depths, on neighbours, with less data, with larger MLPs.

Each returns a Table and keeps its probes in `folder`, so that a run that was killed goes on there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from clearhead.errors import InputError
from clearhead.maps import Table
from clearhead.probes.features import Features, Progress, no_progress
from clearhead.probes.probe import Recipe
from clearhead.probes.rates import interval, pair, rate, recovered, split_examples
from clearhead.probes.token_identifiability import ABOUT, PAPER, Depths, TokenIdentifiability, check_depths
from clearhead.probes.training import Fit, Task, train

Shares = tuple[float, float, float]
SPLIT: Shares = (0.7, 0.15, 0.15)
RATES = {name: ABOUT[name] for name in ("train", "validation", "test", "test_low", "test_high", "epoch", "seconds")}
RATES["epoch"] = "epoch that was kept; 0 is the start"


def cross_layer(features: Features, trained: TokenIdentifiability, *, progress: Progress = no_progress) -> Table:
    """Test rates of each depth's probe on the states of every depth (Brunner et al. 2020, Figure 2b).

    Returns a row for each (trained, tested); the test examples of the first fold.
    """
    examples = trained.splits[0][2]
    pairs = pair(features, examples, shuffle=trained.meta["seed"] if trained.meta["shuffled"] else None)
    rows: list[tuple[int, int, float]] = []
    for depth in trained.depths:
        for tested in range(features.depths):
            right, _ = recovered(features, tested, trained.probe(depth), pairs, trained.meta["distance"])
            rows.append((depth, tested, rate(right)))
            progress(len(rows), len(trained.depths) * features.depths)
    about = {
        "trained": "depth that the probe was trained on",
        "tested": "depth that it was tested on",
        "test": ABOUT["test"],
    }
    columns = {name: np.array(values) for name, values in zip(about, zip(*rows, strict=True), strict=True)}
    return Table(columns, about=about, meta=trained.meta | {"method": "cross_layer"})


def neighbour_recovery(
    features: Features,
    recipe: Recipe,
    *,
    depths: Depths = "all",
    offsets: Sequence[int] = tuple(range(-5, 6)),
    split: Shares = SPLIT,
    folder: Path,
    progress: Progress = no_progress,
) -> Table:
    """Test rates where the probe is to give the input of the token `offset` positions further, for each offset.

    Tokens without such a neighbour are left out. Errors: as `token_identifiability`.
    """
    parts = split_examples(features.examples, split, recipe.seed)
    keys = [(depth, int(offset)) for offset in offsets for depth in check_depths(features, depths)]
    tasks = [Task(depth, recipe, *parts, offset=offset) for depth, offset in keys]
    columns = {"offset": [offset for _, offset in keys], "depth": [depth for depth, _ in keys]}
    about = {"offset": "position of the input to recover, relative to the state", "depth": ABOUT["depth"]}
    return table("neighbour_recovery", features, recipe, columns, about, train(features, tasks, folder, progress))


def data_size_curve(
    features: Features,
    recipe: Recipe,
    *,
    depth: int,
    shares: Sequence[float] = tuple(k / 10 for k in range(1, 11)),
    split: Shares = SPLIT,
    folder: Path,
    progress: Progress = no_progress,
) -> Table:
    """Rates at one depth with a share of the training examples; a smaller set is part of every larger one.

    Errors: InputError for a share out of (0, 1].
    """
    wrong = [share for share in shares if not 0 < share <= 1]
    if wrong or not shares:
        raise InputError("data_size_curve: shares", got=wrong or "none", allowed="0 < share <= 1")
    training, validation, test = split_examples(features.examples, split, recipe.seed)
    used = [training[: max(1, round(share * len(training)))] for share in shares]
    check_depths(features, [depth])
    tasks = [Task(depth, recipe, examples, validation, test) for examples in used]
    columns = {
        "share": [float(share) for share in shares],
        "examples": [len(examples) for examples in used],
        "tokens": [len(features.rows(examples)) for examples in used],
    }
    about = {
        "share": "share of the training examples that were used",
        "examples": "training examples",
        "tokens": "training tokens",
    }
    meta = {"depth": depth}
    return table("data_size_curve", features, recipe, columns, about, train(features, tasks, folder, progress), meta)


def size_ablation(
    features: Features,
    recipe: Recipe,
    *,
    depth: int,
    hidden: Sequence[int] = (250, 1000, 4000),
    dropout: Sequence[float] = (0.0, 0.3),
    split: Shares = SPLIT,
    folder: Path,
    progress: Progress = no_progress,
) -> Table:
    """Rates and training time of MLP probes at one depth by hidden size and dropout.

    Errors: InputError for a recipe that is not an MLP's.
    """
    if recipe.kind != "mlp":
        raise InputError("size_ablation: probe", got=repr(recipe.kind), allowed="'mlp'")
    check_depths(features, [depth])
    parts = split_examples(features.examples, split, recipe.seed)
    keys = [(size, share) for share in dropout for size in hidden]
    tasks = [Task(depth, replace(recipe, hidden=size, dropout=share), *parts) for size, share in keys]
    columns = {"hidden": [size for size, _ in keys], "dropout": [float(share) for _, share in keys]}
    about = {"hidden": "units of the hidden layer", "dropout": "share of hidden units dropped in training"}
    meta = {"depth": depth}
    return table("size_ablation", features, recipe, columns, about, train(features, tasks, folder, progress), meta)


def table(
    method: str,
    features: Features,
    recipe: Recipe,
    columns: Mapping[str, Sequence[Any]],
    about: Mapping[str, str],
    fits: Sequence[Fit],
    meta: Mapping[str, Any] | None = None,
) -> Table:
    """A row for each fit: `columns` say which, the rest what it achieved."""
    ends = [interval(fit.right, recipe.seed) for fit in fits]
    rates: dict[str, Any] = {
        "train": [fit.train for fit in fits],
        "validation": [fit.validation[fit.epoch] for fit in fits],
        "test": [rate(fit.right) for fit in fits],
        "test_low": [low for low, _ in ends],
        "test_high": [high for _, high in ends],
        "epoch": [fit.epoch for fit in fits],
        "seconds": [fit.seconds for fit in fits],
    }
    origin = {"method": method, "paper": PAPER, **features.meta, **asdict(recipe), **(meta or {})}
    return Table({k: np.array(v) for k, v in {**columns, **rates}.items()}, about={**about, **RATES}, meta=origin)
