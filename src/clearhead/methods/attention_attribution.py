"""Self-attention attribution (ATTATTR): what each attention weight adds to the explained number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from clearhead import linalg
from clearhead.errors import InputError, NotDefined
from clearhead.maps import Map, Table
from clearhead.methods.registry import layer_map, method
from clearhead.progress import each
from clearhead.target import Target, spelled
from clearhead.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor

    from clearhead.target import Goal

RULES = (5, 11, 64)
"""Points of the Gauss-Legendre rules tried in turn where `steps` is not given: 16 evaluations, but for sharp bends."""
COMPLETE = 1e-3
"""How far the sum may lie from F(A) - F(0), relative to it."""
PUBLISHED = 64
"""Points of the authors' left sum."""
NAME = "attention_attribution"


@method(
    paper="Hao et al. 2021, Self-Attention Attribution (arXiv 2004.11207)",
    dims=("layer", "head", "query", "key"),
    unit="target",
    laws=("sums to F(A) - F(0)", "causal"),
    explains=True,
    cost="for each layer as many passes from it as evaluations, forward and back",
    can=(
        "Which attention weights the target was built with, as each layer's attention grows from zero; the parts "
        "sum to it."
    ),
    cannot="What a token's own vector or the feed-forward parts did, or how layers act together: each is scaled alone.",
)
def attention_attribution(
    trace: Trace,
    *,
    target: Target = None,
    layer: int | None = None,
    steps: int | None = None,
    variant: Literal["correct", "published"] = "correct",
) -> Map:
    """Attention weight times the mean gradient of the explained number while its layer's attention grows from zero.

    Attr_h = A_h * mean over t in [0, 1] of dF/dA_h at t A, one layer at a time, all its heads together; F is
    the target, as in `gradient_norm` (a class or next token as its probability). Signed. The values of a layer sum to
    F(A) - F(0), F(0) being the model with that layer's attention taken away. The model runs from that layer on, with
    given weights in place of its own; with its own weights in place it is first proven to give its untouched output.

    `steps`: points of the Gauss-Legendre rule; None takes 5, then 11, at last 64, until the sum is complete to 1e-3.
    `variant="published"`: the authors' left sum t = k / 64, k = 0 .. 63, which is off by up to 6 % of the sum, and is
    not held to completeness. `meta["completeness"]` has sum, change and error by layer. `layer`: that one alone.
    Where the output of the attention is normalised by itself (Gemma-3), F jumps at A = 0 and no rule settles: refused.

    Returns (layer, head, query, key). Errors: InputError for an option; NotDefined where the trace recorded no
    attention, where a sum is not complete, and as `gradient_norm`; ProofError as above.
    """
    import torch

    layers = range(len(trace.layers))
    if layer is not None and (type(layer) is not int or layer not in layers):
        raise InputError(f"{NAME}: layer", got=repr(layer), allowed=f"0 to {len(layers) - 1}")
    if steps is not None and (type(steps) is not int or steps < 1):
        raise InputError(f"{NAME}: steps", got=repr(steps), allowed="a whole number from 1, none")
    if variant not in ("correct", "published"):
        raise InputError(f"{NAME}: variant", got=repr(variant), allowed="'correct', 'published'")
    if variant == "published" and steps is not None:
        raise InputError(f"{NAME}: the published variant has its own {PUBLISHED} steps", got=f"steps={steps}")
    chosen = layers if layer is None else [layer]
    normed = [at for at in chosen if variant == "correct" and trace.model.block(at).norms.on_output is not None]
    if normed:
        raise NotDefined(
            f"{NAME}: layer {normed[0]} normalises the output of its attention, so that attention of any size above 0 "
            "gives the same number and there is no way from zero to average over",
            do="relevance and input_x_gradient explain the same target without such a way.",
        )
    goal = trace.model.goal(trace, target)
    found: list[Tensor] = []
    told: list[dict[str, Any]] = []
    for at in each(chosen):
        values, one = _of_layer(trace, goal, at, steps, variant)
        if not bool(torch.isfinite(values).all()):
            raise NotDefined(f"{NAME}: layer {at}: a gradient is not finite", do="Load with dtype='float64'.")
        found.append(values)
        told.append({"layer": at, **one})
    options = {"target": spelled(target), "layer": layer, "steps": steps, "variant": variant}
    made = layer_map(trace, NAME, options, found, ("layer", "head", "query", "key"))
    meta = {**made.meta, "target": goal.name, "value": goal.value, "completeness": told}
    return replace(made, meta=meta, coords={"layer": tuple(chosen)})


