"""ATTATTR and relevance of a classifier on MiniLM against the authors' own code, in float64."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

import clearhead as ch

TEXTS = pytest.mark.parametrize("text", ["T1", "T3"])


def reference(shared: Path, name: str) -> Mapping[str, np.ndarray]:
    with np.load(shared / "reference" / f"{name}.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def traces(shared: Path) -> dict[str, ch.Trace]:
    demo: Any = ch.load("demo", dtype="float64")
    hf = tf.BertForSequenceClassification(demo.hf.config).double().eval()
    hf.bert.load_state_dict(demo.hf.state_dict())
    head = reference(shared, "classifier_head")
    with torch.no_grad():
        hf.classifier.weight.copy_(torch.tensor(head["weight"]))
        hf.classifier.bias.copy_(torch.tensor(head["bias"]))
    model, texts = ch.load((hf, demo.tokenizer)), reference(shared, "model")
    return {name: model.trace(str(texts[f"{name}_text"])) for name in ("T1", "T3")}


@TEXTS
def test_relevance(shared: Path, traces: dict[str, ch.Trace], text: str) -> None:
    arrays = reference(shared, "mm_explainability")
    for name, target in (("argmax", None), ("class0", "class:0"), ("class1", 1)):
        expected = arrays[f"{text}_R_{name}"]
        found = ch.relevance(traces[text], target=target)
        np.testing.assert_allclose(found.values[-1], expected, rtol=1e-9, atol=1e-15)


def test_attention_attribution_as_published(shared: Path, traces: dict[str, ch.Trace]) -> None:
    arrays = reference(shared, "attattr")
    found = ch.attention_attribution(traces["T1"], variant="published")
    expected = arrays["T1_attattr_f64"]
    np.testing.assert_allclose(found.values, expected, rtol=1e-9, atol=1e-9 * abs(expected).max())
    changes = [told["change"] for told in found.meta["completeness"]]
    np.testing.assert_allclose(changes, arrays["T1_completeness_delta"], rtol=1e-6)
    assert 0.05 < max(told["error"] for told in found.meta["completeness"]) < 0.06  # off by 6 %, as published


def test_attention_attribution_of_a_long_text(shared: Path, traces: dict[str, ch.Trace]) -> None:
    """The last layer alone: 64 points on 100 tokens take long."""
    arrays = reference(shared, "attattr")
    found = ch.attention_attribution(traces["T3"], variant="published", layer=5)
    expected = arrays["T3_attattr_L0L3L5_f32"][2]
    np.testing.assert_allclose(found.values[0], expected, rtol=1e-6, atol=1e-6 * abs(expected).max())
    sums = arrays["T3_layer_head_sum"][5]
    np.testing.assert_allclose(found.values[0].sum((-2, -1)), sums, rtol=1e-9, atol=1e-9 * abs(sums).max())


def test_the_default_rule_is_nearer_to_many_points(shared: Path, traces: dict[str, ch.Trace]) -> None:
    arrays = reference(shared, "attattr")
    found = ch.attention_attribution(traces["T1"])
    many, few = arrays["T1_attattr_f64_1024pts"], arrays["T1_attattr_f64"]
    # A left sum of 1024 points is still off by 1 / 16 of what 64 are.
    assert abs(found.values - many).max() < 0.1 * abs(few - many).max()
    for told in found.meta["completeness"]:
        assert told["error"] < 1e-3
        assert told["evaluations"] <= 16
