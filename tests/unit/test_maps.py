"""Map and Table: what they hold, refuse, show, and how they are written."""

from __future__ import annotations

import copy
import html
import json
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clearhead.errors import InputError, MissingExtra, NotDefined
from clearhead.maps import Map, Table
from clearhead.maps.files import whole_file
from clearhead.tokens import Tokens

META = {"method": "effective_attention", "model": "a model", "options": {"row_sum": False}}


def tokens(*pieces: str) -> Tokens:
    """[CLS], the pieces (a word each, but "##x" belongs to the word before), [SEP]."""
    text, spans = "", []
    for piece in pieces:
        text += "" if piece.startswith("##") or not text else " "
        spans.append((len(text), len(text) + len(piece.removeprefix("##"))))
        text += piece.removeprefix("##")
    n = len(pieces) + 2
    origin = ("template", *["text"] * len(pieces), "template")
    return Tokens(text, None, tuple(range(n)), ("[CLS]", *pieces, "[SEP]"), (None, *spans, None), (0,) * n, origin)


JUMP = tokens("we", "jump", "##ed", "up")


def attention(stderr: bool = False, at: Tokens = JUMP, dtype: str = "float64") -> Map:
    """(layer 2, head 3, query, key) with rows that sum to 1."""
    n = len(at)
    values = np.random.default_rng(0).random((2, 3, n, n))
    values /= values.sum(-1, keepdims=True)
    error = np.full(values.shape, 0.01) if stderr else None
    of = {"query": at, "key": at}
    return Map(
        values.astype(dtype), ("layer", "head", "query", "key"), tokens=of, unit="weight", meta=META, stderr=error
    )


def table() -> Table:
    return Table(
        {
            "layer": np.arange(3),
            "share": [0.5, 0.25, None],
            "verdict": ["identifiable", "<b>", "é门"],
            "kept": np.array([True, False, True]),
            "rank": [3, None, 4],
        },
        meta=META,
        about={"layer": "block", "share": "a share", "verdict": "words", "kept": "is kept", "rank": "a count"},
    )


