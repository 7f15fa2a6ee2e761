"""Make the pictures of docs/images: the main states of the page about the demo text, as a browser shows them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from clearhead.cli import DEMO_TEXT
from clearhead.explorer.data import payload
from clearhead.explorer.findings import analyse
from clearhead.explorer.report import write_report
from clearhead.models.load import load

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
STATES = {  # name: (colour scheme, width, height, link, what to scroll to)
    "report": ("light", 1280, 1500, "layer=2&head=5&query=5", ""),
    "report-dark": ("dark", 1280, 1500, "layer=2&head=5&query=5", ""),
    "three-truths": ("light", 1280, 900, "layer=4&head=5&query=13&compare=truths&units=words&specials=grouped", ""),
    "heads": ("light", 1280, 1000, "layer=3&head=6&query=13&cells=effective", "#attention"),
    "depth": ("light", 1280, 860, "layer=5&head=6&query=5", "#depth"),
    "query-key": ("light", 1280, 900, "layer=2&head=1&query=5&tint=token", "#points"),
    "narrow": ("dark", 390, 844, "layer=2&head=5&query=5", ""),
}


def main() -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("No chromium found: scripts/install-chromium.sh installs it.")
    print("Analysing the demo text ...")
    findings = analyse(load("demo").trace(DEMO_TEXT, proof="full"), seconds=300)
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as engine:
        page = write_report(payload(findings), Path(folder) / "report.html")
        browser = engine.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name in STATES:
            take(browser, page, name)
        browser.close()


def take(browser: Browser, page: Path, name: str) -> None:
    """One picture."""
    scheme, width, height, link, place = STATES[name]
    tab = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme).new_page()  # pyright: ignore[reportArgumentType]
    tab.goto(f"{page.as_uri()}#{link}")
    tab.locator("#clearhead[aria-busy=false]").wait_for()
    if place:
        tab.locator(place).evaluate("element => window.scrollTo(0, element.getBoundingClientRect().top + scrollY - 64)")
    tab.wait_for_timeout(1200)  # the fonts, and the views that wait until they are near
    tab.screenshot(path=IMAGES / f"{name}.png")
    print(f"Wrote {IMAGES / name}.png")
    tab.context.close()


if __name__ == "__main__":
    main()
