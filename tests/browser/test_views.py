"""The views that follow a choice: methods, words, special tokens, depth, query-key map, exports, links, keyboard."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic
from oklab import oklab_colour

from clearhead.explorer import data
from clearhead.explorer.findings import Findings
from clearhead.explorer.querykey import points
from clearhead.faithfulness.result import Comparison
from clearhead.maps import Table
from clearhead.methods.registry import methods

pytestmark = pytest.mark.browser
Open = Callable[..., Any]
WIDE, NARROW = (1280, 900), (360, 740)
SEVERE = ("critical", "serious", "moderate")


def figures(one: Any, strip: int = 0) -> dict[str, float]:
    """The numbers of a strip of tokens, by position: what its table shows."""
    reading = one.page.locator(".reading").nth(strip)
    button = reading.get_by_role("button", name="Table")
    if button.get_attribute("aria-expanded") == "false":
        button.click()
    reading.locator("tbody tr").first.wait_for()
    rows = reading.locator("tbody tr").evaluate_all("rows => rows.map(row => [...row.cells].map(c => c.textContent))")
    return {row[0]: float(row[2]) for row in rows}


def saved(one: Any, name: str, tmp_path: Path) -> str:
    """What a button saves, as text."""
    with one.page.expect_download() as waiting:
        one.page.get_by_role("button", name=name, exact=True).first.click()
    path = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path.read_text("utf-8-sig")


# ------------------------------------------------------------------------------------------------ methods


def some_methods(n: int) -> dict[str, tuple[np.ndarray, tuple[str, ...]]]:
    """Maps as methods of the registry give them: one with heads, one without, signed."""
    rng = np.random.default_rng(5)
    names = [name for name, one in methods().items() if one.returns == "map" and one.dims == ("layer", "query", "key")]
    return {names[0]: (rng.standard_normal((4, n, n)), ("layer", "query", "key"))}


def test_any_method_of_the_registry_can_colour_the_text(show: Open) -> None:
    extra = some_methods(24)
    (name, (values, _)) = next(iter(extra.items()))
    one = show(synthetic.findings(contribution=False, extra=extra))
    one.page.get_by_label("Colour by").select_option(name)
    one.page.locator(".tok").nth(7).click()
    layer = one.told["start"]["layer"]
    one.page.locator(".reading h3", has_text="after layer").wait_for()
    np.testing.assert_allclose(list(figures(one).values()), values[layer, 7], rtol=1e-3)  # four digits are shown
    assert "−" in one.page.locator(".reading .legend").first.text_content()  # a diverging scale: values have signs


def test_faithfulness_stands_beside_the_methods(show: Open) -> None:
    columns = {"method": ["hidden_token_attribution", "random"], "score": [0.5, 0.125], "leave_one_out": [0.25, None]}
    meta = {"target": "<b>class 1</b>", "removal": "mask", "texts": 1, "left_out": {}}
    table = Table(columns, about=dict.fromkeys(columns, "what it is"), meta=meta)
    one = show(replace(synthetic.findings(), comparison=Comparison(table, table, table)))
    one.page.get_by_label("Colour by").select_option("raw")
    assert one.page.get_by_label("Colour by").locator("option[value=contribution]").text_content() == (
        "Contribution (faithfulness 0.50)"
    )
    section = one.page.locator("section:has(#faithfulness)")
    assert "<b>class 1</b>; removal: mask; this text alone" in section.text_content()
    assert section.locator("tbody tr").first.locator("td").all_text_contents() == ["0.500", "0.250"]
    section.get_by_role("button", name="hidden_token_attribution").click()
    one.page.locator(".reading h3", has_text="Contribution").wait_for()
    assert "faithfulness 0.50, random orders 0.13" in one.page.locator(".reading .legend").first.text_content()
    assert section.locator("tr[aria-selected=true]").get_attribute("data-key") == "contribution"


def test_methods_that_are_not_here_say_why(show: Open, small: Findings) -> None:
    one = show(small)
    here = {told["key"] for told in one.told["maps"] if told["values"]}
    options = one.page.get_by_label("Colour by").locator("option")
    listed = {option.get_attribute("value"): option for option in options.all()}
    assert set(listed) == {told["key"] for told in one.told["maps"]}
    for key, option in listed.items():
        assert option.is_disabled() == (key not in here)
        if key not in here:
            assert "not in this file" in option.text_content() or "needs the option" in option.text_content()


def test_three_truths_and_two_methods_side_by_side(show: Open, small: Findings) -> None:
    one = show(small)
    one.select(2, 3)
    one.page.get_by_label("Beside it").select_option("truths")
    one.page.locator(".readings[data-count='3']").wait_for()
    assert small.contribution is not None
    query = one.told["start"]["query"]
    one.page.locator(".reading h3", has_text="Contribution").wait_for()
    truths = (small.raw.values[2, 3, query], small.effective.values[2, 3, query], small.contribution.values[2, query])
    for strip, row in enumerate(truths):
        np.testing.assert_allclose(list(figures(one, strip).values()), row, atol=2e-4)
    one.page.get_by_label("Beside it").select_option("null")
    one.page.locator(".readings[data-count='2']").wait_for()
    one.page.locator(".reading h3", has_text="Null-space part").wait_for()
    null = (small.raw.values - small.effective.values)[2, 3, query]
    np.testing.assert_allclose(list(figures(one, 1).values()), null, atol=2e-4)


# ------------------------------------------------------------------------------------------------ words, special tokens


def pieces() -> Findings:
    """A text whose words fall into pieces: every second piece continues the one before."""
    found = synthetic.findings(tokens=14)
    from dataclasses import replace

    tokens = found.trace.tokens
    text = "".join(("" if i % 2 else " " if i else "") + f"ab{i}" for i in range(12))
    spans, at = [], 0
    for i in range(12):
        at = text.index(f"ab{i}", at)
        spans.append((at, at + len(f"ab{i}")))
    made = replace(tokens, text=text, spans=(None, *spans, None), pieces=tokens.pieces)
    maps = {
        name: replace(getattr(found, name), tokens={"query": made, "key": made})
        for name in ("raw", "effective", "contribution")
    }
    return replace(found, trace=replace(found.trace, tokens=made), **maps)


def test_words_are_those_of_by_word(show: Open) -> None:
    found = pieces()
    one = show(found)
    one.choose("Text as", "words")
    assert found.contribution is not None
    words = found.contribution.by_word()
    assert one.page.locator(".reading").first.locator(".tok").all_text_contents() == list(words.tokens["key"].labels)
    one.page.locator(".tok").nth(3).click()
    layer = one.told["start"]["layer"]
    np.testing.assert_allclose(list(figures(one).values()), words.values[layer, 3], atol=2e-4)
    one.page.get_by_label("Show").select_option("raw")
    one.page.locator(".maps[data-show=single]").wait_for()
    canvas = one.page.locator("[data-view=single] canvas.over")
    canvas.scroll_into_view_if_needed()
    room = float(one.page.locator("[data-view=single] canvas.base").get_attribute("data-room"))
    cell = (canvas.bounding_box()["width"] - room) / 8
    canvas.hover(position={"x": room + 2.5 * cell, "y": room + 4.5 * cell})
    shown = one.page.locator(".maps ~ .readout b").all_text_contents()
    expected = found.raw.by_word().values[layer, one.told["start"]["head"], 4, 2]
    assert float(shown[2].replace("−", "-")) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("choice", ["dropped", "grouped"])
def test_special_tokens_are_dropped_or_grouped(show: Open, small: Findings, choice: str) -> None:
    one = show(small)
    one.choose("Special tokens", choice)
    assert small.contribution is not None
    one.page.locator(".tok").nth(4).click()
    row = small.contribution.values[one.told["start"]["layer"], 5]
    inner, special = row[1:-1], row[0] + row[-1]
    found = list(figures(one).values())
    if choice == "dropped":
        np.testing.assert_allclose(found, inner, atol=2e-4)
        legend = one.page.locator(".reading .legend").first.text_content()
        assert f"dropped special tokens hold {100 * special:.1f} %" in legend
    else:
        np.testing.assert_allclose(found, [*inner, special], atol=2e-4)


@pytest.mark.parametrize("scale", ["row", "head", "all"])
def test_the_legend_tells_the_scale(show: Open, small: Findings, scale: str) -> None:
    one = show(small)
    one.choose("Colour scale", scale)
    assert small.contribution is not None
    values, start = small.contribution.values, one.told["start"]
    most = {"row": values[start["layer"], start["query"]], "head": values[start["layer"]], "all": values}[scale].max()
    assert one.page.locator(".reading .scale").first.text_content() == f"0{100 * most:.1f} %"


# ------------------------------------------------------------------------------------------------ depth, map, overview


def test_depth_curves_against_plain_loops(show: Open, small: Findings) -> None:
    one = show(small, link="#query=9")
    one.page.locator(".token-depth").scroll_into_view_if_needed()
    one.page.locator(".token-depth .stream").first.wait_for()
    assert small.contribution is not None
    own, entropy, distance = [], [], []
    for layer in range(4):
        row = small.contribution.values[layer, 9]
        own.append(row[9] / row.sum())
        entropy.append(-sum(p * np.log2(p) for p in row / row.sum() if p > 0))
        distance.append(sum(p * abs(i - 9) for i, p in enumerate(row / row.sum())))
    one.page.locator(".token-depth > .takeaway").get_by_role("button", name="Table").click()
    rows = one.page.locator(".token-depth tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => Number(cell.textContent)))"
    )
    table = np.array(rows)
    np.testing.assert_allclose(table[:, 1:4], np.array([own, entropy, distance]).T, rtol=2e-3)
    np.testing.assert_allclose(table[:, 4:].sum(axis=1), 1, atol=1e-3)  # the bands of the flow are all of it
    assert one.page.locator(".token-depth .stream").count() == table.shape[1] - 4
    assert one.page.locator(".steps li").count() == 5
    shown = one.page.locator(".steps li bdi").all_text_contents()
    labels = small.trace.tokens.labels
    assert small.nearest is not None
    assert shown == [labels[i] for i in small.nearest["nearest"].reshape(5, 24)[:, 9]]


@pytest.mark.parametrize("tint", ["side", "token", "position", "norm"])
def test_queries_and_keys_lie_where_pca_puts_them(show: Open, small: Findings, tint: str) -> None:
    one = show(small)
    one.select(1, 4)
    one.page.locator(".query-key").scroll_into_view_if_needed()
    one.page.locator(".scatter .point").first.wait_for()
    one.choose("Colour points by", tint)
    assert one.page.locator(".scatter .point").count() == 48
    made = points(small.trace.layers[1], 4)
    at = one.page.locator(".scatter circle.point").evaluate_all(
        "all => all.map(c => [c.getAttribute('cx'), -c.getAttribute('cy')].map(Number))"
    )
    scale = np.ptp(np.array(at)[:, 0]) / np.ptp(made.at[0][:, 0])
    np.testing.assert_allclose(
        np.array(at) - np.mean(at, axis=0), scale * (made.at[0] - made.at[0].mean(axis=0)), atol=0.5
    )
    if tint == "token":  # a point has the colour that the legend gives its token
        fill = "e => getComputedStyle(e).fill"
        legend = one.page.locator(".query-key .dot.kind-0").evaluate("e => getComputedStyle(e).backgroundColor")
        assert set(one.page.locator(".point.kind-0").evaluate_all(f"all => all.map({fill})")) == {legend}
        assert len({one.page.locator(f".point.kind-{i}").first.evaluate(fill) for i in range(3)}) == 3
    assert f"r = {made.agreement:.2f}" in one.page.locator(".query-key .legend").text_content()
    one.page.locator(".scatter circle.point").nth(5).dispatch_event("click")
    assert one.page.locator(".tok[aria-pressed=true]").get_attribute("aria-label").startswith("token 5:")


@pytest.mark.parametrize("name", ["raw", "effective"])
def test_small_pictures_hold_the_strongest_cell_of_each_block(show: Open, name: str) -> None:
    found = synthetic.findings(tokens=60, layers=2, heads=3)
    one = show(found)
    one.choose("Cells show", name)
    assert one.page.locator("canvas.thumb").count() == 6
    pixel = (
        one.page.locator("canvas.thumb").nth(4).evaluate("c => [...c.getContext('2d').getImageData(3, 5, 1, 1).data]")
    )
    edges = np.linspace(0, 60, 25).astype(int)
    most = np.maximum(np.abs(found.raw.values[1, 1]), np.abs(found.effective.values[1, 1])).max(axis=1, keepdims=True)
    block = (getattr(found, name).values[1, 1] / most)[edges[5] : edges[6], edges[3] : edges[4]]
    t = block.flat[np.abs(block).argmax()]
    assert np.abs(np.array(pixel[:3]) - oklab_colour(np.sign(t) * np.sqrt(abs(t)))).max() <= 5  # 8 bits a value


# ------------------------------------------------------------------------------------------------ to take away


def test_csv_holds_the_numbers(show: Open, small: Findings, tmp_path: Path) -> None:
    one = show(small)
    one.select(1, 2)
    rows = list(csv.DictReader(io.StringIO(saved(one, "Heat maps: save as CSV", tmp_path))))
    assert len(rows) == 24 * 24
    for row in rows[::37]:
        query, key = int(row["query"]), int(row["key"])
        assert float(row["Raw attention"]) == pytest.approx(small.raw.values[1, 2, query, key], abs=1e-4)
        assert float(row["Effective attention"]) == pytest.approx(small.effective.values[1, 2, query, key], abs=1e-4)
        assert row["key token"] == small.trace.tokens.labels[key]
    rows = list(csv.DictReader(io.StringIO(saved(one, "Overview of the heads: save as CSV", tmp_path))))
    np.testing.assert_allclose([float(row["null-space share"]) for row in rows], small.null_share.ravel())


def test_formulas_in_a_csv_are_text(show: Open, tmp_path: Path) -> None:
    one = show(synthetic.findings(words=["=1+1", "-2", "@x", 'say "hi"', "a,b", *synthetic.HOSTILE]))
    rows = list(csv.DictReader(io.StringIO(saved(one, "Text: save as CSV", tmp_path), newline="")))
    assert [row["token"] for row in rows[1:6]] == ["'=1+1", "'-2", "'@x", 'say "hi"', "a,b"]


PICTURES = ("Text", "Overview of the heads", "Heat maps", "Token through the layers", "Query-key map", "Identity")


@pytest.mark.parametrize("label", PICTURES)
def test_svg_is_well_formed_and_brings_nothing_in(show: Open, label: str, tmp_path: Path) -> None:
    one = show(synthetic.findings(words=synthetic.HOSTILE))
    button = one.page.get_by_role("button", name=f"{label}: save as SVG", exact=True)
    button.scroll_into_view_if_needed()
    one.page.wait_for_timeout(400)
    text = saved(one, f"{label}: save as SVG", tmp_path)
    tree = ET.fromstring(text)
    assert tree.tag == "{http://www.w3.org/2000/svg}svg"
    tags = {element.tag.rpartition("}")[2] for element in tree.iter()}
    assert tags & {"rect", "path", "image", "circle"}
    assert "script" not in tags
    for element in tree.iter():
        assert not any(name.startswith("on") for name in element.attrib)
        assert element.get("href", "data:").startswith("data:")


@pytest.mark.parametrize("label", PICTURES)
def test_png_is_the_picture(show: Open, small: Findings, label: str, tmp_path: Path) -> None:
    from matplotlib.image import imread

    one = show(small)
    one.page.get_by_role("button", name=f"{label}: save as PNG", exact=True).scroll_into_view_if_needed()
    one.page.wait_for_timeout(400)
    with one.page.expect_download() as waiting:
        one.page.get_by_role("button", name=f"{label}: save as PNG", exact=True).click()
    path = tmp_path / "picture.png"
    waiting.value.save_as(path)
    assert waiting.value.suggested_filename.startswith("clearhead-")
    pixels = imread(path)
    assert min(pixels.shape[:2]) > 50
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 10  # not one empty colour


# ------------------------------------------------------------------------------------------------ links and keys


def test_a_link_reopens_the_same_state(show: Open, small: Findings) -> None:
    one = show(small)
    one.select(3, 1)
    one.page.locator(".tok").nth(11).click()
    one.page.get_by_label("Colour by").select_option("effective")
    one.page.get_by_label("Beside it").select_option("raw")
    one.choose("Text as", "words")
    one.choose("Cells show", "distance")
    one.page.wait_for_url(lambda url: "cells=distance" in url)
    link = "#" + one.page.url.partition("#")[2]
    two = show(small, link=link)
    for page in (one.page, two.page):
        assert page.locator(".facts h3").text_content() == "Layer 3, head 1"
        assert page.locator(".tok[aria-pressed=true]").first.get_attribute("aria-label").startswith("token 11:")
        assert page.get_by_label("Colour by").input_value() == "effective"
        assert page.get_by_label("Beside it").input_value() == "raw"
        assert page.locator("input[value=words]").is_checked()
        assert page.locator("input[value=distance]").is_checked()
    two.page.evaluate("location.hash = '#layer=0&head=5'")
    two.page.locator(".facts h3", has_text="Layer 0, head 5").wait_for()


@pytest.mark.parametrize(
    "link",
    [
        "#layer=99&head=99&query=99",
        "#layer=-1&query=x",
        "#by=nothing&scale=__proto__",
        "#%zz",
        "#by=constructor&units=toString",
    ],
)
def test_a_link_that_makes_no_sense_does_no_harm(show: Open, small: Findings, link: str) -> None:
    one = show(small, link=link)
    assert one.page.locator(".tok[aria-pressed=true]").count() == 1
    assert one.page.get_by_label("Colour by").input_value() == "contribution"


def test_keys_move_layers_from_the_text(show: Open, small: Findings) -> None:
    one = show(small, link="#layer=1&head=0&query=5")
    one.page.locator(".tok[aria-pressed=true]").focus()
    one.page.keyboard.press("ArrowDown")
    one.page.locator(".reading h3", has_text="after layer 2").wait_for()
    one.page.keyboard.press("ArrowUp")
    one.page.keyboard.press("ArrowUp")
    one.page.keyboard.press("End")
    one.page.locator(".reading h3", has_text="after layer 0").wait_for()
    assert one.page.locator(".tok[aria-pressed=true]").get_attribute("aria-label").startswith("token 23:")


def test_every_control_is_reached_by_tab(show: Open, small: Findings) -> None:
    one = show(small)
    reached: set[str] = set()
    for _ in range(60):
        one.page.keyboard.press("Tab")
        reached.add(
            one.page.evaluate(
                """() => {
                const at = document.activeElement;
                return at.getAttribute("aria-label") ?? at.labels?.[0]?.textContent ?? at.textContent.slice(0, 40);
            }"""
            )
        )
    for name in (
        "Layer",
        "Head",
        "Token",
        "Display",
        "Colour by",
        "Beside it",
        "Show",
        "Text: save as SVG",
        "Heat maps: save as CSV",
    ):
        assert name in reached, name


# ------------------------------------------------------------------------------------------------ for everyone


@pytest.mark.parametrize(
    ("case", "scheme", "size"),
    [("all", "light", WIDE), ("all", "dark", WIDE), ("all", "dark", NARROW), ("hostile", "light", NARROW)],
)
def test_axe_finds_nothing(show: Open, small: Findings, case: str, scheme: str, size: tuple[int, int]) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    one = show(
        small if case == "all" else synthetic.findings(words=synthetic.HOSTILE), size, scheme, link="#compare=truths"
    )
    for label in (".token-depth", ".query-key"):
        one.page.locator(label).scroll_into_view_if_needed()
        one.page.wait_for_timeout(300)
    for button in one.page.get_by_role("button", name="Table", exact=True).all():
        button.click()
    one.page.locator(".display summary").click()
    found = axe.Axe().run(one.page).response["violations"]
    wrong = {
        rule["id"]: [node["html"][:120] for node in rule["nodes"]][:3] for rule in found if rule["impact"] in SEVERE
    }
    assert wrong == {}


def test_2000_tokens_still_work(show: Open) -> None:
    one = show(synthetic.findings(tokens=2000, layers=1, heads=1, width=8, sharp=6))
    assert one.page.locator(".tok").count() == 2000
    one.page.locator(".tok").nth(1999).click()
    one.page.locator(".row-table h3", has_text="query 1999").wait_for()
    one.page.locator("[data-view=raw] canvas.over").hover(position={"x": 20, "y": 20})
    assert one.page.locator(".maps ~ .readout").text_content().startswith("query ")


def test_a_payload_tells_every_map_once() -> None:
    told = data.payload(synthetic.findings(extra=some_methods(24), contribution=False))
    keys = [one["key"] for one in told["maps"]]
    assert len(keys) == len(set(keys))
    for name, one in methods().items():
        pickable = (
            one.returns == "map"
            and one.dims[-2:] == ("query", "key")
            and one.dims[0] == "layer"
            and len(one.dims) in (3, 4)
        )
        assert (name in {told["method"] for told in told["maps"]}) == pickable
