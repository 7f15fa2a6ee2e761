"""Rollout, flow and value zeroing of MiniLM against the authors' own code, in float64."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import clearhead as ch

TEXTS = pytest.mark.parametrize("text", ["T1", "T3"])


@pytest.fixture(scope="module")
def traces(shared: Path) -> dict[str, ch.Trace]:
    model = ch.load("demo", dtype="float64")
    with np.load(shared / "reference" / "model.npz") as arrays:
        return {name: model.trace(str(arrays[f"{name}_text"])) for name in ("T1", "T3")}


def reference(shared: Path, name: str) -> Mapping[str, np.ndarray]:
    with np.load(shared / "reference" / f"{name}.npz") as arrays:
        return dict(arrays)


@TEXTS
def test_rollout(shared: Path, traces: dict[str, ch.Trace], text: str) -> None:
    arrays = reference(shared, "attention_flow")
    np.testing.assert_allclose(ch.attention_rollout(traces[text]).values, arrays[f"{text}_rollout"], rtol=1e-9)
    plain = ch.effective_attention(traces[text], part="raw").rollout(residual=0.0)
    np.testing.assert_allclose(plain.values, arrays[f"{text}_rollout_nores"], rtol=1e-9)


def test_flow(shared: Path, traces: dict[str, ch.Trace]) -> None:
    arrays = reference(shared, "attention_flow")
    found = ch.attention_flow(traces["T1"])
    np.testing.assert_allclose(found.values, arrays["T1_flow_raw"], rtol=1e-9)
    published = found.values / found.values.sum(-1, keepdims=True)
    np.testing.assert_allclose(published, arrays["T1_flow"], rtol=1e-9)
    last = ch.attention_flow(traces["T1"], layer=5)
    assert 0.6 < last.meta["trivial"] < 0.8  # 71 % of the last layer's, as published


@TEXTS
def test_value_zeroing(shared: Path, traces: dict[str, ch.Trace], text: str) -> None:
    """Their 1 - cos rounds to 1e-16 a number (several operations: 1e-14 here), which rows that sum to 1e-5 divide."""
    arrays = reference(shared, "value_zeroing")
    raw, noise = arrays[f"{text}_raw_f64"], 1e-14
    np.testing.assert_allclose(ch.value_zeroing(traces[text], raw=True).values, raw, rtol=1e-9, atol=noise)
    found, sums = ch.value_zeroing(traces[text]), raw.sum(-1, keepdims=True)
    n, rolled = len(traces[text].tokens), found.rollout().values
    # The noise of a distance, and of a sum of n of them, over the row's sum.
    assert (np.abs(found.values - arrays[f"{text}_scores_f64"]) <= noise / sums * (1 + n * found.values)).all()
    worst = float(6 * (noise / sums * (1 + n)).max())  # six layers
    assert worst < 1e-6
    np.testing.assert_allclose(rolled, arrays[f"{text}_rollout_f64"], rtol=0, atol=worst)
