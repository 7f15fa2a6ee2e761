"""Norms, mixing ratios, GlobEnc, ALTI and DecompX of MiniLM against the authors' own code, in float64, two texts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification

import clearhead as ch

RELATIVE = 1e-9
TEXTS = pytest.mark.parametrize("text", ["T1", "T3"])


@pytest.fixture(scope="module")
def classifier(shared: Path) -> ch.Model:
    """The demo model with the reference's classifier on it."""
    demo = ch.load("demo", dtype="float64")
    hf = BertForSequenceClassification(demo.config).double().eval()
    hf.bert.load_state_dict(demo.hf.state_dict())
    with np.load(shared / "reference" / "classifier_head.npz") as head, torch.no_grad():
        hf.classifier.weight.copy_(torch.tensor(head["weight"]))
        hf.classifier.bias.copy_(torch.tensor(head["bias"]))
    return ch.load((hf, demo.tokenizer))


@pytest.fixture(scope="module")
def traces(shared: Path, classifier: ch.Model) -> dict[str, ch.Trace]:
    with np.load(shared / "reference" / "model.npz") as arrays:
        return {name: classifier.trace(str(arrays[f"{name}_text"])) for name in ("T1", "T3")}


def reference(shared: Path, name: str) -> Mapping[str, np.ndarray]:
    with np.load(shared / "reference" / f"{name}.npz") as arrays:
        return dict(arrays)


def close(found: Any, expected: np.ndarray, relative: float = RELATIVE) -> None:
    """Relative to each number; where the reference is an exact 0, so must ours be."""
    np.testing.assert_allclose(np.asarray(found), expected, rtol=relative, atol=0)


def rolled(maps: np.ndarray) -> np.ndarray:
    """Plain products: layer l holds M_l ... M_0."""
    found = [maps[0]]
    for layer in maps[1:]:
        found.append(layer @ found[-1])
    return np.stack(found)


@TEXTS
def test_norms_and_mixing_ratios(shared: Path, traces: dict[str, ch.Trace], text: str) -> None:
    arrays, trace = reference(shared, "norm_analysis"), traces[text]
    close(ch.vector_norms(trace), arrays[f"{text}_2020_summed_afx_norm_f64"])
    close(ch.residual_norms(trace), arrays[f"{text}_2021_attnresln_n_f64"])
    close(ch.residual_norms(trace, norm=False), arrays[f"{text}_2021_attnres_n_f64"])
    kinds: dict[str, Any] = {"attn_n": "Attn-N", "attnres_n": "AttnRes-N", "attnresln_n": "AttnResLn-N"}
    for name, kind in kinds.items():
        close(ch.mixing_ratio(trace, kind=kind), arrays[f"{text}_2021_{name}_ratio_f64"])
    heads = ch.vector_norms(trace, per_head=True)
    if text == "T1":
        close(heads, arrays["T1_2020_afx_norm_f64"])
    else:  # stored in float32
        close(heads[[0, 3, 5]], arrays["T3_2020_afx_norm_L0L3L5_f32"], 2.0**-24)


@TEXTS
def test_globenc(shared: Path, traces: dict[str, ch.Trace], text: str) -> None:
    arrays = reference(shared, "globenc")
    found = ch.globenc(traces[text]).values
    close(found, arrays[f"{text}_n_enc_f64"])
    products = rolled(found)
    assert products.max() > 1e4  # they grow
    close(products, arrays[f"{text}_globenc_rollout_f64"])


