"""Token identifiability: can the input token be recovered from a hidden state, by depth."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from clearhead.errors import InputError
from clearhead.maps import Table
from clearhead.probes.bar import progress_bar
from clearhead.probes.features import Features, Progress, Text, no_progress, write_features
from clearhead.probes.probe import USUAL, Distance, Kind, Loss, Probe, Recipe
from clearhead.probes.rates import Split, fold_examples, interval, split_examples
from clearhead.probes.training import Fit, Task, train
from clearhead.trace import Embedding, Tracer

PAPER = "Brunner et al. 2020, On Identifiability in Transformers (arXiv 1908.04211), section 4"
ABOUT = {
    "depth": "state between blocks: 0 before the first, l + 1 after block l",
    "train": "share of the training tokens that are recovered",
    "validation": "share of the validation tokens that are recovered (it chose the epoch)",
    "test": "share of the test tokens that are recovered",
    "test_low": "lower end of the 95 % bootstrap interval of test, drawn by example",
    "test_high": "upper end of it",
    "test_strict": "test, with tokens that share their vector with another position counted as wrong",
    "epoch": "epoch that was kept (mean over folds); 0 is the start (naive: the state itself, linear: ridge)",
    "seconds": "time of training and evaluation, s",
}
Depths = Literal["all"] | Sequence[int]


@dataclass(frozen=True)
class TokenIdentifiability:
    """Rates [depth] for the depths asked, with the probes. With folds, `test` is over all tokens, each tested once."""

    depths: tuple[int, ...]
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    interval: np.ndarray
    """[depth, 2]: 95 % of the test rate, by bootstrap over examples."""
    strict: np.ndarray
    """Test rate, with tokens that share their vector with another position counted as wrong."""
    epochs: np.ndarray
    seconds: np.ndarray
    by_class: dict[str, np.ndarray]
    """Test rate [depth] by token class; a class without a test token is left out."""
    class_tokens: dict[str, int]
    """Test tokens of each class."""
    tokens: int
    examples: int
    skipped: tuple[int, ...]
    """Positions of the texts that were longer than the model's limit (`long="skip"`)."""
    meta: dict[str, Any] = field(repr=False)
    splits: tuple[Split, ...] = field(repr=False)
    """(training, validation, test) examples of each fold; one without folds."""
    probes: tuple[tuple[Probe, ...], ...] = field(repr=False)
    """[fold][depth]."""

    def probe(self, depth: int, fold: int = 0) -> Probe:
        """The probe of a depth. Errors: InputError for a depth or fold that was not asked."""
        if depth not in self.depths:
            raise InputError("token_identifiability: no probe of this depth", got=depth, allowed=str(self.depths))
        if not 0 <= fold < len(self.probes):
            raise InputError("token_identifiability: no such fold", got=fold, allowed=f"0 to {len(self.probes) - 1}")
        return self.probes[fold][self.depths.index(depth)]

    def to_table(self) -> Table:
        """The rates, one row a depth."""
        columns = {
            "depth": np.array(self.depths), "train": self.train, "validation": self.validation, "test": self.test,
            "test_low": self.interval[:, 0], "test_high": self.interval[:, 1], "test_strict": self.strict,
            "epoch": self.epochs, "seconds": self.seconds,
        }  # fmt: skip
        return Table(columns, about=ABOUT, meta=self.meta)


def token_identifiability(
    model: Tracer,
    texts: Sequence[Text],
    *,
    probe: Kind = "naive",
    distance: Distance = "cosine",
    loss: Loss = "distance",
    depths: Depths = "all",
    embedding: Embedding = "output",
    split: tuple[float, float, float] = (0.7, 0.15, 0.15),
    folds: int | None = None,
    seed: int = 0,
    hidden: int = 1000,
    dropout: float = 0.0,
    epochs: int | None = None,
    patience: int = 5,
    shuffled: bool = False,
    long: Literal["error", "skip"] = "error",
    parts_of_speech: Sequence[Sequence[str]] | None = None,
    folder: str | Path | None = None,
) -> TokenIdentifiability:
    """How often the input token is recovered from its hidden state by a trained probe, by depth.

    Brunner et al. 2020 (arXiv 1908.04211), section 4: a map g_l from state to token vector is trained for each depth,
    and a token is recovered where g_l(state) is nearest to its own vector among the vectors of the same text. `probe`:
    "naive" (the state itself), "linear" or "mlp" (`hidden` units, `dropout`); `distance`: "cosine" or "l2", of loss and
    search alike; `loss`: "distance", the published one, or "nearest", which trains the choice among the vectors of the
    text, better in deep layers (`clearhead.probes.probe` says how). `texts`: strings, or pairs as tuples. `embedding`:
    the vectors as the first block reads them ("output") or as the embedding normalisation does ("sum").

    Examples, not tokens, are split into training, validation (which chooses the epoch) and test; with `folds=k` each is
    tested once. Candidates are kept apart by position; identical ones (models without absolute positions) are one, and
    `strict` counts none of those. `parts_of_speech`: a tag for each white-space word of each text, for rates by class.
    `shuffled`: control with the inputs of each example in random order, where 1 / n is right by chance. `epochs`: at
    most so many; unless given, 6 for linear probes on the loss "distance" and 10 for all others.

    `folder` keeps features and probes: a run that was killed goes on there; without one they go to a temporary folder.
    Deterministic under `seed` on the same machine and thread count.
    Errors: InputError for unusable texts (named by position; `long="skip"` leaves out those beyond the model's limit)
    or options, too few examples, a full disk; NotDefined where the nearest vector is not defined.
    """
    epochs = USUAL if epochs is None else epochs
    recipe = Recipe(probe, distance, loss, hidden, dropout, epochs=epochs, patience=patience, seed=seed)
    with scratch(folder) as place, progress_bar("token_identifiability") as stage:
        features = write_features(
            model, texts, place / "features", embedding=embedding, long=long, parts_of_speech=parts_of_speech,
            progress=stage("tracing"),
        )  # fmt: skip
        return identify(
            features, recipe, depths=depths, split=split, folds=folds, shuffled=shuffled, folder=place / "probes",
            progress=stage(f"{probe} probes"),
        )  # fmt: skip


