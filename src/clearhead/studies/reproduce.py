"""The tables and figures of "On Identifiability in Transformers", measured on a model beside the published values.

Everything measured is kept under `work/` in the output folder, piece by piece: a run that was killed goes on there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clearhead.errors import InputError
from clearhead.maps import Table
from clearhead.maps.kept import claim, save_json
from clearhead.models.load import load
from clearhead.models.model import Model
from clearhead.probes.bar import progress_bar
from clearhead.probes.experiments import cross_layer, data_size_curve, size_ablation
from clearhead.probes.features import Features, Progress, fingerprint, usable, write_features
from clearhead.probes.probe import KINDS, USUAL, Distance, Kind, Recipe
from clearhead.probes.token_identifiability import TokenIdentifiability, identify
from clearhead.studies.attention import RawAndEffective, choose_texts, measure_attention
from clearhead.studies.data import own_pairs, own_texts, read_pairs, read_texts
from clearhead.studies.effects import judge_effects
from clearhead.studies.figures import FIGURES
from clearhead.studies.mixing import REACH, Mixing, measure_mixing
from clearhead.studies.page import write_page
from clearhead.studies.results import Results
from clearhead.trace import EPS

Stage = Callable[[str], Progress]
DISTANCES: tuple[Distance, ...] = ("cosine", "l2")
DATA_SHARES = (0.1, 0.5, 0.9, 1.0)
HIDDEN, DROPOUT = (1000, 4000), (0.0, 0.3)


@dataclass(frozen=True)
class Plan:
    """What is measured. `layers`: those of the probes, from 1; None for all."""

    model: str
    pairs: str | None = None
    texts: str | None = None
    quick: bool = False
    max_examples: int | None = None
    max_texts: int = 300
    hta_examples: int | None = None
    hta_probes: int = 4
    probes: tuple[Kind, ...] = KINDS
    layers: tuple[int, ...] | None = None
    folds: int | None = None
    epochs: int = USUAL
    long: str = "error"
    seed: int = 0
    notes: tuple[str, ...] = ()


def quick(plan: Plan) -> Plan:
    """The same with less of everything, in minutes; without data, on the sentences that come with clearhead."""
    note = "A quick run: few sentences, so wide intervals."
    most = plan.max_examples or 45
    hta = plan.hta_examples or 10
    return replace(plan, quick=True, max_examples=most, max_texts=60, hta_examples=hta, notes=(note,))


def reproduce(plan: Plan, folder: str | Path, *, say: Callable[[str], None] = print) -> Table:
    """Measure, draw and write `index.html`, figures and numbers into `folder`; returns the table of effects.

    `say` gets the estimate of the time and each file. Errors: InputError for data or options that cannot be used, and
    for a folder that holds another study.
    """
    begun = time.time()
    folder = Path(folder)
    check(plan)
    pairs = own_pairs() if plan.pairs is None else read_pairs(plan.pairs)
    lines = own_texts() if plan.texts is None else read_texts(plan.texts)
    model = load(plan.model)
    kept = usable(model, pairs.pairs, long=plan.long, names=pairs.places)  # pyright: ignore[reportArgumentType]
    skipped = len(pairs.pairs) - len(kept)
    chosen = sample([pairs.pairs[index] for index, _ in kept], plan.max_examples, plan.seed)
    texts = choose_texts(model, lines, min(plan.max_texts, plan.max_examples or plan.max_texts))
    depths = check_layers(plan, model.layers)
    work = folder / "work"
    source = asdict(plan) | {"pairs": fingerprint(chosen), "texts": fingerprint(texts)}
    claim(work, {**model.origin, **source})
    mixed = chosen[: plan.hta_examples] if plan.hta_examples else chosen
    say(f"{len(chosen)} pairs of {pairs.name}, {len(texts)} texts, {len(mixed)} pairs for contributions")
    say(estimate(model, plan, chosen, texts, mixed, depths))
    with progress_bar("reproduce") as stage:
        attention = measure_attention(in_float64(plan, model), texts, work / "attention", progress=stage("attention"))
        features = write_features(model, chosen, work / "features", progress=stage("tracing"))
        results = identities(plan, model, features, depths, work / "probes", stage, attention, mixed)
    effects = judge_effects(results)
    about = {
        "model": model.name,
        "revision": model.revision,
        "pairs": f"{len(chosen)} of {pairs.name}" + (f", {skipped} too long" if skipped else ""),
        "tokens": str(features.tokens),
        "texts": f"{len(texts)} of {Path(plan.texts).name if plan.texts else 'the story of clearhead'}",
        "contributions": f"{len(mixed)} pairs, {plan.hta_probes} probes a token",
        "seed": str(plan.seed),
        "split": "70/15/15 by example" if plan.folds is None else f"{plan.folds} folds by example",
        **{f"version of {name}": version for name, version in model.origin["versions"].items()},
        "time of this run": f"{(time.time() - begun) / 60:.1f} min",
    }
    write_results(results, effects, about, plan, folder, say)
    return effects


def identities(
    plan: Plan, model: Model, features: Features, depths: tuple[int, ...], folder: Path, stage: Stage,
    attention: RawAndEffective, mixed: Sequence[tuple[str, str]],
) -> Results:  # fmt: skip
    """Probes of every kind and distance, then contributions."""
    options: dict[str, Any] = {"depths": depths, "folds": plan.folds, "folder": folder}
    found: dict[tuple[Kind, Distance], TokenIdentifiability] = {}
    for kind in plan.probes:
        for distance in DISTANCES:
            recipe = Recipe(kind, distance, epochs=plan.epochs, seed=plan.seed)
            found[kind, distance] = identify(features, recipe, progress=stage(f"{kind} {distance}"), **options)
    nearest, table = None, None
    if "linear" in plan.probes:
        recipe = Recipe("linear", "cosine", "nearest", epochs=plan.epochs, seed=plan.seed)
        nearest = identify(features, recipe, progress=stage("linear, to choose"), **options)
        table = cross_layer(features, found["linear", "cosine"], progress=stage("between layers"))
    size, ablation = None, None
    if "mlp" in plan.probes:
        recipe = Recipe("mlp", "l2", epochs=plan.epochs, seed=plan.seed)
        deep: dict[str, Any] = {"depth": model.layers - 1, "folder": folder}
        size = data_size_curve(features, recipe, shares=DATA_SHARES, progress=stage("less data"), **deep)
        ablation = size_ablation(
            features, recipe, hidden=HIDDEN, dropout=DROPOUT, progress=stage("larger probes"), **deep
        )
    mixing = measure_mixing(
        model, mixed, folder.parent / "mixing", probes=plan.hta_probes, seed=plan.seed, progress=stage("contributions")
    )
    width = model.head_width
    return Results(model.name, model.layers, width, attention, found, nearest, table, size, ablation, mixing)


def write_results(
    results: Results, effects: Table, about: dict[str, str], plan: Plan, folder: Path, say: Callable[[str], None]
) -> None:
    """Numbers as Parquet, figures as SVG and PNG, one page that shows all."""
    import matplotlib as mpl

    numbers = folder / "numbers"
    numbers.mkdir(exist_ok=True)
    for name, table in tables(results, effects).items():
        table.save(numbers / f"{name}.parquet", overwrite=True)
    drawn: dict[str, str] = {}
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "clearhead", "font.size": 9}):
        for name, (draw, there) in FIGURES.items():
            if there(results):
                figure = draw(results)
                figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
                figure.savefig(folder / f"{name}.png", dpi=150)
                drawn[name] = (folder / f"{name}.svg").read_text("utf-8")
    write_page(folder / "index.html", effects, drawn, about, plan.notes)
    save_json(folder / "about.json", about)
    say(f"Wrote {folder / 'index.html'}, {len(drawn)} figures (SVG, PNG) and {len(tables(results, effects))} tables")


def tables(r: Results, effects: Table) -> dict[str, Table]:
    """Every number of the study, by the name of its file."""
    found = {"effects": effects}
    for (kind, distance), result in r.recovered.items():
        found[f"recovered_{kind}_{distance}"] = result.to_table()
    extra = {"between_layers": r.between, "data_size": r.data_size, "larger_probes": r.ablation}
    found |= {name: table for name, table in extra.items() if table is not None}
    if r.nearest is not None:
        found["recovered_linear_cosine_nearest"] = r.nearest.to_table()
    return found | {"attention_by_text": attention_table(r), "contributions_by_layer": mixing_table(r.mixing, r.model)}


def attention_table(r: Results) -> Table:
    """A row for each text."""
    columns = {"tokens": r.attention.tokens.astype(np.int64), "pearson": r.attention.pearson.astype(float)}
    about = {"tokens": "tokens of the text", "pearson": "Pearson r of raw and effective attention, mean over heads"}
    return Table(columns, about=about, meta={"method": "raw and effective attention", "model": r.model})


def mixing_table(mixing: Mixing, model: str) -> Table:
    """A row for each layer."""
    layers = len(mixing.own)
    columns: dict[str, Any] = {
        "layer": np.arange(1, layers + 1),
        "own_median": mixing.median_own(),
        "own_stderr": np.median(mixing.own_stderr, axis=1),
        "not_largest": mixing.share_not_largest(),
    }
    about = {
        "layer": "layer, from 1 as in the paper",
        "own_median": "contribution of the own input token, median over tokens",
        "own_stderr": "standard error of one token's estimate, median over tokens",
        "not_largest": "share of tokens to which another input token contributes most",
    }
    for name, values in mixing.by_distance().items():
        columns[name], about[name] = values, f"contribution of the {name} neighbour, sums to 1 over the layers"
    for offset, values in zip(range(-REACH, REACH + 1), mixing.by_offset().T, strict=True):
        if offset:
            columns[f"offset {offset}"] = values
            about[f"offset {offset}"] = "contribution from this relative position, the largest 1"
    return Table(columns, about=about, meta={"method": "contributions", "model": model})


def in_float64(plan: Plan, model: Model) -> Model:
    """The model in float64: ranks at the edge (as many tokens as the values are wide) need it."""
    return model if EPS[model.precision] <= EPS["float64"] else load(plan.model, dtype="float64")


def sample(pairs: Sequence[tuple[str, str]], most: int | None, seed: int) -> list[tuple[str, str]]:
    """At most so many pairs, drawn at random, in their order."""
    if most is None or most >= len(pairs):
        return list(pairs)
    chosen = np.random.default_rng(seed).choice(len(pairs), most, replace=False)
    return [pairs[index] for index in sorted(chosen.tolist())]


def check(plan: Plan) -> None:
    """Errors: InputError for options that cannot be used."""
    if not plan.quick and plan.pairs is None:
        do = "Name GLUE's MRPC tsv file or 'glue:mrpc', or use --quick for the sentences that come with clearhead."
        raise InputError("reproduce needs pairs of sentences (--pairs)", got="none", do=do)
    unknown = [kind for kind in plan.probes if kind not in KINDS]
    if unknown or not plan.probes:
        raise InputError("reproduce: probes", got=", ".join(unknown) or "none", allowed=", ".join(KINDS))
    for name in ("max_examples", "max_texts", "hta_examples"):
        value = getattr(plan, name)
        if value is not None and value < 1:
            raise InputError(f"reproduce: {name}", got=value, allowed="1 or more")


def check_layers(plan: Plan, layers: int) -> tuple[int, ...]:
    """The depths of the probes. Errors: InputError for a layer out of range."""
    if plan.layers is None:
        return tuple(range(layers + 1))
    outside = [layer for layer in plan.layers if not 1 <= layer <= layers]
    if outside or not plan.layers:
        got = ", ".join(map(str, outside)) or "none"
        raise InputError("reproduce: layers", got=got, allowed=f"1 to {layers}")
    return tuple(sorted({*plan.layers, layers}))


def estimate(
    model: Model, plan: Plan, pairs: Sequence[tuple[str, str]], texts: Sequence[str],
    mixed: Sequence[tuple[str, str]], depths: tuple[int, ...],
) -> str:  # fmt: skip
    """The time that it will take, in words, from one traced text and one timed matrix product."""
    model.trace_many(pairs[:2])
    begun = time.perf_counter()
    traces = model.trace_many(pairs[:4])
    trace = (time.perf_counter() - begun) / len(traces)
    tokens = sum(len(one.tokens) for one in traces) / len(traces)
    block = torch.randn(256, model.width)
    begun = time.perf_counter()
    for _ in range(20):
        block = block @ block.T @ block / block.numel()
    rate = 20 * 4 * 256 * 256 * model.width / (time.perf_counter() - begun)
    epoch = 0.7 * len(pairs) * tokens * 2 * model.width**2 * 4 / rate * (plan.folds or 1) * len(depths)
    linear, far = (Recipe(kind, epochs=plan.epochs).epochs for kind in ("linear", "mlp"))
    epochs = {"naive": 0, "linear": linear + far / 2, "mlp": 2 * far * 1000 / model.width}
    parts = {
        "attention": 4 * trace * len(texts),
        "tracing": trace * len(pairs),
        "probes": 2 * sum(epochs[kind] for kind in plan.probes) * epoch,
        "contributions": 0.6 * plan.hta_probes * tokens * trace * len(mixed),
    }
    spelled = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in parts.items())
    return f"Estimated time: about {sum(parts.values()) / 60:.0f} min ({spelled}); what is kept is not done again."
