"""TTCAV: which tokens carry a concept, named by examples, towards the explained number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead import linalg
from clearhead.errors import InputError, NotDefined
from clearhead.maps import Map
from clearhead.methods.registry import method, token_map
from clearhead.target import Target
from clearhead.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor

LEAST = 4
"""Texts that each side needs."""
CHANCE = 0.6
"""Share of held-out texts on the right side, below which the concept counts as not there."""


@method(
    paper="Eggen 2025, token-level testing with concept activation vectors; Kim et al. 2018, TCAV (arXiv 1711.11279)",
    dims=("key",),
    unit="target by unit of a state",
    laws=("changes sign with the concept", "zero where nothing is attended"),
    explains=True,
    cost="one pass forward and one back, the concept's texts traced once",
    can="Which tokens carry a concept that you name by examples towards the target.",
    cannot=("Whether the model uses that concept: a direction separates the examples, and others may do so as well."),
)
def ttcav(
    trace: Trace,
    *,
    concept: str | Sequence[str],
    rest: str | Sequence[str],
    layer: int | None = None,
    target: Target = None,
) -> Map:
    """Attention to each token times the derivative of the explained number along a concept; signed.

    S_t = a_t d_t || a || / || d ||: a_t is the attention of block `layer` to token t, mean over heads, from the
    position that the target reads (mean over all positions where it reads the mean); d_t = dF/dh_t . v, h_t the state
    that the block reads; v the unit normal of a logistic regression that separates the states of texts of the concept
    from those of others, each text the mean of its tokens. `layer`: None takes the last block.

    `concept`, `rest`: texts (4 or more each), or the name of a file with one text a line. Held-out texts must be told
    apart (`meta["accuracy"]`, five parts, chance .5, .6 asked), else there is no concept to speak of: refused.

    Returns (key,). Errors: InputError for texts, a file, a layer; NotDefined where the trace recorded no attention,
    where the concept is not told apart, where F does not change along it at all, and as `gradient_norm`; ProofError.
    """
    import torch

    layers = len(trace.layers)
    chosen = layers - 1 if layer is None else layer
    if type(chosen) is not int or not 0 <= chosen < layers:
        raise InputError("ttcav: layer", got=repr(layer), allowed=f"0 to {layers - 1}")
    weights = trace.layers[chosen].probabilities
    if weights is None:
        raise NotDefined("ttcav needs the attention itself", do='Trace the text with capture="full".')
    sides = {"concept": _texts("concept", concept), "rest": _texts("rest", rest)}
    goal = trace.model.goal(trace, target)
    vectors, which = _means(trace, sides, chosen)
    accuracy = linalg.told_apart(vectors, which)
    if accuracy < CHANCE:
        raise NotDefined(
            f"ttcav: at layer {chosen} the concept is not told apart from the rest",
            got=f"{accuracy:.2f} of the held-out texts right",
            allowed=f"{CHANCE} or more (chance .5)",
            do="Give more or clearer texts, or another layer.",
        )
    direction = linalg.concept_direction(vectors, which).to(trace.hidden)
    slope = linalg.gradient(trace.model.outcome(trace, goal, chosen), trace.hidden[chosen]) @ direction
    size = slope.norm()
    if not bool(slope.isfinite().all()) or size == 0:
        raise NotDefined("ttcav: the target does not change along the concept", got=f"a slope of {float(size)}")
    mean = weights.double().mean(0).to(slope)
    row = mean.mean(0) if goal.reads == "mean" else mean[0 if goal.reads == "first" else -1]
    found = row * slope * row.norm() / size
    options = {"concept": sides["concept"], "rest": sides["rest"], "layer": chosen}
    kept = token_map(trace, "ttcav", options, target, goal, found)
    return replace(kept, meta={**kept.meta, "accuracy": accuracy, "texts": torch.bincount(which).tolist()[::-1]})


def _texts(name: str, given: str | Sequence[str]) -> list[str]:
    """The texts themselves. Errors: InputError for a file that is not there, or too few texts."""
    if isinstance(given, str):
        path = Path(given)
        if not path.is_file():
            raise InputError(f"ttcav: {name}", got=repr(given), allowed="a list of texts, or a file with one a line")
        given = path.read_text("utf-8").splitlines()
    texts = [text for text in given if text.strip()]
    if len(texts) < LEAST:
        raise InputError(f"ttcav: {name}", got=f"{len(texts)} texts", allowed=f"{LEAST} or more")
    return texts


def _means(trace: Trace, sides: dict[str, list[str]], depth: int) -> tuple[Tensor, Tensor]:
    """(mean state of each text at a depth [text, width], 1 for the concept and 0 for the rest [text])."""
    import torch

    traces = trace.model.trace_many([*sides["concept"], *sides["rest"]])
    which = [1] * len(sides["concept"]) + [0] * len(sides["rest"])
    return torch.stack([one.hidden[depth].mean(0) for one in traces]), torch.tensor(which)
