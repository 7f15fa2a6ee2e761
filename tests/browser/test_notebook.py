"""The doors of notebooks: what a kernel shows, and the widget in a real browser with the kernel behind it."""

from __future__ import annotations

import base64
import html
import json
import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("anywidget", reason="the extra `explorer` is not installed")
import clearhead as ch
from clearhead.errors import InputError

pytestmark = pytest.mark.browser
TEXT = "The cat sat on the mat because it was warm."


@pytest.fixture(scope="module")
def view(demo_model: Any) -> Any:
    return ch.explore(demo_model.trace(TEXT), probes=2)


HOST = """async ([esm, state]) => {
  const listeners = {};
  const model = {
    get: (name) => structuredClone(state[name]),
    set: (name, value) => { state[name] = value; },
    save_changes: () => window.changed(JSON.stringify([state.layer, state.head, state.token])),
    on: (event, call) => (listeners[event] ??= []).push(call),
    send: async (message) => {
      const [told, buffers] = JSON.parse(await window.kernel(JSON.stringify(message)));
      const views = buffers.map((text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer));
      for (const call of listeners["msg:custom"] ?? []) call(told, views);
    },
  };
  window.tell = (name, value) => { state[name] = value; for (const call of listeners[`change:${name}`] ?? []) call(); };
  const module = await import(URL.createObjectURL(new Blob([esm], { type: "text/javascript" })));
  const el = document.createElement("div");
  document.body.append(el);
  await module.default.render({ model, el });
}"""


@pytest.fixture
def page(browser: Any, view: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The widget in a page with styles of its own, its messages answered by Python."""
    tab = browser.new_context(viewport={"width": 1100, "height": 900}).new_page()
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.set_content("<style>* { color: red !important; font-size: 40px !important; } .strip { display: none; }</style>")

    def kernel(message: str) -> str:
        sent: list[Any] = []
        monkeypatch.setattr(type(view), "send", lambda self, told, buffers=None: sent.append((told, buffers or [])))
        view.answer(view, json.loads(message), [])
        ((told, buffers),) = sent
        return json.dumps([told, [base64.b64encode(one).decode() for one in buffers]])

    def changed(state: str) -> None:
        view.layer, view.head, view.token = json.loads(state)

    tab.expose_function("kernel", kernel)
    tab.expose_function("changed", changed)
    state = {name: getattr(view, name) for name in ("layer", "head", "token", "theme", "_payload", "_style")}
    tab.evaluate(HOST, [view._esm, state])
    tab.locator(".clearhead[aria-busy=false]").wait_for()
    yield tab
    assert said == []
    tab.context.close()


def test_the_widget_shows_the_page_and_tells_python_what_is_selected(page: Any, view: Any) -> None:
    trace = view.session.trace
    assert page.locator(".tok").all_text_contents() == list(trace.tokens.labels)
    page.locator(".tok").nth(3).click()
    page.locator("[role=gridcell][aria-label^='layer 4 head 7:']").click()
    page.locator(".facts h3", has_text="Layer 4, head 7").wait_for()
    page.wait_for_timeout(200)
    assert (view.token, view.layer, view.head) == (3, 4, 7)
    assert view.selected == trace.tokens.labels[3]


def test_python_selects_in_the_widget(page: Any) -> None:
    page.evaluate("window.tell('layer', 2); window.tell('head', 3); window.tell('token', 5)")
    page.locator(".facts h3", has_text="Layer 2, head 3").wait_for()
    assert page.locator(".tok[aria-pressed=true]").get_attribute("aria-label").startswith("token 5:")


def test_the_kernel_computes_what_is_chosen(page: Any, view: Any) -> None:
    page.get_by_label("Colour by").select_option("effective")
    page.evaluate("window.tell('layer', 1); window.tell('head', 6); window.tell('token', 2)")
    page.locator(".reading h3", has_text="in layer 1, head 6").wait_for()
    page.locator(".reading").first.get_by_role("button", name="Table").click()
    page.locator(".reading tbody tr").first.wait_for()
    found = [float(text) for text in page.locator(".reading tbody td:nth-child(3)").all_text_contents()]
    np.testing.assert_allclose(found, ch.effective_attention(view.session.trace).values[1, 6, 2], rtol=1e-3, atol=1e-6)
    canvas = page.locator("[data-view=raw] canvas.over")
    canvas.scroll_into_view_if_needed()
    canvas.hover(position={"x": 200, "y": 200})
    page.locator(".interval b").wait_for(timeout=60_000)


def test_no_style_passes_into_the_widget(page: Any) -> None:
    assert page.locator(".strip").first.is_visible()
    size = page.locator(".note").first.evaluate("e => parseFloat(getComputedStyle(e).fontSize)")
    assert size < 20


def test_what_is_selected_must_be_there(view: Any) -> None:
    for name in ("layer", "head", "token"):
        with pytest.raises(InputError, match="allowed: 0 to"):
            setattr(view, name, 1000)


def test_what_is_not_a_trace_is_refused() -> None:
    for function in (ch.explore, ch.report):
        with pytest.raises(InputError, match="needs a trace"):
            function("a text")  # pyright: ignore[reportArgumentType]


def test_a_report_stands_in_a_frame_that_reaches_nothing(browser: Any, demo_model: Any) -> None:
    report = ch.report(demo_model.trace(TEXT), probes=2)
    shown = report._repr_html_()
    frame = re.fullmatch(r'<iframe srcdoc="([^"]*)" sandbox="allow-scripts allow-downloads" .*></iframe>', shown)
    assert frame
    assert html.unescape(frame[1]) == report.html
    tab = browser.new_page()
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.set_content(f"<style>* {{ color: red !important }}</style>{shown}")
    inside = tab.frame_locator("iframe")
    inside.locator("#clearhead[aria-busy=false]").wait_for()
    inside.locator(".tok").nth(3).click()
    assert inside.locator(".tok[aria-pressed=true]").get_attribute("aria-label").startswith("token 3:")
    assert inside.locator("h1").evaluate("e => getComputedStyle(e).color") != "rgb(255, 0, 0)"
    tab.wait_for_timeout(400)
    assert said == []
    tab.close()


NOTEBOOK = (
    "import clearhead as ch\ntrace = ch.load('demo').trace('The cat sat.')\ntrace",
    "ch.effective_attention(trace)",
    "ch.attention_identifiability(trace)",
    "ch.report(trace, probes=2)",
    "view = ch.explore(trace, probes=2)\nview",
    "view.token = 2\nprint(view.selected, view.layer, view.head)",
)


def test_a_notebook_runs_and_shows_everything() -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    cells = [nbformat.v4.new_code_cell(source) for source in NOTEBOOK]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    shown = [[set(output.get("data", {})) for output in cell.outputs] for cell in notebook.cells]
    for cell in shown[:4]:
        assert any("text/html" in kinds for kinds in cell)
    assert any("application/vnd.jupyter.widget-view+json" in kinds for kinds in shown[4])
    for cell in notebook.cells[:2]:
        assert cell.outputs[-1]["data"]["text/html"].startswith("<iframe srcdoc=")
    assert notebook.cells[5].outputs[0]["text"].startswith("cat ")
