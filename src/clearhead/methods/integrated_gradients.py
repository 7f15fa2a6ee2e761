"""Integrated gradients: the way from a baseline to the text, shared among its tokens; through captum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from clearhead import linalg
from clearhead.errors import InputError, MissingExtra, NotDefined
from clearhead.maps import Map
from clearhead.methods.registry import method, token_map
from clearhead.target import Target
from clearhead.trace import Trace

COMPLETE = 1e-2
"""How far the sum may lie from F(x) - F(baseline), relative to it: deep models bend sharply near a baseline."""
STEPS = (16, 64, 512)
"""Numbers of points tried in turn where `steps` is not given."""


@method(
    paper="Sundararajan et al. 2017, Axiomatic Attribution for Deep Networks (arXiv 1703.01365)",
    dims=("key",),
    unit="target",
    laws=("sums to F(x) - F(baseline)",),
    explains=True,
    cost="as many passes forward and back as steps",
    can="How the target, less its value at the baseline, is shared among the tokens; the parts sum to it.",
    cannot=(
        "An answer without a baseline: another one gives other parts, and texts on the way are none that the "
        "model knows."
    ),
)
def integrated_gradients(
    trace: Trace, *, target: Target = None, baseline: Literal["mean", "zero"] = "mean", steps: int | None = None
) -> Map:
    """Share of each token in what separates the explained number from that of a baseline without content; signed.

    (x_j - b_j) . mean over t in [0, 1] of dF/dx_j at b + t (x - b), by captum's `IntegratedGradients` with the
    Gauss-Legendre rule; x and F as in `gradient_norm`. `baseline`: "mean", every token is the mean of the text's token
    vectors; "zero", the zero vector, as is common, though a model that first normalises (GPT-2, Llama) jumps there, so
    that the integral does not settle. `steps`: points of the rule; None tries 16, 64, then 512 until it is complete.

    Completeness is checked: the values sum to F(x) - F(b) to 1 % (`meta["completeness"]`), or are refused.
    Returns (key,). Errors: MissingExtra without captum; InputError; NotDefined where it is not complete; else as
    `gradient_norm`.
    """
    if baseline not in ("mean", "zero"):
        raise InputError("integrated_gradients: baseline", got=repr(baseline), allowed="'mean', 'zero'")
    if steps is not None and (type(steps) is not int or steps < 1):
        raise InputError("integrated_gradients: steps", got=repr(steps), allowed="a whole number from 1, None")
    captum = _captum()
    goal = trace.model.goal(trace, target)
    run = trace.model.outcome(trace, goal, 0)
    x = trace.hidden[0].detach()[None]
    start = x.new_zeros(x.shape) if baseline == "zero" else x.mean(1, keepdim=True).expand_as(x)
    batch = linalg.points_a_pass(trace.model.block(0), x.shape[1], len(trace.layers))
    ends = run(x).detach(), run(start).detach()
    found, met, used = x, None, 0
    for used in STEPS if steps is None else (steps,):
        found = captum(run).attribute(x, start, n_steps=used, method="gausslegendre", internal_batch_size=batch)
        met = linalg.completeness(found, *ends, trace.eps, COMPLETE)
        if met.complete:
            break
    assert met is not None
    if not met.complete:
        raise NotDefined(
            f"integrated_gradients: with {used} steps the values do not sum to F(x) - F(baseline)",
            got=f"a sum of {met.total:.6g} for {met.change:.6g}",
            allowed="1 %",
            do="Give more steps" + (", or baseline='mean'." if baseline == "zero" else "."),
        )
    options = {"baseline": baseline, "steps": steps}
    kept = token_map(trace, "integrated_gradients", options, target, goal, found[0].sum(-1))
    return replace(kept, meta={**kept.meta, "steps_used": used, "completeness": met.told})


def _captum() -> Any:
    try:
        from captum.attr import IntegratedGradients
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "captum":
            raise
        raise MissingExtra("integrated_gradients needs captum", do="pip install clearhead[captum]") from error
    return IntegratedGradients
