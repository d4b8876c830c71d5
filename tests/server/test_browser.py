"""Laws of the page in a real browser: Debian's Chromium, driven by Playwright (`pip install playwright`)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any, served: Any) -> Iterator[Any]:
    """The page, at the width of a phone; what goes wrong in it fails the test."""
    context = browser.new_context(viewport={"width": 360, "height": 640})
    found = context.new_page()
    wrong: list[str] = []
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    found.goto(served.url)
    sync_api.expect(found.locator("#model")).to_have_text("demo")
    yield found
    assert not wrong
    context.close()


def answer(page: Any, text: str) -> str:
    """Ask by the keyboard, and wait for the whole answer."""
    page.locator("#question").focus()
    page.keyboard.type(text)
    page.keyboard.press("Enter")
    page.wait_for_selector("#retry")
    return str(page.locator("li.assistant").last.inner_text())


def short(page: Any, tokens: int = 12) -> None:
    page.locator("#settings summary").click()
    page.locator("#length").fill(str(tokens))


def test_an_answer_streams_and_figures_are_told(page: Any) -> None:
    short(page)
    assert len(answer(page, "Tell me a story.")) > 10
    assert "tokens/s" in page.locator("#speed").inner_text()
    sync_api.expect(page.locator("#bytes")).to_contain_text("MiB")


def test_a_long_answer_can_be_stopped_and_another_one_asked_for(page: Any) -> None:
    short(page, 900)
    page.route(
        "**/v1/chat/completions", lambda route: route.continue_(post_data=_endless(route.request.post_data_json))
    )
    page.locator("#question").fill("Go on and on.")
    page.locator("#send").click()
    sync_api.expect(page.locator("li.assistant")).to_have_text(re.compile(".{40,}", re.DOTALL))
    page.keyboard.press("Escape")
    page.wait_for_selector("#retry")
    stopped = page.locator("li.assistant").inner_text()
    page.unroute("**/v1/chat/completions")
    page.locator("#length").fill("8")
    page.locator("#retry").click()
    page.wait_for_selector("#retry")
    assert page.locator("li.assistant").count() == 1
    assert page.locator("li.assistant").inner_text() != stopped


def _endless(asked: dict[str, Any]) -> dict[str, Any]:
    return {**asked, "ignore_eos": True}


def test_conversations_are_found_again_after_a_reload(page: Any) -> None:
    short(page)
    first = answer(page, "The first question")
    page.locator("#new").click()
    assert page.locator("li.user").count() == 0
    answer(page, "The second question")
    page.reload()
    sync_api.expect(page.locator("#model")).to_have_text("demo")
    assert "The second question" in page.locator("li.user").inner_text()
    page.locator("#list-button").press("Enter")
    page.get_by_role("button", name="The first question", exact=True).click()
    assert "The first question" in page.locator("li.user").inner_text()
    assert page.locator("li.assistant").inner_text() == first
    page.get_by_role("button", name="Delete The first question").click()
    assert "The second question" in page.locator("li.user").inner_text()


def test_tokens_are_colored_by_who_drafted_them(page: Any) -> None:
    short(page, 24)
    text = answer(page, "Tell me a story about a dog.")
    page.locator("#colors").check()
    shown = page.locator(".tokens")
    assert shown.inner_text().split() == text.removesuffix("Retry").removeprefix("Answer:").split()
    assert page.locator(".tokens .drafted").count() + page.locator(".tokens .model").count() >= 24


def test_it_fits_a_phone_and_what_models_write_is_never_html(page: Any) -> None:
    hostile = '<img src=x onerror="document.title=1"> **bold** `<b>` [x](javascript:alert(1))\\n```\\n<script>\\n```\\n'
    page.evaluate(
        """async (text) => {
            const { markdown } = await import("./markdown.js");
            document.getElementById("messages").append(...markdown(text.replaceAll("\\\\n", "\\n")));
        }""",
        hostile,
    )
    assert page.locator("#messages img, #messages b, #messages script, #messages a").count() == 0
    assert page.locator("#messages strong").inner_text() == "bold"
    assert page.locator("#messages pre").inner_text() == "<script>"
    short(page)
    answer(page, "A" * 200)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_everything_has_a_name_for_screen_readers(page: Any) -> None:
    page.locator("#settings summary").click()
    found = page.locator("button, input, textarea, progress").all()
    assert len(found) > 3
    for each in found:
        named = each.evaluate(
            "e => e.textContent.trim() || e.getAttribute('aria-label') || (e.labels && e.labels[0]?.textContent.trim())"
        )
        assert named, each.evaluate("e => e.outerHTML")
