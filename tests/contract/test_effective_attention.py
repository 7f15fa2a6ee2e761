"""The identifiability methods on traces of tiny models of every family: their laws, and oracles of another make."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from nullspace_oracle import effective

import clearhead as ch
from clearhead import errors
from tests.tiny import RECIPES, tiny, words

# In float64 a fast way may cost a row 4e-9 of its norm. Families that keep softmax or norms in float32 are decided at
# float32: there it may cost 4 x 1.2e-7, and rows sum to 1 within that.
TOLERANCE = {"float64": 4e-9, "float32": 1e-6}
TOKENS = 12


def traced(family: str, dtype: torch.dtype = torch.float64, text: str | None = None, **options: Any) -> ch.Trace:
    changes = {"sliding_window": 9} if family == "mistral" else {}  # wider than d_v, or every row is identifiable
    return ch.load(tiny(family, dtype, **changes)).trace(text or words(TOKENS), **options)


def oracle(trace: ch.Trace, *, row_sum: bool = False) -> np.ndarray:
    """Per layer and head, over V H itself, as the paper has it."""
    found = []
    for index, layer in enumerate(trace.layers):
        weight = trace.model.output_weight(index).double()
        group = len(weight) // len(layer.value)
        written = torch.stack([layer.value[head // group].double() @ weight[head] for head in range(len(weight))])
        bounds = list(layer.visible.start), list(layer.visible.stop)
        found.append(effective(layer.probabilities, written, *bounds, trace.eps, row_sum=row_sum))
    return np.stack(found)


@pytest.mark.parametrize("family", RECIPES)
def test_equals_the_definition(family: str) -> None:
    trace = traced(family)
    raw = ch.effective_attention(trace, part="raw")
    for row_sum in (False, True):
        found = ch.effective_attention(trace, row_sum=row_sum)
        np.testing.assert_allclose(
            found.values, oracle(trace, row_sum=row_sum), rtol=0, atol=TOLERANCE[trace.precision]
        )
        null = ch.effective_attention(trace, part="null", row_sum=row_sum)
        np.testing.assert_array_equal(null.values, raw.values - found.values)
        if row_sum:
            assert np.abs(null.values.sum(-1)).max() < 10 * TOLERANCE[trace.precision]
    assert np.abs(null.values).max() > 0.01
    for index, layer in enumerate(trace.layers):
        hidden = ~layer.visible.mask().numpy()
        assert not ch.effective_attention(trace).values[index][:, hidden].any()
    assert found.meta["method"] == "effective_attention"
    assert found.meta["options"] == {"part": "effective", "row_sum": True}
    assert found.meta["rounding"] < 1e-2
    assert found.dims == ("layer", "head", "query", "key")


@pytest.mark.parametrize("family", RECIPES)
def test_certificate_equals_ranks_by_numpy(family: str) -> None:
    trace = traced(family)
    table = ch.attention_identifiability(trace, per_query=True).to_pandas()
    last = ch.attention_identifiability(trace).to_pandas()
    seen = set()
    for index, layer in enumerate(trace.layers):
        weight = trace.model.output_weight(index).double()
        group = len(weight) // len(layer.value)
        for head in range(len(weight)):
            written = (layer.value[head // group].double() @ weight[head]).numpy()
            size = np.sqrt((layer.value[head // group].double().numpy() ** 2).mean())
            rows = table[(table["layer"] == index) & (table["head"] == head)].sort_values("query")
            for query, row in enumerate(rows.to_dict("records")):
                keys = slice(layer.visible.start[query], layer.visible.stop[query])
                count = keys.stop - keys.start
                tolerance = max(count, layer.value.shape[-1]) * trace.eps
                with_sum = np.column_stack([written[keys], np.full(count, size)])
                nullity, nullity_row_sum = (
                    count - np.linalg.matrix_rank(m, rtol=tolerance) for m in (written[keys], with_sum)
                )
                assert (row["keys"], row["rank"]) == (count, count - nullity)
                assert (row["nullity"], row["nullity_row_sum"]) == (nullity, nullity_row_sum)
                assert row["kv_head"] == head // group
                assert row["d_v"] == layer.value.shape[-1]
                if row["verdict"] != "uncertain":
                    assert (row["verdict"] == "identifiable") == (nullity_row_sum == 0)
                seen.add(row["verdict"])
            mine = last[(last["layer"] == index) & (last["head"] == head)].to_dict("records")
            assert len(mine) == 1
            assert {name: row[name] for name in mine[0]} == mine[0]
    assert seen >= {"not identifiable"}
    assert ("identifiable" in seen) == any(0 < stop < 5 for layer in trace.layers for stop in layer.visible.stop)


def with_values(trace: ch.Trace, values: torch.Tensor) -> ch.Trace:
    """The same trace with other values in its first layer."""
    part = trace.part()
    layers = (replace(part.layers[0], value=values), *part.layers[1:])
    return replace(trace, parts={part.name: replace(part, layers=layers)})


@pytest.mark.parametrize(
    ("singular", "verdict", "rank"),
    [
        ((1, 0.5, 0.1, 0.05), "not identifiable", 4),
        ((1, 0.5, 0.1, 1e-9), "not identifiable", 3),
        ((1, 0.5, 0.1, 1e-5), "not identifiable", 4),  # nothing is left to drop: 14 keys, width 4
        ((1, 0.5, 1e-5, 1e-7), "uncertain", 3),
        ((1, 0.5, 3e-6, 1e-6), "uncertain", 3),
    ],
)
def test_verdict_near_the_threshold(singular: tuple[float, ...], verdict: str, rank: int) -> None:
    """Tolerance at float32 and 14 keys: 14 x 1.2e-7 = 1.7e-6."""
    trace = traced("bert", torch.float32)
    random = torch.Generator().manual_seed(0)
    u = torch.linalg.qr(torch.randn(3, 14, 4, generator=random, dtype=torch.float64))[0]
    w = torch.linalg.qr(torch.randn(3, 4, 4, generator=random, dtype=torch.float64))[0]
    values = u @ torch.diag(torch.tensor(singular, dtype=torch.float64)) @ w
    table = ch.attention_identifiability(with_values(trace, values))
    assert set(table["rank"][:3]) == {rank}
    assert set(table["verdict"][:3]) == {verdict}
    np.testing.assert_allclose(table["smallest_kept"][:3], singular[rank - 1], rtol=1e-6)
    np.testing.assert_allclose(table["largest_dropped"][:3], (*singular, 0)[rank], rtol=1e-3)


def test_nearly_dependent_values_are_no_certificate() -> None:
    """Full row rank by a hair: uncertain, not identifiable."""
    trace = traced("bert", torch.float32, text=words(1))
    values = torch.eye(3, 4, dtype=torch.float64).repeat(3, 1, 1)
    assert set(ch.attention_identifiability(with_values(trace, values))["verdict"][:3]) == {"identifiable"}
    values[:, 2] = values[:, 1] * (1 + 0) + 1e-5 * values[:, 2]
    assert set(ch.attention_identifiability(with_values(trace, values))["verdict"][:3]) == {"uncertain"}


@pytest.mark.parametrize("family", ["bert", "llama", "mistral", "gemma3_text"])
def test_interval_and_farthest(family: str) -> None:
    trace = traced(family)
    slack = 1e-7 + TOLERANCE[trace.precision]
    for query in (1, TOKENS - 1):
        layer = trace.layers[1]
        row = layer.probabilities[2, query].double().numpy()
        start, stop = layer.visible.start[query], layer.visible.stop[query]
        interval = ch.identifiable_interval(trace, layer=1, head=2, query=query)
        low, high = interval.sel(bound="low").values, interval.sel(bound="high").values
        assert (low <= row).all()
        assert (row <= high).all()
        assert not interval.values[:, :start].any()
        assert not interval.values[:, stop:].any()
        table = ch.attention_identifiability(trace, per_query=True).to_pandas()
        one = table[(table["layer"] == 1) & (table["head"] == 2) & (table["query"] == query)].iloc[0]
        assert interval.meta["nullity_row_sum"] == one["nullity_row_sum"]
        far = ch.farthest_attention(trace, layer=1, head=2, query=query)
        moved = far.meta["total_variation"]
        assert moved == pytest.approx(np.abs(far.values - row).sum() / 2, abs=1e-12)
        if one["nullity_row_sum"] == 0:
            np.testing.assert_array_equal(low, high)
            np.testing.assert_array_equal(far.values, row)
            continue
        assert (high - low).max() > 0.01
        assert (far.values >= 0).all()
        assert (low - slack <= far.values).all()
        assert (far.values <= high + slack).all()
        assert far.values.sum() == pytest.approx(row.sum(), abs=slack)
        weight = trace.model.output_weight(1).double()
        written = (layer.value[2 // (len(weight) // len(layer.value))].double() @ weight[2]).numpy()
        residual = np.linalg.norm((far.values - row) @ written) / np.linalg.norm(row @ written)
        assert far.meta["residual"] == pytest.approx(residual, abs=1e-14)
        assert residual < 1e-6
        assert moved > 0.02
    again = ch.farthest_attention(trace, layer=1, head=2, query=query)
    assert again.equals(far)
    fewer = ch.farthest_attention(trace, layer=1, head=2, query=query, starts=1)
    assert fewer.meta["total_variation"] <= moved


@pytest.mark.parametrize("capture", ["full", "outputs"])
@pytest.mark.parametrize("family", RECIPES)
def test_summary_equals_sums_of_the_map(family: str, capture: str) -> None:
    full = traced(family)
    trace = full if capture == "full" else traced(family, capture=capture)
    table = ch.effective_attention_summary(trace)
    found, raw = oracle(full), ch.effective_attention(full, part="raw").values.astype(np.float64)
    # Recorded outputs are rounded, and magnified by the ratio of singular values that rows are divided by.
    rounding = max(TOLERANCE[trace.precision], 4 * float(table.meta["rounding"]))
    shape, tokens = found.shape[:3], found.shape[2]
    np.testing.assert_allclose(table["norm_squared"].reshape(shape), (raw**2).sum(-1), rtol=0, atol=rounding)
    np.testing.assert_allclose(
        table["norm_squared_effective"].reshape(shape), (found**2).sum(-1), rtol=0, atol=rounding
    )
    np.testing.assert_allclose(table["received_effective"].reshape(shape), found.sum(2), rtol=0, atol=tokens * rounding)
    share = 1 - (found**2).sum(-1) / (raw**2).sum(-1)
    np.testing.assert_allclose(table["null_space_share"].reshape(shape), share, rtol=0, atol=tokens * rounding)
    assert share.max() > 0.01
    assert rounding < 1e-2


@pytest.mark.parametrize("family", RECIPES)
def test_effective_attention_from_outputs(family: str) -> None:
    full, trace = traced(family), traced(family, capture="outputs")
    found = ch.effective_attention(trace)
    rounding = max(TOLERANCE[trace.precision], 4 * float(found.meta["rounding"]))
    np.testing.assert_allclose(found.values, oracle(full), rtol=0, atol=rounding)
    for part in ("null", "raw"):
        with pytest.raises(errors.NotDefined, match='capture="full"'):
            ch.effective_attention(trace, part=part)
    with pytest.raises(errors.NotDefined, match='capture="full"'):
        ch.identifiable_interval(trace, layer=0, head=0, query=0)
    assert len(ch.attention_identifiability(trace)) == len(ch.attention_identifiability(full))


def test_long_text_of_the_demo_model(demo_model: Any) -> None:
    """200 tokens in float32: the sums are those of the map, also without probabilities."""
    text = " ".join(f"{word} number {k}" for k, word in enumerate(["river", "bank", "clerk", "boat", "song"] * 20))
    text = " ".join(text.split()[:190])
    full = demo_model.trace(text)
    found = ch.effective_attention(full).values.astype(np.float64)
    assert found.shape[-1] > 190
    for trace in (full, demo_model.trace(text, capture="outputs")):
        table = ch.effective_attention_summary(trace)
        # 32-term products of rounded numbers, condition number below 100: 1e-7 x 100, and 200 rows a column
        np.testing.assert_allclose(table["norm_squared_effective"], (found**2).sum(-1).ravel(), rtol=0, atol=1e-5)
        np.testing.assert_allclose(table["received_effective"], found.sum(2).ravel(), rtol=0, atol=2e-4)
        assert table["null_space_share"].min() >= 0
        assert table["null_space_share"].max() <= 1
        assert 0.2 < table["null_space_share"].mean() < 0.95


def test_half_precision_is_refused() -> None:
    trace = traced("bert", torch.bfloat16)
    for refused in (ch.effective_attention, ch.attention_identifiability, ch.effective_attention_summary):
        with pytest.raises(errors.NotDefined, match=r"14 value vectors .*bfloat16.*dtype=float32"):
            refused(trace)
    with pytest.raises(errors.NotDefined, match="bfloat16"):
        ch.identifiable_interval(trace, layer=0, head=0, query=0)
    with pytest.raises(errors.NotDefined, match="bfloat16"):
        ch.farthest_attention(trace, layer=0, head=0, query=0)
    assert ch.effective_attention(trace, part="raw").values.dtype == np.float32


@pytest.mark.parametrize("place", [{"layer": 2}, {"layer": -1}, {"head": 3}, {"query": 14}, {"query": True}])
def test_a_place_that_is_not_there(place: dict[str, int]) -> None:
    trace = traced("bert")
    where = {"layer": 0, "head": 0, "query": 0} | place
    for asked in (ch.identifiable_interval, ch.farthest_attention):
        with pytest.raises(errors.InputError, match=rf"{asked.__name__}: {next(iter(place))}.*allowed: 0 to"):
            asked(trace, **where)
    with pytest.raises(errors.InputError, match="starts"):
        ch.farthest_attention(trace, layer=0, head=0, query=0, starts=0)
    with pytest.raises(errors.InputError, match="'nul'; allowed: effective, null, raw"):
        ch.effective_attention(trace, part="nul")  # type: ignore[arg-type]


def test_origin_names_text_model_and_proof() -> None:
    one, two = traced("bert", text="w1 w2 w3"), ch.load(tiny("bert", torch.float64)).trace("w1 w2", "w3")
    first, second = (ch.effective_attention(trace).meta for trace in (one, two))
    assert first["text_sha256"] != second["text_sha256"]
    assert first["proof"]["precision"] == "float64"
    assert first["proof"]["worst"] <= first["proof"]["tolerance"]
    assert "1908.04211" in first["paper"]
    assert "seed" not in first
    assert ch.farthest_attention(one, layer=0, head=0, query=0, seed=7).meta["seed"] == 7