def identify(
    features: Features,
    recipe: Recipe,
    *,
    depths: Depths = "all",
    split: tuple[float, float, float] = (0.7, 0.15, 0.15),
    folds: int | None = None,
    shuffled: bool = False,
    folder: Path,
    progress: Progress = no_progress,
) -> TokenIdentifiability:
    """`token_identifiability` on features that are there; `folder` keeps the probes."""
    wanted = check_depths(features, depths)
    if folds is None:
        splits = [split_examples(features.examples, split, recipe.seed)]
    else:
        splits = fold_examples(features.examples, folds, recipe.seed)
    fits: list[list[Fit]] = []
    for number, parts in enumerate(splits):

        def partly(done: float, total: float, number: int = number) -> None:
            progress(number + done / total, len(splits))

        fits.append(train(features, [Task(d, recipe, *parts, shuffled=shuffled) for d in wanted], folder, partly))
    return collect(features, recipe, wanted, splits, fits, {"split": list(split), "folds": folds, "shuffled": shuffled})


def collect(
    features: Features,
    recipe: Recipe,
    depths: tuple[int, ...],
    splits: Sequence[Split],
    fits: Sequence[Sequence[Fit]],
    options: dict[str, Any],
) -> TokenIdentifiability:
    """The result of all fits [fold][depth]."""
    tested = features.rows([example for _, _, test in splits for example in test]).numpy()
    flags = {name: values[tested] for name, values in features.classes.items() if values[tested].any()}
    by_depth = [[fold[k] for fold in fits] for k in range(len(depths))]
    right = [[one for fit in column for one in fit.right] for column in by_depth]
    hits = [np.concatenate(one) for one in right]

    def mean(number: str) -> np.ndarray:
        return np.array([np.mean([getattr(fit, number) for fit in column]) for column in by_depth])

    return TokenIdentifiability(
        depths=depths,
        train=mean("train"),
        validation=np.array([np.mean([fit.validation[fit.epoch] for fit in column]) for column in by_depth]),
        test=np.array([one.mean() for one in hits]),
        interval=np.array([interval(one, recipe.seed) for one in right]),
        strict=np.array([np.concatenate([one for fit in column for one in fit.strict]).mean() for column in by_depth]),
        epochs=mean("epoch"),
        seconds=np.array([sum(fit.seconds for fit in column) for column in by_depth]),
        by_class={name: np.array([one[flag].mean() for one in hits]) for name, flag in flags.items()},
        class_tokens={name: int(flag.sum()) for name, flag in flags.items()},
        tokens=features.tokens,
        examples=features.examples,
        skipped=tuple(features.meta["skipped"]),
        meta={"method": "token_identifiability", "paper": PAPER, **features.meta, **asdict(recipe), **options},
        splits=tuple(splits),
        probes=tuple(tuple(fit.probe for fit in fold) for fold in fits),
    )


def check_depths(features: Features, depths: Depths) -> tuple[int, ...]:
    """Errors: InputError for a depth out of range or none."""
    wanted = tuple(range(features.depths)) if depths == "all" else tuple(int(depth) for depth in depths)
    outside = [depth for depth in wanted if not 0 <= depth < features.depths]
    if outside or not wanted:
        got = ", ".join(map(str, outside)) or "none"
        raise InputError("token_identifiability: depths", got=got, allowed=f"0 to {features.depths - 1}")
    return wanted


@contextmanager
def scratch(folder: str | Path | None) -> Generator[Path]:
    """The folder, or a temporary one."""
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="clearhead-") as place:
        yield Path(place)
