"""Nearest token vectors of MiniLM's hidden states against reference arrays (an exhaustive loop, float64)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clearhead as ch


@pytest.fixture(scope="module")
def model() -> ch.Model:
    return ch.load("demo", dtype="float64")


@pytest.mark.parametrize("text", ["T1", "T3"])
@pytest.mark.parametrize(("embedding", "point"), [("output", "postln"), ("sum", "preln")])
@pytest.mark.parametrize(("distance", "short"), [("cosine", "cos"), ("l2", "l2")])
def test_nearest_rate_and_margin(
    shared: Path, model: ch.Model, text: str, embedding: Any, point: str, distance: Any, short: str
) -> None:
    with np.load(shared / "reference" / "model.npz") as arrays:
        trace = model.trace(str(arrays[f"{text}_text"]))
    with np.load(shared / "reference" / "brunner_identifiability.npz") as arrays:
        nearest, rate, margin = (arrays[f"{text}_{what}_{short}_{point}"] for what in ("nn", "rate", "margin"))
    rates = ch.token_identifiability_naive(trace, distance=distance, embedding=embedding)
    each = ch.token_identifiability_naive(trace, distance=distance, embedding=embedding, per_token=True)
    assert (each["nearest"].reshape(nearest.shape) == nearest).all()
    assert np.abs(rates["rate"] - rate).max() < 1e-12
    assert (rates["strict_rate"] == rates["rate"]).all()  # positions make every token vector its own
    assert np.abs(each["margin"].reshape(margin.shape) - margin).max() < 1e-9
