"""The ten effects: what the paper reports, what is measured, and by which criterion the two agree.

On another model than the paper's, "agrees" is about the direction and shape of an effect, not its size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from clearhead.maps import Table
from clearhead.studies.results import Results

Verdict = tuple[str, bool | None]
"""What was measured, and whether it agrees; None where it was not measured."""
NOT_MEASURED: Verdict = ("not measured", None)


@dataclass(frozen=True)
class Effect:
    """One effect of the paper."""

    setting: str
    paper: str
    criterion: str
    judge: Callable[[Results], Verdict]


def recovered_at_the_end(r: Results) -> Verdict:
    found = r.rate("linear", "cosine", r.layers)
    if found is None:
        return NOT_MEASURED
    better = "" if r.nearest is None else f"; {r.nearest.test[-1]:.1%} trained to choose the nearest"
    return f"{found:.1%}{better}", found >= 0.8


def cosine_beats_l2(r: Results) -> Verdict:
    found = {
        kind: (r.rate(kind, "cosine", r.layers), r.rate(kind, "l2", r.layers)) for kind in ("naive", "linear", "mlp")
    }
    pairs = {kind: (c, e) for kind, (c, e) in found.items() if c is not None and e is not None}
    if not pairs:
        return NOT_MEASURED
    return ", ".join(f"{k} {c:.3f} vs {e:.3f}" for k, (c, e) in pairs.items()), all(c > e for c, e in pairs.values())


def short_texts_identifiable(r: Results) -> Verdict:
    short = r.attention.tokens <= r.value_width
    long = r.attention.tokens > 1.5 * r.value_width
    if not short.any() or not long.any():
        return NOT_MEASURED
    lowest, later = r.attention.pearson[short].min(), r.attention.pearson[long].mean()
    measured = (
        f"r >= {lowest:.4f} up to {r.value_width} tokens, {later:.2f} on average beyond {1.5 * r.value_width:.0f}"
    )
    return measured, bool(lowest > 0.999 and later < 0.9)


def separator_peak_removed(r: Results) -> Verdict:
    found = {which: peak_of(r, which) for which in ("separator", "start")}
    if found["separator"] is None:
        return NOT_MEASURED
    spelled = [
        f"{which}, layer {peak[0] + 1}: {peak[1]:.3f} raw, {peak[2]:.3f} effective"
        for which, peak in found.items()
        if peak is not None
    ]
    _, raw, effective = found["separator"]
    return "; ".join(spelled), bool(effective < raw / 2)


def peak_of(r: Results, which: str) -> tuple[int, float, float] | None:
    """(layer, raw, effective) where raw attention to a type of token is highest."""
    raw, effective = (r.attention.mean_attention(kind, which) for kind in ("raw", "effective"))
    if raw is None or effective is None:
        return None
    layer = int(raw.argmax())
    return layer, float(raw[layer]), float(effective[layer])


def own_contribution_falls(r: Results) -> Verdict:
    own = r.mixing.median_own()
    first, middle, last = own[0], own[(len(own) - 1) // 2], own[-1]
    return f"{first:.1%}, {middle:.1%}, {last:.1%} (first, middle, last layer)", bool(first > middle > last)


def others_contribute_most(r: Results) -> Verdict:
    share = r.mixing.share_not_largest()
    place = round(len(share) * 2 / 3) - 1
    return f"{share[place]:.1%} at layer {place + 1}, {share[-1]:.1%} at the last", bool(
        share[-1] > share[place] >= share[0]
    )


def more_data_helps(r: Results) -> Verdict:
    if r.data_size is None:
        return NOT_MEASURED
    rates = r.data_size["test"]
    sizes = ", ".join(f"{rate:.3f} ({share:.0%})" for share, rate in zip(r.data_size["share"], rates, strict=True))
    return sizes, bool(rates[-1] > rates[0] + 0.02 and rates[-1] >= rates.max() - 0.01)


def larger_probe_gains_nothing(r: Results) -> Verdict:
    if r.ablation is None:
        return NOT_MEASURED
    small, large = r.ablation["hidden"].argmin(), len(r.ablation) - 1
    rate, seconds = r.ablation["test"], r.ablation["seconds"]
    measured = f"time x {seconds[large] / seconds[small]:.1f}, rate {rate[small]:.3f} to {rate[large]:.3f}"
    return measured, bool(seconds[large] > 1.5 * seconds[small] and rate[large] < rate[small] + 0.01)


def mlp_like_linear(r: Results) -> Verdict:
    depths = range(1, r.layers + 1)
    both = [(r.rate("mlp", "cosine", d), r.rate("linear", "cosine", d)) for d in depths]
    gaps = [mlp - line for mlp, line in both if mlp is not None and line is not None]
    if not gaps:
        return NOT_MEASURED
    return f"MLP - linear (cosine): mean {np.mean(gaps):+.3f}, last {gaps[-1]:+.3f}", bool(abs(np.mean(gaps)) < 0.02)


def last_tenth_of_data(r: Results) -> Verdict:
    if r.data_size is None or len(r.data_size) < 2:
        return NOT_MEASURED
    before, after = r.data_size["test"][-2:]
    return f"{before:.3f} to {after:.3f}", -0.01 <= after - before <= 0.03


EFFECTS: tuple[Effect, ...] = (
    Effect(
        "linear probe, cosine neighbour, last layer", "93 % recovered",
        "at least 80 % of the tokens are recovered", recovered_at_the_end,
    ),
    Effect(
        "cosine against L2 as distance of the neighbour, last layer", "cosine is better",
        "with every kind of probe more tokens are recovered with cosine than with L2", cosine_beats_l2,
    ),
    Effect(
        "raw against effective attention, texts of no more tokens than the values are wide", "Pearson r = 1",
        "r above .999 for each such text, and below .9 on average for texts half as long again",
        short_texts_identifiable,
    ),
    Effect(
        "attention to the separator in the middle layers", "effective attention removes the peak",
        "where raw attention to it peaks, effective attention is less than half of it", separator_peak_removed,
    ),
    Effect(
        "contribution of the own input token, median", "30.6, 14.4, 10.7 %",
        "it falls from the first to the middle to the last layer", own_contribution_falls,
    ),
    Effect(
        "tokens to which another input token contributes most", "18 to 30 %",
        "the share is larger at the last layer than two thirds of the way up, and there no smaller than at the first",
        others_contribute_most,
    ),
    Effect(
        "MLP at the last but one layer, more training data", ".74, .80, .81, .82",
        "all data recover at least .02 more than the least, and no less than .01 below the best", more_data_helps,
    ),
    Effect(
        "larger hidden layer and dropout", "training takes longer, nothing is gained",
        "at least 1.5 times the time, and less than .01 gained", larger_probe_gains_nothing,
    ),
    Effect(
        "MLP against linear probe, generalisation", "no clear effect",
        "test rates with cosine differ by less than .02 on average over the layers", mlp_like_linear,
    ),
    Effect(
        "MLP training data from 90 to 100 %", ".81 to .82",
        "the rate changes by -.01 to +.03", last_tenth_of_data,
    ),
)  # fmt: skip


def judge_effects(results: Results) -> Table:
    """One row for each effect: setting, paper, measured, agrees (yes, no, not measured), criterion."""
    found = [effect.judge(results) for effect in EFFECTS]
    spelled = {True: "yes", False: "no", None: "not measured"}
    columns = {
        "number": np.arange(1, len(EFFECTS) + 1),
        "setting": np.array([effect.setting for effect in EFFECTS], dtype=object),
        "paper": np.array([effect.paper for effect in EFFECTS], dtype=object),
        "measured": np.array([measured for measured, _ in found], dtype=object),
        "agrees": np.array([spelled[None if ok is None else bool(ok)] for _, ok in found], dtype=object),
        "criterion": np.array([effect.criterion for effect in EFFECTS], dtype=object),
    }
    about = {
        "number": "number of the effect",
        "setting": "what is measured",
        "paper": "what Brunner et al. 2020 report of BERT-base",
        "measured": f"what was measured on {results.model}",
        "agrees": "whether the measured value meets the criterion",
        "criterion": "when the two agree",
    }
    return Table(columns, about=about, meta={"method": "effects", "model": results.model})
