"""All methods on the same texts, by how well each predicts what the model does without the tokens it names."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from clearhead.errors import InputError, MissingExtra, NotDefined
from clearhead.faithfulness.metrics import FEWEST, agreement, interval, measure, rank_correlation, ranked
from clearhead.faithfulness.removal import Removal, Without
from clearhead.faithfulness.result import Comparison
from clearhead.faithfulness.scores import RULE, scores
from clearhead.maps import Map, Table
from clearhead.methods.registry import Method, find
from clearhead.methods.registry import methods as registered
from clearhead.target import Goal, Target, spelled

if TYPE_CHECKING:
    from clearhead.models.model import Model
    from clearhead.trace import Trace

DRAWS = 5
"""Random orders a text behind the random baseline; a method's own scores are shuffled once a text."""
HTA_EXACT = "hidden_token_attribution"
MEASURES = ("score", "comprehensiveness", "sufficiency", "deletion", "insertion", "leave_one_out", "exact_hta")
ABOUT = {
    "method": "name; `random` is a random order of the tokens",
    "score": "insertion - deletion, mean over texts; sorted by it; higher is better, 0 says nothing",
    "score_low": "95 % bootstrap interval of the score, by text",
    "score_high": "95 % bootstrap interval of the score, by text",
    "over_random": "score - that of random orders of the same texts",
    "over_random_low": "95 % bootstrap interval of it, by text",
    "over_random_high": "95 % bootstrap interval of it, by text",
    "over_shuffled": "score - that of the method's own scores, shuffled over the tokens",
    "over_shuffled_low": "95 % bootstrap interval of it, by text",
    "over_shuffled_high": "95 % bootstrap interval of it, by text",
    "beats_random": "yes: both intervals over the baselines lie above 0; no: one lies below 0; open: else, and "
    f"under {FEWEST} texts, of which there is no interval",
    "comprehensiveness": "F(all) - F(without the first k), mean over 1, 5, 10, 20 and 50 %; higher is better",
    "sufficiency": "F(all) - F(only the first k), mean over the same; lower is better",
    "deletion": "area under F without the first k; lower is better",
    "insertion": "area under F with only the first k; higher is better",
    "leave_one_out": "Spearman correlation with F(all) - F(without one token), mean over texts",
    "exact_hta": "Spearman correlation with exact hidden token attribution, mean over texts",
    "sanity": "Spearman correlation with its scores under shuffled weights, mean over texts; near 1: blind to what "
    "was learned",
    "seconds": "of the method alone, a text, mean",
    "texts": "on which it is defined",
}


@dataclass(frozen=True)
class Scored:
    """The scores of one method on one text, at the positions that may be removed."""

    values: np.ndarray
    seconds: float


def compare(
    model: Model,
    texts: Sequence[str],
    methods: Literal["all"] | Sequence[str] = "all",
    *,
    target: Target | Sequence[Target] = None,
    removal: Removal = "delete",
    seed: int = 0,
    exact_hta: bool = True,
    sanity: bool = True,
) -> Comparison:
    """How faithful the scores of each method are to the model, on the same texts, beside random baselines.

    `target`: what is explained, one for all texts or a list with one a text: a class or next token by number or as
    "class:1", "next:' Paris'" (its probability), None (the class or token that the model finds most likely),
    "similar:TEXT" or `SimilarTo(text)`, or a function of the model's output that gives one number a text, alone or in
    a `Goal`. Methods that explain a target are given the same one. `removal`: "delete" (taken out), "mask" (mask
    token) or "mean" (mean embedding); template tokens always stay. How a map becomes one score a token: scores.RULE.
    `exact_hta`, `sanity`: whether to compute these two, which cost the most. Every method runs with its own defaults.

    "all": every method whose map speaks of keys. A method is left out for a text for which it is not defined, and
    `table.meta["left_out"]` says why; its column `texts` counts the others. One that is asked for by name and not
    defined for any text, or needs what is not installed, raises instead.
    Errors: InputError for texts, methods, target or removal; NotDefined, MissingExtra, ProofError as above.
    """
    chosen, targets = _methods(methods), _targets(texts, target)
    left_out: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    kendall: dict[tuple[str, str], list[float]] = {}
    shuffled = shuffled_model(model, seed) if sanity else None
    goal = None
    for number, (text, wanted) in enumerate(zip(texts, targets, strict=True)):
        trace = model.trace(text)
        goal = model.goal(trace, wanted)
        without = Without(model, trace, goal, removal)
        found = _scored(chosen, trace, goal, without.tokens, left_out, strict=methods != "all")
        other: dict[str, Scored] = {}
        if shuffled is not None:
            blind = shuffled.trace(text)
            same = (
                goal if wanted is None else shuffled.goal(blind, wanted)
            )  # the same class or token, where it chose one
            other = _scored(chosen, blind, same, without.tokens, {}, strict=False)
        random = np.random.default_rng([seed, number])
        rows += _rows(number, without, found, other, _hta(trace, goal, without.tokens) if exact_hta else None, random)
        for one, two in itertools.combinations(sorted(found), 2):
            tau = agreement(found[one].values, found[two].values)
            if tau is not None:
                kendall.setdefault((one, two), []).append(tau)
    chosen_names = [name for name in (m.name for m in chosen) if any(row["method"] == name for row in rows)]
    missing = [m.name for m in chosen if m.name not in chosen_names]
    if not chosen_names or (methods != "all" and missing):
        reasons = "; ".join(f"{name}: {left_out[name]}" for name in missing)
        raise NotDefined(f"compare: for none of these texts is there a score from {', '.join(missing)}", got=reasons)
    asked = "one a text" if isinstance(target, (list, tuple)) else str(spelled(target))  # pyright: ignore[reportArgumentType]
    meta = {
        "method": "compare", **model.origin, "target": goal.name if len(texts) == 1 and goal else asked,
        "removal": removal, "seed": seed, "rule": RULE, "left_out": left_out, "texts": len(texts),
    }  # fmt: skip
    return Comparison(
        _summary(rows, [*chosen_names, "random"], seed, meta),
        _agreement(kendall, chosen_names, meta),
        _by_text(rows, meta),
    )


