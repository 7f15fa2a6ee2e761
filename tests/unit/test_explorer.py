"""What stands behind the page: the joint query-key map, words, small pictures, parts of maps, options, extras."""

from __future__ import annotations

import base64
import sys
from typing import Any

import numpy as np
import pytest
import synthetic
import torch

import clearhead as ch
from clearhead.errors import InputError, MissingExtra, NotDefined
from clearhead.explorer import catalogue, data, findings, querykey, session
from clearhead.methods.registry import Method, find, methods
from clearhead.trace import Layer, Visible


def layer_of(seed: int, n: int = 30, heads: int = 4, kv_heads: int = 2, width: int = 6) -> Layer:
    rng = np.random.default_rng(seed)
    query = torch.tensor(rng.standard_normal((heads, n, width)) + 2)
    key = torch.tensor(3 * rng.standard_normal((kv_heads, n, width)) - 1)
    nothing = torch.zeros(0)
    return Layer(nothing, nothing, Visible((0,) * n, (n,) * n, n), query=query, key=key)


# ------------------------------------------------------------------------------------------------ queries and keys


@pytest.mark.parametrize("head", [0, 1, 2, 3])
def test_the_joint_map_against_plain_loops(head: int) -> None:
    """Move, scale, project, each written out; the best scale by a fine grid."""
    layer = layer_of(head)
    assert layer.query is not None
    assert layer.key is not None
    q, k = layer.query[head].numpy(), layer.key[head // 2].numpy()  # two query heads share a key head
    k = k - k.mean(axis=0) + q.mean(axis=0)

    def agreement(c: float) -> float:
        logits = [a @ b for a in q for b in k]
        distances = [-np.sqrt(((c * a - b / c) ** 2).sum()) for a in q for b in k]
        return float(np.corrcoef(logits, distances)[0, 1])

    found = querykey.points(layer, head)
    best = max(agreement(c) for c in np.geomspace(0.1, 10, 120))
    assert found.agreement == pytest.approx(agreement(found.scale), abs=1e-12)
    assert found.agreement >= best - 1e-4
    joint = np.concatenate([found.scale * q, k / found.scale])
    joint = joint - joint.mean(axis=0)
    u, s, _ = np.linalg.svd(joint, full_matrices=False)
    expected = u[:, :2] * s[:2]
    at = found.at.reshape(-1, 2)
    for axis in (0, 1):  # the sign of an axis is a choice
        assert min(np.abs(at[:, axis] - sign * expected[:, axis]).max() for sign in (1, -1)) < 1e-9
    assert found.kept == pytest.approx((s[:2] ** 2).sum() / (s**2).sum(), rel=1e-12)
    np.testing.assert_allclose(found.norms[1], np.linalg.norm(layer.key[head // 2], axis=1))


def test_neither_step_changes_the_attention() -> None:
    """The claim of the page; the control: moving the keys by a different amount each does."""
    layer = layer_of(7)
    assert layer.query is not None
    assert layer.key is not None
    q, k = layer.query[0].numpy(), layer.key[0].numpy()
    c = querykey.points(layer, 0).scale

    def softmax(logits: np.ndarray) -> np.ndarray:
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    moved = k + (q.mean(axis=0) - k.mean(axis=0))
    np.testing.assert_allclose(softmax((c * q) @ (moved / c).T), softmax(q @ k.T), atol=1e-12)
    assert np.abs(softmax(q @ (k * 1.1).T) - softmax(q @ k.T)).max() > 1e-3


@pytest.mark.parametrize("kind", ["umap", "tsne"])
def test_other_projections_put_every_point_somewhere(kind: Any) -> None:
    pytest.importorskip({"umap": "umap", "tsne": "sklearn"}[kind], reason="the extra `projection` is not installed")
    found = querykey.points(layer_of(1), 0, kind)
    assert found.at.shape == (2, 30, 2)
    assert np.isfinite(found.at).all()
    assert found.kept is None
    np.testing.assert_array_equal(found.at, querykey.points(layer_of(1), 0, kind).at)  # seeded


def test_query_key_maps_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = torch.zeros(0)
    bare = Layer(nothing, nothing, Visible((0,), (1,), 1))
    with pytest.raises(NotDefined, match="no queries"):
        querykey.points(bare, 0)
    with pytest.raises(InputError, match="allowed: 0 to 3"):
        querykey.points(layer_of(0), 4)
    with pytest.raises(InputError, match="pca, umap, tsne"):
        querykey.points(layer_of(0), 0, "other")  # pyright: ignore[reportArgumentType]
    with pytest.raises(NotDefined, match="Use pca"):
        querykey.points(layer_of(0, n=4), 0, "tsne")
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(MissingExtra, match=r"pip install clearhead\[projection\]"):
        querykey.points(layer_of(0), 0, "umap")


def test_a_head_whose_pairs_are_all_alike_has_a_map() -> None:
    layer = layer_of(0)
    assert layer.query is not None
    from dataclasses import replace

    same = replace(layer, query=torch.ones_like(layer.query), key=torch.ones(2, 30, 6, dtype=torch.float64))
    found = querykey.points(same, 0)
    assert (found.scale, found.agreement) == (1.0, 0.0)
    assert np.abs(found.at).max() < 1e-9


# ------------------------------------------------------------------------------------------------ what the page is told


def test_distance_from_raw_is_one_minus_the_correlation() -> None:
    found = synthetic.findings(tokens=14, causal=True)
    raw, effective = found.raw.values, found.effective.values
    for layer in range(4):
        for head in range(6):
            seen = [(i, j) for i in range(14) for j in range(i + 1)]
            pair = [[values[layer, head, i, j] for i, j in seen] for values in (raw, effective)]
            assert found.distance[layer, head] == pytest.approx(1 - np.corrcoef(*pair)[0, 1], abs=1e-12)


def test_a_correlation_of_equal_weights_is_not_told_as_a_number() -> None:
    assert np.isnan(findings.correlation(np.ones(5), np.arange(5.0)))


def test_words_hold_the_weights_of_by_word() -> None:
    tokens = synthetic.tokens_of(["one", "two", "three"])
    entries, weights = tokens.by_word()
    told = data.words_of(tokens)
    assert [one["shown"] for one in told] == list(entries.labels)
    dense = weights.toarray()
    for row, one in enumerate(told):
        assert dict(map(tuple, one["pieces"])) == {i: w for i, w in enumerate(dense[row]) if w}


def test_small_pictures_against_plain_loops() -> None:
    found = synthetic.findings(tokens=50, layers=1, heads=2)
    told = data.thumbs_of(found)
    side = told["side"]
    codes = np.frombuffer(base64.b64decode(told["effective"]), np.int8).reshape(1, 2, side, side)
    raw, effective = found.raw.values[0, 1], found.effective.values[0, 1]
    edges = np.linspace(0, 50, side + 1).astype(int)
    for i in range(0, side, 5):
        for j in range(0, side, 7):
            cells = [
                effective[q, k] / max(np.abs(raw[q]).max(), np.abs(effective[q]).max())
                for q in range(edges[i], edges[i + 1])
                for k in range(edges[j], edges[j + 1])
            ]
            assert codes[0, 1, i, j] / 127 == pytest.approx(max(cells, key=abs), abs=0.5 / 127 + 1e-9)


def test_probes_count_the_attention_maps_of_long_texts() -> None:
    from types import SimpleNamespace

    def trace(tokens: int, width: int, heads: int) -> Any:
        layer = SimpleNamespace(head_output=torch.zeros(heads, 1, 1))
        return SimpleNamespace(hidden=torch.zeros(3, tokens, width), layers=(layer,))

    assert findings.probes_for(trace(20, 384, 12)) == 16
    assert findings.probes_for(trace(2000, 20, 4)) == 0  # narrow, but 2,000 x 2,000 attention weights a head


# ------------------------------------------------------------------------------------------------ methods and options


def test_every_map_by_layer_query_and_key_is_pickable() -> None:
    shapes = {("layer", "query", "key"), ("layer", "head", "query", "key")}
    assert set(catalogue.pickable()) == {
        name for name, one in methods().items() if one.returns == "map" and one.dims in shapes
    }


@pytest.mark.parametrize("name", ["identifiable_interval", "token_identifiability_naive", "nothing"])
def test_what_the_page_cannot_show_is_refused(name: str) -> None:
    with pytest.raises(InputError):
        catalogue.check_pickable(name)


def test_a_method_that_needs_an_option_says_which() -> None:
    def targeted(trace: Any, *, target: int) -> None: ...

    method = Method("targeted", targeted, "", "", "map", ("layer", "query", "key"), "", ())
    assert catalogue.why_not(method) == "needs the option target"
    assert catalogue.why_not(find("effective_attention")) is None


def test_options_from_json_get_their_types() -> None:
    method = find("hidden_token_attribution")
    given = {"probes": None, "norm": "spectral", "debias": False, "seed": 3}
    assert session.typed_options(method, given) == given
    with pytest.raises(InputError, match="probes"):
        session.typed_options(method, {"probes": "many"})
    with pytest.raises(InputError, match="no such option"):
        session.typed_options(method, {"layer": 1})
    assert session.map_id("m", {}) == "m"
    assert session.map_id("m", {"a": 1}) != session.map_id("m", {"a": 2})


def test_parts_of_a_map() -> None:
    values = np.random.default_rng(0).standard_normal((2, 3, 4, 5))
    found = session.numbers(values, layer=1, head=2, query=None)
    np.testing.assert_array_equal(found, values[1, 2].astype(np.float32))
    found = session.numbers(values, layer=None, head=0, query=3)
    np.testing.assert_array_equal(found, values[:, 0, 3].astype(np.float32))
    for wrong in ({"layer": 2}, {"head": 3}, {"layer": None}, {"query": 0}, {"layer": None, "query": 4}):
        with pytest.raises(InputError):
            session.numbers(values, **({"layer": 0, "head": 0, "query": None} | wrong))


# ------------------------------------------------------------------------------------------------ extras, doors


@pytest.mark.parametrize("missing", ["uvicorn", "starlette"])
def test_serve_without_the_extra_says_how_to_get_it(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from clearhead.cli import serve

    for name in [name for name in sys.modules if name.split(".")[0] == missing or name == "clearhead.explorer.server"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra, match=r"pip install clearhead\[explorer\]"):
        serve(model=["demo"])


def test_explore_without_the_extra_says_how_to_get_it(demo_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "clearhead.explorer.widget", raising=False)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(MissingExtra, match=r"pip install clearhead\[explorer\]"):
        ch.explore(demo_model.trace("The cat."))


def test_a_taken_port_is_refused_before_a_model_is_loaded() -> None:
    import socket

    from clearhead.cli import check_port

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(InputError, match="cannot be used"):
            check_port("127.0.0.1", other.getsockname()[1])


def test_a_trace_shows_itself_and_escapes_its_text(demo_model: Any) -> None:
    shown = demo_model.trace("<script>alert(1)</script>")._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert 'sandbox=""' in shown
    assert "<script" not in shown
    assert "largest relative error" in shown
