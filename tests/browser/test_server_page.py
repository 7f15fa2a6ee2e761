"""The page of `clearhead serve` in a real browser: type a text, see the page, compute on demand, cancel, see errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny as tiny_models

pytest.importorskip("starlette", reason="the extra `explorer` is not installed")
from server.conftest import Running, running

import clearhead as ch

pytestmark = pytest.mark.browser
TEXT = "w1 w2 w3 w1 w4 w5 w6 w7 w8"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folders: list[str] = []
    for family in ("bert", "llama"):
        folder = tmp_path_factory.mktemp(family)
        model, tokenizer = tiny_models.tiny(family, **({"max_position_embeddings": 4096} if family == "llama" else {}))
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        folders.append(str(folder))
    yield from running(tuple(folders), seconds=240)


@pytest.fixture
def page(browser: Any, server: Running) -> Iterator[Any]:
    """A tab on the server; at the end nothing may have been said on the console or asked of anyone else."""
    tab = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    said: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(server.url)
    yield tab
    assert [line for line in said if "409" not in line and "Content Security Policy" not in line] == []
    assert [url for url in asked if not url.startswith((server.url, "data:", "blob:"))] == []
    tab.context.close()


def analyse(page: Any, text: str = TEXT) -> None:
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Analyse").click()
    page.locator(".lead-verdict").wait_for(timeout=120_000)
    page.locator("#clearhead[aria-busy=false]").wait_for()


def test_a_typed_text_gives_the_page(page: Any, server: Running) -> None:
    analyse(page)
    trace = ch.load(server.models[0]).trace(TEXT)
    assert page.locator(".tok").all_text_contents() == list(trace.tokens.labels)
    page.get_by_label("Colour by").select_option("effective")
    page.locator(".tok").nth(4).click()
    page.locator("[role=gridcell][aria-label^='layer 1 head 2:']").click()
    page.locator(".reading h3", has_text="in layer 1, head 2").wait_for()
    page.locator(".reading").first.get_by_role("button", name="Table").click()
    page.locator(".reading tbody tr").first.wait_for()
    found = page.locator(".reading tbody td:nth-child(3)").all_text_contents()
    row = ch.effective_attention(trace).values[1, 2, 4]
    np.testing.assert_allclose([float(text) for text in found], row, rtol=1e-3, atol=1e-6)
    page.locator(".token-depth").scroll_into_view_if_needed()
    page.locator(".stream").first.wait_for()


def test_an_interval_shows_when_the_pointer_rests(page: Any, server: Running) -> None:
    analyse(page)
    trace = ch.load(server.models[0]).trace(TEXT)
    page.locator("[role=gridcell][aria-label^='layer 1 head 0:']").click()
    page.locator(".row-table h3", has_text="layer 1, head 0").wait_for()
    canvas = page.locator("[data-view=raw] canvas.over")
    canvas.scroll_into_view_if_needed()
    room = float(page.locator("[data-view=raw] canvas.base").get_attribute("data-room"))
    cell = (canvas.bounding_box()["width"] - room) / len(trace.tokens)
    canvas.hover(position={"x": room + 2.5 * cell, "y": room + 3.5 * cell})
    text = page.locator(".interval b").text_content(timeout=60_000)
    low, high = ch.identifiable_interval(trace, layer=1, head=0, query=3).values[:, 2]
    assert high - low > 1e-3
    np.testing.assert_allclose([float(part) for part in text.split(" to ")], [low, high], atol=1e-4)


def test_a_method_is_computed_when_it_is_chosen_or_says_why_not(page: Any) -> None:
    analyse(page)
    options = page.get_by_label("Colour by").locator("optgroup[label='computed when chosen'] option").all()
    for name in [option.get_attribute("value") for option in options]:
        page.get_by_label("Colour by").select_option(name)
        page.locator(f".reading:has(h3:text('{name[:1].upper() + name[1:].replace('_', ' ')}'))").first.wait_for(
            timeout=120_000
        )
        progress = page.locator(".reading .progress").first
        assert not progress.is_visible() or "defect" not in progress.text_content()


def test_options_make_a_further_map(page: Any, server: Running) -> None:
    analyse(page)
    assert (
        not page.locator(".options").is_visible() or "Options of Contribution" in page.locator(".options").inner_text()
    )
    page.get_by_label("Colour by").select_option("raw")
    page.locator(".options").wait_for(state="hidden")  # raw attention has none
    page.get_by_label("Colour by").select_option("effective")
    page.get_by_text("Options of Effective attention").click()
    page.get_by_role("combobox", name="row sum").select_option("true")
    page.get_by_role("button", name="Compute").click()
    page.locator(".reading h3", has_text="Effective attention (row_sum true)").wait_for(timeout=60_000)
    page.locator(".tok").nth(4).click()
    page.locator("[role=gridcell][aria-label^='layer 1 head 2:']").click()
    page.locator(".reading h3", has_text="in layer 1, head 2").wait_for()
    page.locator(".reading").first.get_by_role("button", name="Table").click()
    page.locator(".reading tbody tr").first.wait_for()
    found = page.locator(".reading tbody td:nth-child(3)").all_text_contents()
    row = ch.effective_attention(ch.load(server.models[0]).trace(TEXT), row_sum=True).values[1, 2, 4]
    np.testing.assert_allclose([float(text) for text in found], row, rtol=1e-3, atol=1e-6)


def test_a_target_is_typed_and_what_is_wrong_with_it_said(page: Any) -> None:
    analyse(page)
    page.get_by_label("Colour by").select_option("relevance")
    page.get_by_role("alert").filter(has_text="Give a target").wait_for(timeout=60_000)
    page.get_by_text("Options of Relevance").click()
    for target, wrong in (("class:7", "class"), ("similar:", "similar")):
        page.get_by_role("textbox", name="target").fill(target)
        page.get_by_role("button", name="Compute").click()
        page.locator(".options [role=alert]", has_text=wrong).wait_for(timeout=60_000)
    page.get_by_role("textbox", name="target").fill("similar:w3 w9")
    page.get_by_role("button", name="Compute").click()
    page.locator(".reading h3", has_text="Relevance (target similar:w3 w9)").wait_for(timeout=60_000)


def test_umap_runs_with_progress(page: Any) -> None:
    pytest.importorskip("umap", reason="umap-learn is not installed")
    analyse(page)
    page.locator(".query-key").scroll_into_view_if_needed()
    page.locator(".scatter .point").first.wait_for()
    before = page.locator(".scatter .point").first.get_attribute("cx")
    page.locator("label:has(input[value=umap])").click()
    page.locator(".query-key .progress", has_text="umap").wait_for()
    page.locator(".query-key .progress").wait_for(state="hidden", timeout=120_000)
    assert page.locator(".scatter .point").first.get_attribute("cx") != before
    assert "distances between far points" in page.locator(".query-key .legend").text_content()


def test_a_job_can_be_cancelled_from_the_page(page: Any) -> None:
    page.get_by_label("Text", exact=True).fill("w1 " * 50 + "cancel")
    page.get_by_role("button", name="Analyse").click()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("alert").filter(has_text="Cancelled").wait_for()
    analyse(page, "w1 w2")


def test_an_error_is_shown_in_the_page(page: Any) -> None:
    page.get_by_label("Text", exact=True).fill("w1 " * 90)
    page.get_by_role("button", name="Analyse").click()
    page.get_by_role("alert").filter(has_text="longer than the model's limit").wait_for(timeout=60_000)
    assert page.get_by_role("button", name="Analyse").is_enabled()


def test_hostile_text_only_shows(page: Any) -> None:
    text = '<img src=x onerror=window.hacked=1> "q" \u202e \u0000 ' + "x" * 10_000
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Analyse").click()
    page.locator(".lead-verdict, [role=alert]").first.wait_for(timeout=120_000)
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script").count() == 0


def test_a_link_reopens_text_model_and_state(page: Any, server: Running, browser: Any) -> None:
    page.get_by_label("Model").select_option(server.models[1])
    analyse(page, "w9 w8 w7 w6")
    page.locator(".tok").nth(2).click()
    page.wait_for_url(lambda url: "query=2" in url)
    again = browser.new_context().new_page()
    again.goto(page.url)
    again.locator(".lead-verdict").wait_for(timeout=120_000)
    assert again.get_by_label("Text", exact=True).input_value() == "w9 w8 w7 w6"
    assert again.get_by_label("Model").input_value() == server.models[1]
    assert again.locator(".tok[aria-pressed=true]").get_attribute("aria-label").startswith("token 2:")
    again.context.close()


def test_2000_tokens_one_layer_at_a_time(page: Any, server: Running) -> None:
    page.get_by_label("Model").select_option(server.models[1])
    analyse(page, " ".join(f"w{(7 * i) % 60}" for i in range(1999)))
    assert page.locator(".tok").count() == 2000
    page.get_by_label("Colour by").select_option("effective")
    for layer in (1, 0):
        page.locator(f"[role=gridcell][aria-label^='layer {layer} head 1:']").click()
        page.locator(".row-table h3", has_text=f"layer {layer}, head 1").wait_for(timeout=60_000)


def test_axe_finds_nothing_on_the_first_page(page: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page.get_by_role("button", name="Analyse").wait_for()
    found = axe.Axe().run(page).response["violations"]
    assert [rule["id"] for rule in found if rule["impact"] != "minor"] == []
    analyse(page)
    found = axe.Axe().run(page).response["violations"]
    assert [rule["id"] for rule in found if rule["impact"] != "minor"] == []


def test_the_policy_of_the_server_holds(page: Any, server: Running, tmp_path: Path) -> None:
    """The control: what slips into the page runs nowhere and reaches nobody."""
    found = page.evaluate(
        """async () => {
            const script = document.createElement("script");
            script.textContent = "window.hacked = 1";
            document.body.append(script);
            const sent = await fetch("http://127.0.0.1:9/").then(() => "sent", () => "stopped");
            return [window.hacked ?? null, sent];
        }"""
    )
    assert found == [None, "stopped"]