@TEXTS
def test_alti(shared: Path, traces: dict[str, ch.Trace], text: str) -> None:
    """c is a difference of two L1 norms of some hundreds: 1e-9 of the largest share, not of a share of 1e-6."""
    arrays = reference(shared, "alti")
    published = ch.alti(traces[text], variant="published").values
    np.testing.assert_allclose(published, arrays[f"{text}_contributions_f64"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(rolled(published), arrays[f"{text}_rollout_f64"], rtol=0, atol=1e-9)
    assert ((published == 0) == (arrays[f"{text}_contributions_f64"] == 0)).mean() > 0.9999  # clipped alike
    moved = np.abs(ch.alti(traces[text]).values - published).max()
    assert 1e-5 < moved < 4e-4  # what their eps does


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "nobias": {"bias": None},
    "gelu_la": {"slope": "GeLU_LA"},
    "norm": {"bias": "norm"},
    "nofn": {"feed_forward": False},
}


@pytest.mark.parametrize(
    ("text", "name"), [*(("T1", name) for name in CONFIGURATIONS), ("T3", "default"), ("T3", "nobias")]
)
def test_decompx_after_each_layer(shared: Path, traces: dict[str, ch.Trace], text: str, name: str) -> None:
    arrays = reference(shared, "decompx")
    found = ch.decompx(traces[text], variant="published", **CONFIGURATIONS[name])
    close(found, arrays[f"{text}_{name}_f64_aggregated_norm"])
    if name == "default" and text == "T1":
        exact = ch.decompx(traces[text]).values
        moved = np.abs(exact / arrays[f"{text}_{name}_f64_aggregated_norm"] - 1).max()
        assert 0 < moved < 1e-8  # what their 1e-12 does


@pytest.mark.parametrize(("text", "name"), [*(("T1", name) for name in list(CONFIGURATIONS)[:4]), ("T3", "default")])
def test_decompx_of_the_logits(shared: Path, traces: dict[str, ch.Trace], text: str, name: str) -> None:
    expected = reference(shared, "decompx")[f"{text}_{name}_f64_classifier"].T
    found = ch.decompx(traces[text], of="logits", variant="published", **CONFIGURATIONS[name])
    # signed numbers near 0: relative to the largest
    np.testing.assert_allclose(found.values, expected, rtol=0, atol=RELATIVE * np.abs(expected).max())
    if name != "nobias":
        np.testing.assert_allclose(found.values.sum(1), found.meta["logits"], rtol=0, atol=1e-10)
    logits = {"T1": [-0.09716, 0.01378], "T3": [-0.07666, 0.01912]}
    np.testing.assert_allclose(found.meta["logits"], logits[text], atol=5e-6)


@TEXTS
def test_decompx_of_single_blocks(shared: Path, traces: dict[str, ch.Trace], text: str) -> None:
    arrays = reference(shared, "decompx")
    found = ch.decompx(traces[text], of="blocks", variant="published").values
    close(found, arrays[f"{text}_perlayer_f64_encoder_norm"])
    if f"{text}_rollout_f64_aggregated_norm" in arrays:
        close(rolled(found), arrays[f"{text}_rollout_f64_aggregated_norm"])


def test_decompx_vectors(shared: Path, traces: dict[str, ch.Trace]) -> None:
    """The parts themselves, and that they sum to the last state."""
    from clearhead import linalg

    trace, parts = traces["T1"], None
    for layer in range(6):
        parts = linalg.carry(trace.replay(layer), parts, linalg.Rules(guard=1e-12))
    assert parts is not None
    expected = reference(shared, "decompx")["T1_default_f64_aggregated_vec_last"]
    np.testing.assert_allclose(parts, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(parts.sum(1), trace.hidden[6], rtol=0, atol=1e-11)


def test_mixing_ratio_by_weights(traces: dict[str, ch.Trace]) -> None:
    """No array of the authors: their definition, and half of it with the residual."""
    trace = traces["T1"]
    weights = np.stack([layer.probabilities.numpy().mean(0) for layer in trace.layers])
    expected = 1 - weights.diagonal(axis1=1, axis2=2)
    close(ch.mixing_ratio(trace, kind="Attn-W"), expected, 1e-12)
    close(ch.mixing_ratio(trace, kind="AttnRes-W"), expected / 2, 1e-12)