# ------------------------------------------------------------------ what a Map holds and refuses


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_is_refused(value: float) -> None:
    values = np.zeros((2, 2))
    values[1, 0] = value
    with pytest.raises(InputError, match=r"Map.values: 1 values are not finite, the first at \(1, 0\); got"):
        Map(values, ("layer", "head"), tokens={}, unit="x", meta={})
    with pytest.raises(InputError, match=r"Map.stderr: 1 values are not finite"):
        Map(np.zeros((2, 2)), ("layer", "head"), tokens={}, unit="x", meta={}, stderr=values)
    with pytest.raises(InputError, match=r"Table column 'x'; got NaN or infinity"):
        Table({"x": [0.0, value]}, meta={}, about={"x": "x"})
    with pytest.raises(InputError, match=r"Map.meta must fit into JSON"):
        Map(np.zeros(2), ("layer",), tokens={}, unit="x", meta={"worst": value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"dims": ("layer", "head", "query")},
            r"Map.dims; got \('layer', 'head', 'query'\); allowed: one name for each",
        ),
        ({"dims": ("layer", "heads", "query", "key")}, r"out of layer, head, query, key, target, bound"),
        ({"dims": ("layer", "layer", "query", "key")}, r"Map.dims"),
        ({"tokens": {"query": JUMP}}, r"Map.tokens: tokens of each axis; got {'query': 6}; allowed: .*'key': 6"),
        ({"tokens": {"query": JUMP, "key": tokens("a")}}, r"Map.tokens.*got {'query': 6, 'key': 3}"),
        ({"stderr": np.zeros((2, 3, 6, 5))}, r"Map.stderr; got shape \(2, 3, 6, 5\).*allowed: shape \(2, 3, 6, 6\)"),
        ({"stderr": np.full((2, 3, 6, 6), -1.0)}, r"Map.stderr.*least -1.0; allowed: .*nothing below 0"),
        ({"coords": {"layer": (0,)}}, r"Map.coords: labels of layer; got 0; allowed: 2 different labels"),
        ({"coords": {"layer": (4, 4)}}, r"2 different labels"),
        ({"coords": {"target": (0,)}}, r"Map.coords: labels of; got target; allowed: layer, head, query, key"),
        ({"values": np.zeros((2, 3, 6, 6), dtype="complex64")}, r"Map.values: dtype; got complex64; allowed: float32"),
        ({"values": np.zeros((2, 3, 6, 6), dtype=bool)}, r"Map.values: dtype; got bool"),
        ({"meta": {"seed": object()}}, r"Map.meta must fit into JSON; got <object"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    whole = attention()
    given = {name: getattr(whole, name) for name in ("values", "dims", "tokens", "unit", "meta")} | change
    with pytest.raises(InputError, match=message):
        Map(**given)


def test_an_empty_axis_is_refused() -> None:
    with pytest.raises(InputError, match="labels of head; got ; allowed: at least one"):
        Map(np.zeros((1, 0)), ("layer", "head"), tokens={}, unit="x", meta={})


def test_a_map_is_frozen_and_its_own() -> None:
    given = np.zeros((2, 3))
    m = Map(given, ("layer", "head"), tokens={}, unit="x", meta={"a": (1, np.int64(2))})
    given[0, 0] = 5
    assert m.values[0, 0] == 0
    with pytest.raises(ValueError, match="read-only"):
        m.values[0, 0] = 1
    with pytest.raises(AttributeError):
        m.unit = "y"  # pyright: ignore[reportAttributeAccessIssue]
    assert m.meta == {"a": [1, 2]}
    assert m.coords == {"layer": (0, 1), "head": (0, 1, 2)}
    for twin in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        assert twin.equals(m)


def test_equality_sees_every_difference() -> None:
    m = attention(stderr=True)
    parts: dict[str, Any] = {n: getattr(m, n) for n in ("values", "dims", "tokens", "unit", "meta", "stderr", "coords")}
    assert Map(**parts).equals(m)
    other = tokens("we", "jump", "##ed", "off")
    for name, value in {
        "values": m.values + 1e-16,
        "dims": ("head", "layer", "query", "key"),
        "tokens": {"query": JUMP, "key": other},
        "unit": "nats",
        "meta": {},
        "stderr": None,
        "coords": {"layer": (3, 4)},
    }.items():
        changed = {**parts, name: value}
        if name == "dims":
            changed |= {"values": m.values.swapaxes(0, 1), "stderr": m.stderr.swapaxes(0, 1), "coords": {}}
        assert not Map(**changed).equals(m), name
    assert not Map(**{**parts, "values": m.values.astype("float32")}).equals(m)
    assert not m.equals(m.values)


def test_numbers_that_nobody_can_change_are_not_copied() -> None:
    given = np.zeros((2, 3))
    parts: Any = {"dims": ("layer", "head"), "tokens": {}, "unit": "x", "meta": {}}
    view = given[:]
    view.flags.writeable = False  # `given` may still be written to
    assert not np.shares_memory(Map(view, **parts).values, given)
    given.flags.writeable = False
    m = Map(given, **parts)
    assert m.values is given
    assert replace(m, unit="y").values is given
    assert Map(np.asfortranarray(given), **parts).values.flags.c_contiguous


def test_a_map_is_numbers_to_numpy() -> None:
    m = attention()
    assert np.array_equal(np.asarray(m), m.values)
    assert not np.asarray(m).flags.writeable
    assert np.array(m).flags.writeable
    assert np.asarray(m, dtype="float32").dtype == np.float32
    assert float(m[1, 2, 3, 4]) == m.values[1, 2, 3, 4]
    with pytest.raises(InputError, match=r"float\(Map\): axes are left; got layer, head, query, key"):
        float(m)


# ------------------------------------------------------------------ choosing


def test_sel_keeps_labels_and_says_what_was_selected() -> None:
    part = attention(stderr=True).sel(layer=1, head=[2, 0], query=slice(1, 3), key=-1)
    assert (part.dims, part.coords) == (("head", "query"), {"head": (2, 0), "query": (1, 2)})
    assert part.tokens["query"].pieces == ("we", "jump")
    assert part.meta["selected"] == {"layer": 1, "head": [2, 0], "query": [1, 2], "key": 5, "key_token": "[SEP]"}
    assert np.array_equal(part.values, attention().values[1][[2, 0]][:, 1:3, -1])
    assert part.stderr is not None
    assert part.stderr.shape == (2, 2)
    again = part.sel(head=0, query=2)
    assert float(again) == attention().values[1, 0, 2, 5]
    assert again.meta["selected"]["query_token"] == "jump"


def test_sel_takes_labels_and_not_positions() -> None:
    m = Map(np.arange(3.0), ("layer",), tokens={}, unit="x", meta={}, coords={"layer": (2, 5, 9)})
    assert float(m.sel(layer=5)) == 1
    assert m.sel(layer=slice(3, None)).values.tolist() == [1, 2]
    assert m.sel(layer=slice(None, -1)).values.tolist() == [0, 1]
    assert m.sel(layer=slice(-2, None)).values.tolist() == [1, 2]
    assert m.sel(layer=slice(None)).equals(m)
    assert m[1:].coords == {"layer": (5, 9)}
    bounds = Map(np.array([[0.0, 1.0], [2.0, 3.0]]), ("bound", "layer"), tokens={}, unit="x", meta={})
    assert bounds.sel(bound="high").values.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"layers": 0}, r"Map.sel: no such axis; got layers; allowed: layer, head, query, key"),
        ({"layer": 2}, r"Map.sel: no such layer; got 2; allowed: 0, 1"),
        ({"layer": -3}, r"no such layer; got -3"),
        ({"layer": "0"}, r"no such layer; got '0'"),
        ({"layer": True}, r"Map.sel: layer; got True; allowed: a label, a list of labels, a slice"),
        ({"layer": 0.0}, r"Map.sel: layer; got 0.0"),
        ({"key": []}, r"Map: nothing is left of key; allowed: 0 to 5"),
        ({"key": slice(4, 2)}, r"Map: nothing is left of key"),
        ({"key": slice(0, 4, 2)}, r"a slice of whole numbers without a step"),
        ({"key": [1, 1]}, r"labels of key; got 1, 1; allowed: 2 different labels"),
        ({"key": np.array([True] * 6)}, r"no such key; got .*True"),
    ],
)
def test_sel_refuses(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        attention().sel(**wanted)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ((0, 0, 0, 0, 0), r"Map\[...\]; got \(0, 0, 0, 0, 0\); allowed: at most 4 positions: layer, head, query, key"),
        ((..., ...), r"at most 4 positions"),
        (2, r"Map\[...\]: no such layer; got 2; allowed: -2 to 1"),
        ("layer", r"no such layer; got 'layer'"),
        (None, r"Map\[...\]: layer; got None; allowed: a position, a slice, a list"),
        (slice(5, 9), r"nothing is left of layer"),
    ],
)
def test_brackets_refuse(index: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        attention()[index]


# ------------------------------------------------------------------ words


def test_by_word_sums_over_sources_and_averages_over_targets() -> None:
    """By hand: "jump" + "##ed" are one word, at 2 and 3 of six."""
    m = attention(stderr=True)
    words = m.by_word()
    assert words.tokens["query"].labels == ("[CLS]", "we", "jumped", "up", "[SEP]")
    assert words.coords["key"] == (0, 1, 2, 3, 4)
    a = m.values[1, 2]
    assert words.values[1, 2, 1, 2] == pytest.approx(a[1, 2] + a[1, 3], abs=1e-16)
    assert words.values[1, 2, 2, 1] == pytest.approx((a[2, 1] + a[3, 1]) / 2, abs=1e-16)
    assert words.values[1, 2, 2, 2] == pytest.approx((a[2, 2] + a[2, 3] + a[3, 2] + a[3, 3]) / 2, abs=1e-16)
    assert words.meta == {
        **META,
        "by_word": ["query", "key"],
        "stderr": "upper bound: the errors of a word's pieces added as if fully correlated",
    }
    assert words.stderr is not None
    assert words.stderr[0, 0, 1, 2] == pytest.approx(0.02)  # two errors of 0.01 that may be one and the same
    assert words.stderr[0, 0, 2, 1] == pytest.approx(0.01)
    assert words.by_word().equals(words)


def test_by_word_over_one_axis_and_of_whole_numbers() -> None:
    counts = Map(np.arange(6), ("key",), tokens={"key": JUMP}, unit="count", meta={})
    assert counts.by_word().values.tolist() == [0, 1, 5, 4, 5]
    means = Map(np.arange(6, dtype="float32"), ("query",), tokens={"query": JUMP}, unit="x", meta={}).by_word()
    assert means.values.tolist() == [0, 1, 2.5, 4, 5]
    assert means.values.dtype == np.float32


def test_by_word_refuses_what_would_be_wrong() -> None:
    with pytest.raises(InputError, match=r"Map.by_word: only a part of key is left\. Call by_word\(\) before sel\(\)"):
        attention().sel(key=slice(0, 3)).by_word()
    with pytest.raises(InputError, match=r"Map.by_word: no token axis"):
        attention().sel(query=0, key=0).by_word()
    bounds = Map(np.zeros((2, 6)), ("bound", "key"), tokens={"key": JUMP}, unit="weight", meta={})
    for m in (bounds, bounds.sel(bound="high")):
        with pytest.raises(NotDefined, match="bounds of single pieces do not add up"):
            m.by_word()
    assert attention().sel(query=2).by_word().sizes == {"layer": 2, "head": 3, "key": 5}


# ------------------------------------------------------------------ to other libraries


def test_to_pandas_is_one_row_a_number() -> None:
    m = attention(stderr=True)
    frame = m.to_pandas()
    assert list(frame) == ["layer", "head", "query", "query_token", "key", "key_token", "value", "stderr"]
    assert len(frame) == m.values.size
    row = frame.query("layer == 1 and head == 2 and query == 3 and key == 1").iloc[0]
    assert (row.query_token, row.key_token, row.value, row.stderr) == ("ed", "we", m.values[1, 2, 3, 1], 0.01)
    assert frame.attrs == {**META, "unit": "weight"}
    assert attention()[0, 0, 0, 0].to_pandas().value.tolist() == [attention().values[0, 0, 0, 0]]


def test_to_xarray_keeps_labels_unit_and_error() -> None:
    array = attention(stderr=True).sel(layer=1).to_xarray()
    assert array.dims == ("head", "query", "key")
    assert array.sel(head=2, query=3, key=1).item() == attention().values[1, 2, 3, 1]
    assert array.key_token.values.tolist() == list(JUMP.labels)
    assert (array.name, array.attrs["units"]) == ("effective_attention", "weight")
    assert json.loads(array.attrs["clearhead"])["selected"] == {"layer": 1}
    assert (array.stderr == 0.01).all()


def test_to_xarray_without_xarray_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(MissingExtra, match=r"pip install clearhead\[xarray\]"):
        attention().to_xarray()


# ------------------------------------------------------------------ pictures


@pytest.fixture
def pyplot() -> Any:
    """matplotlib without a window; its figures are closed afterwards."""
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    yield plt
    plt.close("all")


def test_plot_labels_both_axes_and_names_the_unit(pyplot: Any) -> None:
    m = attention(at=tokens("$x$", "<b>", "up", "##on"))
    ax = m.plot(layer=1, head=2)
    assert [text.get_text() for text in ax.get_xticklabels()] == ["[CLS]", "$x$", "<b>", "up", "on", "[SEP]"]
    assert not any(text.get_parse_math() for text in [*ax.get_xticklabels(), *ax.get_yticklabels(), ax.title])
    assert np.array_equal(ax.get_images()[0].get_array(), m.values[1, 2])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key (source)", "query (target)")
    assert ax.get_title() == "effective_attention: layer 1, head 2"
    figure = ax.get_figure()
    assert figure is not None
    assert [other.get_ylabel() for other in figure.axes if other is not ax] == ["weight"]
    figure.canvas.draw()  # labels that mathematics would choke on are drawn


def test_plot_takes_the_last_layer_and_asks_for_the_head(pyplot: Any) -> None:
    ax = attention().plot(head=0)
    assert np.array_equal(ax.get_images()[0].get_array(), attention().values[1, 0])
    assert ax.get_title() == "effective_attention: head 0, layer 1"
    with pytest.raises(InputError, match=r"Map.plot; got layer \(2\), head \(3\), query \(6\), key \(6\).*head="):
        attention().plot()
    with pytest.raises(InputError, match="got one number"):
        attention()[0, 0, 0, 0].plot()


def test_plot_of_negative_values_is_white_at_zero(pyplot: Any) -> None:
    m = Map(np.array([[-1.0, 0.5], [0.0, 3.0]]), ("layer", "head"), tokens={}, unit="x", meta={})
    assert m.plot().get_images()[0].get_clim() == (-3.0, 3.0)


def test_plot_of_one_axis_draws_a_curve_and_its_error_on_the_axes_given(pyplot: Any) -> None:
    own = pyplot.figure().add_subplot()
    m = attention(stderr=True)[0, 1, 2]
    assert m.plot(own) is own
    assert own.lines[0].get_ydata().tolist() == m.values.tolist()
    assert own.get_ylabel() == "weight"
    assert [text.get_text() for text in own.get_legend().get_texts()] == ["± 1 standard error"]
    bounds = Map(
        np.array([[0.0] * 6, [1.0] * 6]), ("bound", "key"), tokens={"key": JUMP}, unit="weight", meta={}
    ).plot()
    assert [text.get_text() for text in bounds.get_legend().get_texts()] == ["lowest to highest"]


class Tags(HTMLParser):
    """Every tag, and the text between them."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.said = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), name
            assert name not in ("id", "class", "src"), name
            assert name != "href" or str(value).startswith("data:image/png;base64,")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said += data


def inside(shown: str) -> str:
    """The page in the frame that a notebook is given: sandboxed, without the right to run anything."""
    frame = re.fullmatch(r'<iframe srcdoc="([^"]*)" sandbox="" title="clearhead" style="[^"]*"></iframe>', shown)
    assert frame
    return html.unescape(frame[1])


def test_html_escapes_tokens_and_brings_nothing_in() -> None:
    m = attention(at=tokens("<script>alert(1)</script>", "&amp;", '"q"', "'"))
    page = Tags(inside(m._repr_html_()).removeprefix('<!doctype html><meta charset="utf-8">'))
    assert not page.open
    assert set(page.tags) == {"style", "div", "table", "tr", "th", "td", "svg", "text", "image"}
    assert "<script>alert" in page.said  # as text, cut to 14 characters
    assert "&amp;" in page.said
    assert "layer 2 × head 3 × query 6 × key 6" in page.said
    assert "shown: layer 1, head 0 (counted from 0)" in page.said
    one = inside(m[0, 0, 0, 0]._repr_html_())
    assert "none (one number)" in one
    assert "<svg" not in one


def test_html_picture_has_one_pixel_a_value(tmp_path: Path) -> None:
    import base64

    from matplotlib.image import imread

    m = Map(np.array([[0.0, 1.0], [0.5, 0.25]]), ("layer", "head"), tokens={}, unit="x", meta={})
    picture = re.findall(r"base64,([^\"]+)", inside(m._repr_html_()))[0]
    file = tmp_path / "a.png"
    file.write_bytes(base64.b64decode(picture))
    pixels = (imread(file) * 255).round().astype(int)
    assert pixels.shape == (2, 2, 3)
    assert pixels[0].tolist() == [[247, 251, 255], [8, 48, 107]]  # the ends of the scale
    assert pixels[1, 0].tolist() == [107, 174, 214]  # its middle
    assert len(attention(at=tokens(*["x"] * 300))._repr_html_()) < 400_000


def test_repr_says_what_it_is() -> None:
    assert repr(attention(stderr=True)[1, 0, 2]).splitlines()[:2] == ["Map", "  axes:           key 6"]
    for words in (
        "unit:",
        "weight",
        "effective_attention",
        "a model",
        "layer 1, head 0, query 2 “jump”",
        "at most 0.01",
    ):
        assert words in repr(attention(stderr=True)[1, 0, 2])
    assert repr(table()).startswith("Table of 3 rows (effective_attention, a model)")
    assert "&lt;b&gt;" in table()._repr_html_()
    assert "<b>share</b>: a share" in table()._repr_html_()


# ------------------------------------------------------------------ files


@pytest.mark.parametrize("suffix", [".safetensors", ".parquet", ".json"])
def test_a_map_comes_back_equal(tmp_path: Path, suffix: str) -> None:
    for i, m in enumerate([attention(stderr=True), attention(dtype="float32"), attention().by_word().sel(head=1)]):
        path = m.save(tmp_path / f"{i}{suffix}")
        assert Map.load(path).equals(m)
        assert Map.load(path).values.dtype == m.values.dtype


@pytest.mark.parametrize("suffix", [".parquet", ".json"])
def test_a_table_comes_back_equal(tmp_path: Path, suffix: str) -> None:
    again = Table.load(table().save(tmp_path / f"t{suffix}"))
    assert again.equals(table())
    assert list(again.columns) == list(table().columns)
    assert again["rank"].tolist() == [3, None, 4]


def test_parquet_is_a_plain_table_to_others(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.read_parquet(attention(dtype="float32").save(tmp_path / "m.parquet"))
    assert list(frame) == ["layer", "head", "query", "query_token", "key", "key_token", "value"]
    assert frame.value.dtype == np.float32
    assert frame.key_token[:6].tolist() == list(JUMP.labels)


def test_csv_says_unit_and_origin_in_every_row(tmp_path: Path) -> None:
    import pandas as pd

    m = attention(at=tokens('"', ",", "门", "="))
    frame = pd.read_csv(m.save(tmp_path / "m.csv"), keep_default_na=False)
    assert frame.value.tolist() == m.values.ravel().tolist()
    assert frame.key_token[:6].tolist() == list(m.tokens["key"].labels)
    assert set(frame.unit) == {"weight"}
    assert set(frame.model) == {"a model"}
    rows = pd.read_csv(table().save(tmp_path / "t.csv"))
    assert rows.verdict.tolist() == ["identifiable", "<b>", "é门"]
    assert rows.method.tolist() == ["effective_attention"] * 3


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    attention().save(path)
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"m.json' exists already\. Choose another name, or pass overwrite=True"):
        attention(stderr=True).save(path)
    assert path.read_bytes() == before
    attention(stderr=True).save(path, overwrite=True)
    assert Map.load(path).equals(attention(stderr=True))
    assert [p.name for p in tmp_path.iterdir()] == ["m.json"]


def test_suffix_and_folder_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"got '.npy'; allowed: .safetensors, .parquet, .json, .csv"):
        attention().save(tmp_path / "m.npy")
    with pytest.raises(InputError, match=r"suffix for a table; got '.safetensors'; allowed: .parquet, .json, .csv"):
        table().save(tmp_path / "t.safetensors")
    with pytest.raises(InputError, match=r"No folder .*absent' to write 'm.json' into"):
        attention().save(tmp_path / "absent" / "m.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(InputError, match=r"exists already"):
        attention().save(tmp_path / "folder.json", overwrite=True)
    with pytest.raises(InputError, match=r"got '.csv'; allowed: .safetensors, .parquet, .json\. A .csv file keeps no"):
        Map.load(tmp_path / "m.csv")
    with pytest.raises(InputError, match=r"No file .*m.json"):
        Map.load(tmp_path / "m.json")
    assert [p.name for p in tmp_path.iterdir()] == ["folder.json"]


@pytest.mark.parametrize("suffix", [".safetensors", ".parquet", ".json"])
def test_a_damaged_or_foreign_file_is_refused_by_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"m{suffix}"
    whole = attention().save(path).read_bytes()
    for bad in (b"", b"not at all", whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(bad)
        with pytest.raises(InputError, match=rf"m{suffix}' cannot be read as a map of clearhead; got \w+: "):
            Map.load(path)


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    import pandas as pd
    from safetensors.numpy import save_file

    (tmp_path / "a.json").write_text('{"value": [1, 2]}')
    save_file({"value": np.zeros(2)}, tmp_path / "a.safetensors")
    pd.DataFrame({"value": [1.0]}).to_parquet(tmp_path / "a.parquet")
    for path in tmp_path.iterdir():
        with pytest.raises(InputError, match=rf"{path.name}' cannot be read as a map of clearhead"):
            Map.load(path)
    with pytest.raises(
        InputError, match=r"cannot be read as a table .*got InputError: format and kind; got \(1, 'map'\)"
    ):
        Table.load(attention().save(tmp_path / "b.parquet"))


def test_a_changed_number_or_origin_is_noticed(tmp_path: Path) -> None:
    path = attention().save(tmp_path / "m.json")
    text = path.read_text()
    for old, new in (("a model", "b model"), ('"unit": "weight"', '"unit": "nats"'), ("0.1", "0.2")):
        assert old in text
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(InputError, match=r"m.json' is damaged or was changed"):
            Map.load(path)


def test_rows_in_another_order_are_noticed(tmp_path: Path) -> None:
    """A table sorted anew would be the same numbers at other places."""
    import pyarrow.parquet as parquet

    path = attention().save(tmp_path / "m.parquet")
    rows = parquet.read_table(path)
    parquet.write_table(rows.sort_by("value"), path)
    with pytest.raises(InputError, match="is damaged or was changed"):
        Map.load(path)


def test_a_writer_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    path.write_bytes(b"old")

    def fail() -> None:
        with whole_file(path, overwrite=True) as handle:
            handle.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("old", [None, "whole"])
def test_a_writer_that_is_killed_leaves_no_half_file(tmp_path: Path, old: str | None) -> None:
    """The process ends between two writes, without any chance to clean up."""
    path = tmp_path / "m.json"
    if old is not None:
        path.write_text(old)
    program = (
        "import os, sys; from clearhead.maps.files import whole_file\n"
        f"with whole_file({str(path)!r}, overwrite=True) as handle:\n"
        "    handle.write(b'half' * 100_000); handle.flush(); os._exit(9)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert run.returncode == 9, run.stderr
    assert (path.read_text() if path.exists() else None) == old
    left = [p.name for p in tmp_path.iterdir() if p != path]
    assert len(left) == 1  # so it was killed in the middle of writing
    assert re.fullmatch(r"\.m\.json\.[0-9a-f]{8}\.part", left[0])
    attention().save(path, overwrite=True)
    assert Map.load(path).equals(attention())


# ------------------------------------------------------------------ Table


def test_a_table_holds_one_kind_a_column() -> None:
    t = table()
    assert [t[name].dtype.name for name in t.columns] == ["int64", "object", "object", "bool", "object"]
    assert len(t) == 3
    frame = t.to_pandas()
    assert [str(frame[name].dtype) for name in ("layer", "share", "kept", "rank")] == [
        "int64",
        "Float64",
        "bool",
        "Int64",
    ]
    assert frame.share.isna().tolist() == [False, False, True]
    assert frame.attrs["about"]["share"] == "a share"
    assert Table({"x": [1, 2.5]}, meta={}, about={"x": "x"})["x"].dtype == np.float64
    with pytest.raises(ValueError, match="read-only"):
        t["layer"][0] = 5


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [1, "a"]}, r"Table column 'x'; got int, str; allowed: one kind"),
        ({"x": [1, True]}, r"got bool, int"),
        ({"x": [None, None]}, r"got only None"),
        ({"x": [object()]}, r"got object"),
        ({"x": [2**70]}, r"a whole number beyond 64 bits"),
        ({"x": [1], "y": [1, 2]}, r"Table: columns; got {'x': 1, 'y': 2}; allowed: one or more, of equal length"),
        ({}, r"Table: columns; got {}"),
    ],
)
def test_a_table_refuses(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Table(columns, meta={}, about=dict.fromkeys(columns, "something"))


def test_a_column_needs_its_meaning() -> None:
    with pytest.raises(InputError, match=r"Table.about; got \[\]; allowed: a meaning for each of \['x'\]"):
        Table({"x": [1]}, meta={}, about={})
    with pytest.raises(InputError, match=r"Table: no such column; got 'ranks'; allowed: layer, share, verdict"):
        table()["ranks"]


def test_tables_differ_by_value_kind_order_and_meaning() -> None:
    t = table()

    def changed(**columns: Any) -> Table:
        return Table({**t.columns, **columns}, meta=t.meta, about=t.about)

    assert changed().equals(t)
    assert not changed(layer=[0, 1, 3]).equals(t)
    assert not changed(layer=[0.0, 1.0, 2.0]).equals(t)
    assert not changed(rank=[3.0, None, 4.0]).equals(t)
    assert not Table(dict(reversed(t.columns.items())), meta=t.meta, about=t.about).equals(t)
    assert not Table(t.columns, meta={}, about=t.about).equals(t)
    assert not Table(t.columns, meta=t.meta, about={**t.about, "rank": "?"}).equals(t)


def test_maps_load_no_heavy_library() -> None:
    program = "import clearhead.maps, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "clearhead.maps.map" in loaded
    assert not {"torch", "pandas", "pyarrow", "matplotlib", "xarray", "scipy", "safetensors"} & set(loaded)