def _of_layer(trace: Trace, goal: Goal, layer: int, steps: int | None, variant: str) -> tuple[Tensor, dict[str, Any]]:
    """(Attr [head, query, key], its completeness)."""
    run, weights = trace.model.outcome(trace, goal, layer, "attention"), trace.layers[layer].probabilities
    assert weights is not None and goal.value is not None
    whole, none = weights.new_tensor([goal.value]), run(weights.new_zeros(1, *weights.shape)).detach()
    batch = linalg.points_a_pass(trace.model.block(0), weights.shape[-1], len(trace.layers) - layer)
    rules = [linalg.left_sum(PUBLISHED)] if variant == "published" else None
    rules = rules or [linalg.gauss_legendre(count) for count in (RULES if steps is None else (steps,))]
    values, met = weights, None
    for rule in rules:
        values = weights * linalg.mean_gradient(run, weights, *rule, batch)
        met = linalg.completeness(values, whole.double(), none.double(), trace.eps, COMPLETE)
        if met.complete or variant == "published":
            return values, met.told | {"evaluations": len(rule[0])}
    assert met is not None
    raise NotDefined(
        f"{NAME}: layer {layer}: the values do not sum to F(A) - F(0)",
        got=f"a sum of {met.total:.6g} for {met.change:.6g}",
        allowed="a relative error of 1e-3",
        do="Give more steps.",
    )


def head_importance(traces: Sequence[Trace], *, target: Target = None) -> Map:
    """How much each head matters over several texts: the sum of the largest attribution of each text.

    I_h = sum over texts of max over i, j of Attr_h[i, j] (Hao et al. 2021), with the default rule of
    `attention_attribution`; as `target`, the class or token that the model gives each text, where it is None.
    Returns (layer, head). Errors: InputError without a trace, or for traces of several models; else as that method.
    """
    if isinstance(traces, Trace) or not traces:
        raise InputError("head_importance: traces", got="one" if traces else "none", allowed="a list of traces")
    if any(trace.model is not traces[0].model for trace in traces):
        raise InputError("head_importance: traces of several models", allowed="one model")
    maps = [attention_attribution(trace, target=target) for trace in traces]
    values = np.sum([one.values.max((-2, -1)) for one in maps], 0)
    names = list(dict.fromkeys(one.meta["target"] for one in maps))
    kept = {name: value for name, value in maps[0].meta.items() if name not in ("value", "completeness", "text_sha256")}
    hashes = [one.meta["text_sha256"] for one in maps]
    meta = kept | {"method": "head_importance", "target": names, "texts": len(maps), "text_sha256": hashes}
    return Map(values, ("layer", "head"), tokens={}, unit="target, summed over texts", meta=meta)


def attribution_tree(attributions: Map, *, threshold: float = 0.4) -> Table:
    """The strongest flows of an `attention_attribution` from the top of the model down, as the edges of a tree.

    Heads are summed, a_l = sum_h Attr_h. An edge (i, j), i != j, is kept where a_l[i, j] > threshold * max a_l. The
    root is the token whose row holds most over all layers (its own column aside); from the last layer down, an edge is
    taken where i is in the tree already and j is not (Hao et al. 2021, algorithm 1).

    Returns a Table with a line an edge: layer, parent, child (positions and pieces), value; the root in `meta["root"]`.
    Errors: InputError for another map, or a threshold outside [0, 1]; NotDefined where a layer has no positive value.
    """
    if attributions.meta.get("method") != NAME or attributions.dims != ("layer", "head", "query", "key"):
        raise InputError("attribution_tree: the map", got=f"axes {attributions.dims}", allowed=f"a whole {NAME}")
    if not 0 <= threshold <= 1:
        raise InputError("attribution_tree: threshold", got=repr(threshold), allowed="0.0 to 1.0")
    summed = attributions.values.astype(np.float64).sum(1)
    if (empty := np.flatnonzero(summed.max((-2, -1)) <= 0)).size:
        raise NotDefined(f"attribution_tree: no weight of layer {empty[0]} adds to the target")
    others = summed * ~np.eye(summed.shape[-1], dtype=bool)
    root = int(others.sum((0, 2)).argmax())
    tree, labels = {root}, attributions.tokens["key"].labels
    lines: list[tuple[int, int, int, float]] = []
    for layer in reversed(range(len(summed))):
        kept = others[layer] > threshold * summed[layer].max()
        grown = [(i, j) for i in sorted(tree) for j in np.flatnonzero(kept[i]).tolist()]
        for i, j in sorted(grown, key=lambda edge: -others[layer][edge]):
            if j not in tree:
                tree.add(j)
                lines.append((int(attributions.coords["layer"][layer]), i, j, float(others[layer, i, j])))
    columns: dict[str, Any] = {
        "layer": [line[0] for line in lines],
        "parent": [line[1] for line in lines],
        "child": [line[2] for line in lines],
        "parent_token": [labels[line[1]] for line in lines],
        "child_token": [labels[line[2]] for line in lines],
        "attribution": [line[3] for line in lines],
    }
    about = {
        "layer": "of the edge",
        "parent": "position that reads",
        "child": "position that is read",
        "parent_token": "its piece",
        "child_token": "its piece",
        "attribution": "summed over heads",
    }
    meta = {**attributions.meta, "threshold": threshold, "root": root, "root_token": labels[root]}
    return Table(columns, about=about, meta=meta)
