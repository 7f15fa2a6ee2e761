"""Laws of Map and Table over random ones: files give them back, words lose nothing, choosing keeps labels."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clearhead.errors import InputError
from clearhead.maps import Map, Table
from clearhead.tokens import Tokens

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
ANY_DIMS = st.lists(st.sampled_from(["layer", "head", "query", "key", "target", "bound"]), unique=True, max_size=4)
TOKEN_DIMS = st.sampled_from(
    [["query"], ["key"], ["layer", "query", "key"], ["key", "head", "query"], ["query", "key"]]
)


@st.composite
def tokens(draw: st.DrawFn, most: int = 6) -> Tokens:
    """Template tokens around pieces cut anywhere: within words, over several words, some sharing a character."""
    text = draw(st.text("ab 门\u200d", min_size=1, max_size=8))
    cuts = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=most - 3))})
    spans: list[tuple[int, int] | None] = list(pairwise(cuts))
    if draw(st.booleans()):
        spans.append(spans[-1])
    template = draw(st.booleans())
    spans = [None, *spans] if template else spans
    n = len(spans)
    pieces = tuple(draw(TEXT) if span is None else text[slice(*span)] for span in spans)
    origin = tuple("template" if span is None else draw(st.sampled_from(["text", "typed"])) for span in spans)
    return Tokens(text, None, tuple(range(n)), pieces, tuple(spans), (0,) * n, origin)


@st.composite
def maps(draw: st.DrawFn, dims: Any = ANY_DIMS, dtypes: Any = ("float32", "float64", "int64")) -> Map:
    named = draw(dims)
    of = {dim: draw(tokens()) for dim in named if dim in ("query", "key")}
    sizes = {dim: len(of[dim]) if dim in of else 2 if dim == "bound" else draw(st.integers(1, 3)) for dim in named}
    shape = tuple(sizes.values())
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    numbers: dict[str, Any] = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else {}
    values = draw(hnp.arrays(dtype, shape, elements=hnp.from_dtype(dtype, **numbers)))
    stderr = draw(st.none() | hnp.arrays("float64", shape, elements=st.floats(0, 1e300)))
    coords = {dim: tuple(range(3, 3 + sizes[dim])) for dim in named if dim != "bound" and draw(st.booleans())}
    meta = draw(st.dictionaries(TEXT.filter(lambda name: name not in ("selected", "by_word")), JSON, max_size=3))
    return Map(values, tuple(named), tokens=of, unit=draw(TEXT), meta=meta, stderr=stderr, coords=coords)


KINDS = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": FLOATS,
    "bool": st.booleans(),
    "str": TEXT,
}


@st.composite
def tables(draw: st.DrawFn) -> Table:
    size = draw(st.integers(0, 4))
    columns: dict[str, list[Any]] = {}
    for name in draw(st.lists(TEXT, unique=True, min_size=1, max_size=4)):
        kind = KINDS[draw(st.sampled_from(sorted(KINDS)))]
        filled = draw(st.lists(kind | st.none() if draw(st.booleans()) else kind, min_size=size, max_size=size))
        columns[name] = [draw(kind), *filled] if all(item is None for item in filled) and size else filled
    longest = max(map(len, columns.values()))
    columns = {name: (items * longest)[:longest] if items else [0] * longest for name, items in columns.items()}
    return Table(
        columns, meta=draw(st.dictionaries(TEXT, JSON, max_size=2)), about={name: draw(TEXT) for name in columns}
    )


@given(maps())
@pytest.mark.parametrize("suffix", [".safetensors", ".parquet", ".json"])
def test_a_saved_map_comes_back_equal(suffix: str, m: Map) -> None:
    with tempfile.TemporaryDirectory() as folder:
        again = Map.load(m.save(Path(folder) / f"m{suffix}"))
    assert again.equals(m)
    assert again.values.tobytes() == m.values.tobytes()  # -0.0 and 0.0 apart, too


@given(tables())
@pytest.mark.parametrize("suffix", [".parquet", ".json"])
def test_a_saved_table_comes_back_equal(suffix: str, t: Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert Table.load(t.save(Path(folder) / f"t{suffix}")).equals(t)


@given(maps(), st.data())
@pytest.mark.parametrize("suffix", [".safetensors", ".parquet", ".json"])
def test_one_wrong_bit_is_never_another_map(suffix: str, m: Map, data: st.DataObject) -> None:
    """Refused, unless the bit says nothing (a tree of column statistics in Parquet, white space in a header)."""
    with tempfile.TemporaryDirectory() as folder:
        path = m.save(Path(folder) / f"m{suffix}")
        whole = bytearray(path.read_bytes())
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(whole)
        try:
            again = Map.load(path)
        except InputError as error:
            assert str(path) in str(error)  # noqa: PT017
        else:
            assert again.equals(m)


def pieces_of_words(labels: Tokens) -> list[list[tuple[int, float]]]:
    """The oracle: for each entry its pieces and the share of each, character by character."""
    words: list[set[int]] = []
    for i, char in enumerate(labels.text):
        if not char.isspace():
            if i == 0 or labels.text[i - 1].isspace():
                words.append(set())
            words[-1] |= {p for p, span in enumerate(labels.spans) if span is not None and span[0] <= i < span[1]}
    groups = [sorted(word) for word in words if word]
    groups += [[p] for p in range(len(labels)) if not any(p in word for word in words)]
    groups.sort(key=lambda group: group[0])
    return [[(p, 1 / max(1, sum(p in word for word in words))) for p in group] for group in groups]


@given(maps(TOKEN_DIMS, ("float64",)))
def test_by_word_is_sums_of_sources_and_means_of_targets(m: Map) -> None:
    """Against loops over characters; sums over sources stay, and so does the mean over targets."""
    scale = float(np.abs(m.values).max()) or 1.0
    m = Map(m.values / scale, m.dims, tokens=m.tokens, unit=m.unit, meta=m.meta, coords=m.coords)
    merged = m.by_word()
    right = m.values
    for dim in m.tokens:
        axis, groups = m.dims.index(dim), pieces_of_words(m.tokens[dim])
        rows = []
        for group in groups:
            total = sum(share * np.take(right, p, axis=axis) for p, share in group)
            rows.append(total / sum(share for _, share in group) if dim == "query" else total)
        right = np.stack(rows, axis=axis)
    atol = 64 * 2.0**-53  # sums of at most 8 x 8 numbers of size at most 1, each rounded once
    assert np.allclose(merged.values, right, rtol=0, atol=atol)
    if "key" in m.dims and "query" not in m.dims:
        assert np.allclose(merged.values.sum(-1), m.values.sum(-1), rtol=0, atol=atol)
    if "query" in m.dims:
        counts = [sum(share for _, share in group) for group in pieces_of_words(m.tokens["query"])]
        assert sum(counts) == pytest.approx(len(m.tokens["query"]))
        axes = tuple(m.dims.index(dim) for dim in m.tokens)
        weighed = np.moveaxis(merged.values, m.dims.index("query"), -1) @ np.array(counts)
        mean = (
            weighed.sum(-1) if m.dims == ("layer", "query", "key") else weighed.sum(0) if "key" in m.dims else weighed
        )
        assert np.allclose(mean, m.values.sum(axis=axes), rtol=0, atol=8 * atol)


@given(tokens(), st.integers(0, 2**32 - 1))
def test_rows_that_sum_to_one_still_do(labels: Tokens, seed: int) -> None:
    n = len(labels)
    values = np.random.default_rng(seed).dirichlet(np.ones(n), size=n)
    merged = Map(values, ("query", "key"), tokens={"query": labels, "key": labels}, unit="weight", meta={}).by_word()
    assert np.allclose(merged.values.sum(axis=1), 1, rtol=0, atol=16 * 2.0**-52)  # two sums of at most 8 terms below 1
    assert merged.tokens["query"] == merged.tokens["key"]


@given(maps(), st.data())
def test_choosing_is_numpys_and_keeps_labels(m: Map, data: st.DataObject) -> None:
    chosen: dict[str, int | list[int]] = {}
    for dim, size in m.sizes.items():
        positions = st.lists(st.integers(0, size - 1), min_size=1, unique=True)
        what = data.draw(st.none() | st.integers(0, size - 1) | positions)
        if what is not None:
            chosen[dim] = what
    right, dims = m.values, list(m.dims)
    for axis in reversed(range(len(dims))):
        if dims[axis] in chosen:
            right = np.take(right, chosen[dims[axis]], axis=axis)
    by_label = {d: m.coords[d][p] if isinstance(p, int) else [m.coords[d][i] for i in p] for d, p in chosen.items()}
    for part in (m.sel(**by_label), m[tuple(chosen.get(dim, slice(None)) for dim in dims)]):
        assert np.array_equal(part.values, right)
        assert part.dims == tuple(dim for dim in dims if not isinstance(chosen.get(dim), int))
        for dim in part.dims:
            kept = chosen.get(dim, list(range(m.sizes[dim])))
            assert isinstance(kept, list)
            assert part.coords[dim] == tuple(m.coords[dim][i] for i in kept)
            if dim in m.tokens:
                assert part.tokens[dim].pieces == tuple(m.tokens[dim].pieces[i] for i in kept)
        for dim, at in chosen.items():
            if isinstance(at, int):
                assert part.meta["selected"][dim] == m.coords[dim][at] or m.sizes[dim] == 1
