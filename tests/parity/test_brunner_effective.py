"""Effective attention and ranks against the reference arrays: all heads of the demo model, a short and a long text."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import clearhead as ch

STORED = 2.0**-24
"""The reference's maps of the long text are stored in float32."""
ROUNDED = 16 * 2.0**-23
"""Of the model's own weights in a float32 pass: up to 8e-7 from the float64 reference on one processor, 1.13e-6 on
another."""


@pytest.fixture(scope="module")
def reference(shared: Path) -> Mapping[str, np.ndarray]:
    with np.load(shared / "reference" / "brunner_effective_attention.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def traces(shared: Path) -> dict[tuple[str, str], ch.Trace]:
    with np.load(shared / "reference" / "model.npz") as arrays:
        texts = {name: str(arrays[f"{name}_text"]) for name in ("T1", "T3")}
    models = {dtype: ch.load("demo", dtype=dtype) for dtype in ("float64", "float32")}
    return {(name, dtype): model.trace(text) for name, text in texts.items() for dtype, model in models.items()}


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", STORED), ("float32", ROUNDED)])
def test_maps(reference: Mapping[str, np.ndarray], traces: dict, dtype: str, tolerance: float) -> None:
    short, long = traces["T1", dtype], traces["T3", dtype]
    np.testing.assert_allclose(ch.effective_attention(short), reference["T1_eff"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(ch.effective_attention(long), reference["T3_eff"], rtol=0, atol=tolerance)
    kept = ch.effective_attention(short, row_sum=True)
    np.testing.assert_allclose(kept, reference["T1_eff_constrained"], rtol=0, atol=tolerance)
    kept = ch.effective_attention(long, row_sum=True)[[0, 5]]
    np.testing.assert_allclose(kept, reference["T3_eff_constrained_L0L5"], rtol=0, atol=tolerance)
    raw = ch.effective_attention(long, part="raw").values
    assert np.abs(raw - reference["T3_eff"]).max() > 0.1  # what the long text takes away


def test_float64_to_the_last_digits(reference: Mapping[str, np.ndarray], traces: dict) -> None:
    found = ch.effective_attention(traces["T3", "float64"]).values[0, :3]
    # 1e-12 of the norm of a row: the condition number of the values is below 30
    np.testing.assert_allclose(found, reference["T3_eff_L0_H0to2_f64"], rtol=0, atol=1e-12)
    kept = ch.effective_attention(traces["T3", "float64"], row_sum=True).values[0, :3]
    np.testing.assert_allclose(kept, reference["T3_eff_constrained_L0_H0to2_f64"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_ranks_of_every_head(reference: Mapping[str, np.ndarray], traces: dict, dtype: str) -> None:
    long = ch.attention_identifiability(traces["T3", dtype])
    assert len(long) == 72
    np.testing.assert_array_equal(long["rank"].reshape(6, 12), reference["T3_rank"])
    np.testing.assert_array_equal(100 - long["nullity_row_sum"].reshape(6, 12), reference["T3_rank_constrained"])
    assert set(long["rank"]) == {32}
    assert set(long["nullity_row_sum"]) == {100 - 33}
    assert set(long["verdict"]) == {"not identifiable"}
    short = ch.attention_identifiability(traces["T1", dtype])
    assert set(short["nullity"]) == set(short["nullity_row_sum"]) == {0}
    assert set(short["verdict"]) == {"identifiable"}


def test_without_probabilities(reference: Mapping[str, np.ndarray], traces: dict) -> None:
    model = traces["T3", "float64"].model
    trace = model.trace(traces["T3", "float64"].tokens.text, capture="outputs")
    assert trace.layers[0].probabilities is None
    np.testing.assert_allclose(ch.effective_attention(trace), reference["T3_eff"], rtol=0, atol=STORED)
    assert torch.equal(trace.layers[0].value, traces["T3", "float64"].layers[0].value)
