"""Takes the pictures of the server's page; needs the extra ``test``, Chromium, and ``pip install playwright``.

python docs/record_page.py docs [MODEL]

It writes page.png and page-phone.png into the folder.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

import edge_spec
from edge_spec.server.running import ModelServer
from edge_spec.server.settings import ServerSettings

QUESTIONS = ("Name three uses of a paper clip.", "Write a Python function that adds two numbers.")
VIEWS: dict[str, dict[str, Any]] = {
    "page.png": {"viewport": {"width": 900, "height": 700}, "color_scheme": "light"},
    "page-phone.png": {
        "viewport": {"width": 390, "height": 760},
        "color_scheme": "dark",
        "device_scale_factor": 2,
    },
}


def talk(page: Page, url: str, *, colors: bool) -> None:
    """Ask the questions, and wait for each answer."""
    page.goto(url)
    page.locator("#settings summary").click()
    page.locator("#temperature").fill("0")
    page.locator("#length").fill("120")
    page.locator("#colors").set_checked(colors)
    page.locator("#settings summary").click()
    for question in QUESTIONS:
        page.locator("#question").fill(question)
        page.keyboard.press("Enter")
        page.wait_for_selector("#retry", timeout=300_000)
    page.wait_for_function("document.getElementById('bytes').textContent.includes('MiB')")


def main(folder: str, model: str = "smollm2") -> None:
    """Serve the model, and take the pictures."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with (
        edge_spec.load(model) as loaded,
        ModelServer(loaded, ServerSettings(port=0)) as server,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, view in VIEWS.items():
            page = browser.new_page(**view)
            talk(page, server.url, colors=name == "page-phone.png")
            page.screenshot(path=Path(folder) / name)
            page.close()
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
