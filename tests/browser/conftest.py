"""A browser for every test of the pages, and what a page that it opened said and asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import synthetic

from clearhead.explorer import data, report
from clearhead.explorer.findings import Findings

WIDE, NARROW = (1280, 900), (360, 740)


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: the browser tests are left out"
    )
    with playwright.sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@dataclass
class Opened:
    """An open report, with everything that it said or asked for."""

    page: Any
    told: dict[str, Any]
    said: list[str] = field(default_factory=list[str])
    asked: list[str] = field(default_factory=list[str])

    def pixel(self, view: str, query: int, key: int) -> tuple[int, ...]:
        """Colour in the middle of a cell of a heat map."""
        script = """([view, query, key, n]) => {
            const canvas = document.querySelector(`[data-view="${view}"] canvas.base`);
            const labels = canvas.dataset.room * devicePixelRatio, side = canvas.width - labels;
            const at = (i) => Math.floor(labels + (i + 0.5) * side / n);
            const copy = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
            copy.drawImage(canvas, at(key), at(query), 1, 1, 0, 0, 1, 1);
            return [...copy.getImageData(0, 0, 1, 1).data];
        }"""
        return tuple(self.page.evaluate(script, [view, query, key, len(self.told["tokens"])]))

    def choose(self, label: str, value: str) -> None:
        """Of a group of radio buttons; those under "Display" are opened first."""
        group = self.page.locator(f"fieldset:has(legend:text-is('{label}'))")
        if not group.is_visible():
            self.page.locator(".display summary").click()
        self.page.locator(f"fieldset:has(legend:text-is('{label}')) label:has(input[value='{value}'])").click()

    def select(self, layer: int, head: int) -> None:
        """By the overview, and wait for the maps."""
        cell = self.page.locator(f"[role=gridcell][aria-label^='layer {layer} head {head}:']")
        cell.click()
        where = re.compile(f"layer {layer}, head {head}$")
        self.page.locator(".row-table h3").filter(has_text=where).wait_for()


Open = Callable[..., Opened]


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open the report of findings; at the end nothing may have been said on the console or asked of any network."""
    opened: list[Opened] = []

    def open_report(
        found: Findings | dict[str, Any], size: tuple[int, int] = WIDE, scheme: str = "light", wait: bool = True,
        link: str = "",
    ) -> Opened:  # fmt: skip
        told = found if isinstance(found, dict) else data.payload(found)
        path = report.write_report(told, tmp_path / f"{len(opened)}.html")
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
        one = Opened(context.new_page(), told)
        opened.append(one)
        one.page.on("console", lambda message: one.said.append(message.text))
        one.page.on("pageerror", lambda error: one.said.append(str(error)))
        one.page.on("request", lambda request: one.asked.append(request.url))
        one.page.goto(path.as_uri() + link)
        if wait:
            one.page.locator("#clearhead[aria-busy=false]").wait_for()
        return one

    yield open_report
    for one in opened:
        assert one.said == []
        assert [url for url in one.asked if not url.startswith(("data:", "blob:", "file:"))] == []
        one.page.context.close()


@pytest.fixture(scope="session")
def small() -> Findings:
    return synthetic.findings(tokens=24, layers=4, heads=6, width=8)