def _methods(wanted: Literal["all"] | Sequence[str]) -> list[Method]:
    if wanted == "all":
        return [m for m in registered().values() if m.returns == "map" and "key" in m.dims and not m.required]
    if isinstance(wanted, str) or not wanted:
        raise InputError("compare: methods", got=repr(wanted), allowed='"all", or a list of names')
    found = [find(name) for name in dict.fromkeys(wanted)]
    wrong = [m.name for m in found if m.returns != "map" or "key" not in m.dims or m.required]
    if wrong:
        raise InputError("compare: no score for each token from", got=", ".join(wrong), allowed="maps over all keys")
    return found


def _targets(texts: Sequence[str], target: Target | Sequence[Target]) -> list[Target]:
    if isinstance(texts, str) or not texts:
        raise InputError("compare: texts", got=repr(texts), allowed="a list of one or more")
    if isinstance(target, (list, tuple)):
        if len(target) != len(texts):
            raise InputError("compare: targets", got=f"{len(target)} for {len(texts)} texts", allowed="one a text")
        return list(target)
    return [target] * len(texts)  # pyright: ignore[reportReturnType]


def _scored(
    chosen: Sequence[Method], trace: Trace, goal: Goal, tokens: Sequence[int], left_out: dict[str, str], *, strict: bool
) -> dict[str, Scored]:
    found: dict[str, Scored] = {}
    for method in chosen:
        start = time.perf_counter()
        try:
            values = scores(_map(method, trace, goal), goal.reads)
        except (NotDefined, MissingExtra) as error:
            if strict and isinstance(error, MissingExtra):
                raise
            left_out[method.name] = str(error)
            continue
        found[method.name] = Scored(values[list(tokens)], time.perf_counter() - start)
    return found


def _map(method: Method, trace: Trace, goal: Goal) -> Map:
    """The Map of a method with its defaults; of one that can be asked for one layer or query, only what is read."""
    read = {"layer": len(trace.layers) - 1}
    if goal.reads != "mean":
        read["query"] = 0 if goal.reads == "first" else len(trace.tokens) - 1
    given: dict[str, Any] = {name: at for name, at in read.items() if name in method.options}
    return method.function(trace, **given, **({"target": goal} if method.explains else {}))


def _hta(trace: Trace, goal: Goal, tokens: Sequence[int]) -> np.ndarray:
    exact: Map = find(HTA_EXACT).function(trace, probes=None)
    return scores(exact, goal.reads)[list(tokens)]


