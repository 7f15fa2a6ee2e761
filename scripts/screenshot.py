"""Make docs/images/report.png and report-dark.png: the report about the demo text, as a browser shows it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from clearhead.cli import DEMO_TEXT
from clearhead.explorer.data import payload
from clearhead.explorer.findings import analyse
from clearhead.explorer.report import write_report
from clearhead.models.load import load

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
SIZE = {"width": 1280, "height": 2110}


def main() -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("No chromium found: scripts/install-chromium.sh installs it.")
    print("Analysing the demo text ...")
    findings = analyse(load("demo").trace(DEMO_TEXT, proof="full"), seconds=300)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as engine:
        page = write_report(payload(findings), Path(folder) / "report.html")
        browser = engine.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme, name in (("light", "report.png"), ("dark", "report-dark.png")):
            tab = browser.new_context(viewport=SIZE, color_scheme=scheme).new_page()  # pyright: ignore[reportArgumentType]
            tab.goto(page.as_uri())
            tab.locator("#clearhead[aria-busy=false]").wait_for()
            tab.wait_for_timeout(1000)  # the fonts and the last layers
            IMAGES.mkdir(parents=True, exist_ok=True)
            tab.screenshot(path=IMAGES / name)
            print(f"Wrote {IMAGES / name}")
        browser.close()


if __name__ == "__main__":
    main()