def _rows(
    number: int,
    without: Without,
    found: dict[str, Scored],
    other: dict[str, Scored],
    hta: np.ndarray | None,
    random: np.random.Generator,
) -> list[dict[str, Any]]:
    """One row a method, and one of the random baseline, for one text."""
    tokens, count = without.tokens, len(without.tokens)
    alone = np.array([without.whole]) - np.array(without([[k] for k in tokens]))
    orders = [random.permutation(count) for _ in range(DRAWS)]

    def measured(values: np.ndarray) -> dict[str, float]:
        return measure([tokens[k] for k in ranked(values, range(count))], without)

    def mean(of: Sequence[np.ndarray]) -> dict[str, float]:
        all_of = [measured(values) for values in of]
        return {name: float(np.mean([one[name] for one in all_of])) for name in all_of[0]}

    baseline = mean([order.astype(float) for order in orders])
    rows: list[dict[str, Any]] = []
    for name, scored in found.items():
        values = scored.values
        rows.append(
            {
                "text": number,
                "method": name,
                **measured(values),
                "random": baseline["score"],
                "shuffled": measured(values[random.permutation(count)])["score"],
                "leave_one_out": rank_correlation(values, alone),
                "exact_hta": None if hta is None else rank_correlation(values, hta),
                "sanity": rank_correlation(values, other[name].values) if name in other else None,
                "seconds": scored.seconds,
            }
        )
    nothing = dict.fromkeys(("leave_one_out", "exact_hta", "sanity", "seconds"))
    rows.append(
        {"text": number, "method": "random", **baseline, "random": baseline["score"], "shuffled": None, **nothing}
    )
    return rows


def _summary(rows: list[dict[str, Any]], names: Sequence[str], seed: int, meta: dict[str, Any]) -> Table:
    lines: list[dict[str, Any]] = []
    for name in names:
        mine = [row for row in rows if row["method"] == name]
        random = np.random.default_rng([seed, 1])
        line: dict[str, Any] = {"method": name, "texts": len(mine)}
        for column in (*MEASURES, "sanity", "seconds"):
            known = [row[column] for row in mine if row[column] is not None]
            line[column] = float(np.mean(known)) if known else None
        own = np.array([row["score"] for row in mine])
        line["score_low"], line["score_high"] = interval(own, random)
        bounds: list[tuple[float, float] | tuple[None, None]] = []
        for baseline in ("random", "shuffled"):
            column = f"over_{baseline}"
            line |= dict.fromkeys((column, f"{column}_low", f"{column}_high"))
            if name != "random":
                over = own - np.array([row[baseline] for row in mine])
                bounds.append(interval(over, random))
                line[column], (line[f"{column}_low"], line[f"{column}_high"]) = float(over.mean()), bounds[-1]
        line["beats_random"] = verdict(bounds)
        lines.append(line)
    lines.sort(key=lambda line: -line["score"])
    columns = {name: [line[name] for line in lines] for name in ABOUT}
    kept = {name: values for name, values in columns.items() if any(value is not None for value in values)}
    return Table(kept, about={name: ABOUT[name] for name in kept}, meta=meta)  # pyright: ignore[reportArgumentType]


def verdict(bounds: Sequence[tuple[float, float] | tuple[None, None]]) -> str | None:
    """Of the intervals over the baselines: "yes" where all lie above 0, "no" where one lies below, else "open"."""
    if not bounds:
        return None
    if any(high is not None and high < 0 for _, high in bounds):
        return "no"
    return "yes" if all(low is not None and low > 0 for low, _ in bounds) else "open"


def _agreement(kendall: dict[tuple[str, str], list[float]], names: Sequence[str], meta: dict[str, Any]) -> Table:
    """The Kendall matrix, a row and a column a method."""

    def tau(one: str, two: str) -> float | None:
        if one == two:
            return 1.0
        known = kendall.get((min(one, two), max(one, two)))
        return float(np.mean(known)) if known else None

    columns: dict[str, Any] = {"method": list(names)}
    columns |= {name: [tau(name, other) for other in names] for name in names}
    about = {"method": "name"} | {name: f"Kendall's tau with {name}, mean over texts" for name in names}
    return Table(columns, about=about, meta=meta)


def _by_text(rows: list[dict[str, Any]], meta: dict[str, Any]) -> Table:
    about = {
        "text": "number of the text, from 0",
        "random": "score of random orders",
        "shuffled": "score of its own, shuffled",
    }
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    kept = {name: values for name, values in columns.items() if any(value is not None for value in values)}
    return Table(kept, about={name: about.get(name) or ABOUT[name] for name in kept}, meta=meta)  # pyright: ignore[reportArgumentType]


def shuffled_model(model: Model, seed: int) -> Model:
    """A copy of the model with the numbers of each weight matrix of its layers shuffled (Adebayo et al. 2018)."""
    import copy

    import torch

    from clearhead.models.load import load

    hf, random = copy.deepcopy(model.hf), torch.Generator().manual_seed(seed)
    changed = {id(p): p for layer in _layers_of_copy(model, hf) for p in layer.parameters() if p.ndim >= 2}
    with torch.no_grad():
        for parameter in changed.values():
            order = torch.randperm(parameter.numel(), generator=random).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return load((hf, model.tokenizer))


def _layers_of_copy(model: Model, hf: Any) -> list[Any]:
    from dataclasses import replace

    return replace(model, hf=hf).layer_modules()
