"""Laws of the page in a real browser: Debian's Chromium, driven by Playwright (`pip install playwright`)."""

from __future__ import annotations

import re
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.slow


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
    # Chosen, so the list makes room.
    sync_api.expect(page.locator("#list")).to_be_hidden()
    assert "The first question" in page.locator("li.user").inner_text()
    assert page.locator("li.assistant").inner_text() == first
    page.locator("#list-button").click()
    page.get_by_role("button", name="Delete The first question").click()
    assert "The second question" in page.locator("li.user").inner_text()


TOKENS = [["A", None, 1], [" dog", "ngram", 2], [" ran", "sequence", 3], [" and", "sequence", 3], [".", None, 3]]


def test_tokens_tell_who_drafted_them_to_everybody(page: Any) -> None:
    # Whether and who drafts depends on how busy the computer is, so the answer is one that was kept.
    page.evaluate(
        """(tokens) => {
            const answer = { role: "assistant", content: tokens.map(([text]) => text).join(""), thought: "", tokens };
            const messages = [{ role: "user", content: "Tell me a story." }, { ...answer, attempt: 0 }];
            localStorage["edge-spec conversations"] = JSON.stringify([{ id: "1", system: "", messages }]);
        }""",
        TOKENS,
    )
    page.reload()
    page.locator("#settings summary").click()
    page.locator("#colors").check()
    shown = page.locator(".tokens")
    assert shown.evaluate("e => e.textContent") == "A dog ran and."
    # The legend names each writer and its tokens.
    legend = page.locator(".legend li").all_inner_texts()
    assert legend == ["the model's own 2", "drafted (ngram) 1", "drafted (sequence) 2"]
    looks = shown.locator(".by").evaluate_all("all => all.map((e) => getComputedStyle(e).backgroundColor)")
    assert looks[0] == looks[4] and looks[2] == looks[3] and len(set(looks)) == 3
    # Keys and taps choose a token, and a sentence tells of it.
    shown.focus()
    page.keyboard.press("ArrowRight")
    sync_api.expect(page.locator(".told")).to_have_text('"A": the model\'s own, round 1')
    page.keyboard.press("End")
    assert shown.locator(".by").last.get_attribute("aria-current") == "true"
    shown.locator(".by").nth(1).click()
    sync_api.expect(page.locator(".told")).to_have_text('" dog": drafted (ngram), round 2')


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


WRITTEN = """# Title
A [link](https://example.org/a?b=c) and ![picture](https://example.org/p.png).

- one
  - inner
    1. deepest
- two
continued

> quoted
> - item

| a | b |
|---|:-:|
| 1 \\| 2 | **3** |

---
```py
x = "<b>"
```
"""


def test_markdown_becomes_what_it_means(page: Any) -> None:
    html = page.evaluate(
        """async (text) => {
            const { element } = await import("./elements.js");
            const { markdown } = await import("./markdown.js");
            return element("div", {}, ...markdown(text)).innerHTML;
        }""",
        WRITTEN.replace("\\\\", "\\"),
    )
    link = '<a href="{}" rel="noreferrer noopener" target="_blank"><bdi>{}</bdi> (example.org)</a>'
    first = link.format("https://example.org/a?b=c", "link")
    second = link.format("https://example.org/p.png", "picture")
    assert html == (
        f"<h3>Title</h3><p>A {first} and {second}.</p>"
        '<ul><li>one<ul><li>inner<ol start="1"><li>deepest</li></ol></li></ul></li><li>two<br>continued</li></ul>'
        "<blockquote><p>quoted</p><ul><li>item</li></ul></blockquote>"
        '<div class="table" tabindex="0"><table><thead><tr><th>a</th><th>b</th></tr></thead>'
        "<tbody><tr><td>1 | 2</td><td><strong>3</strong></td></tr></tbody></table></div><hr>"
        '<div class="code"><pre tabindex="0"><code>x = "&lt;b&gt;"</code></pre>'
        '<button type="button" name="copy" aria-label="Copy the code">Copy</button></div>'
    )


def test_hostile_markdown_ends(page: Any) -> None:
    for text in (">" * 20000, "- " * 20000, "`" * 20000, "|" * 20000 + "\n" + "|-" * 20000, "*" * 20000, "[" * 20000):
        shown = page.evaluate(
            """async (text) => {
                const { markdown } = await import("./markdown.js");
                const begun = performance.now();
                markdown(text);
                return performance.now() - begun;
            }""",
            text,
        )
        assert shown < 5000, text[:4]


def test_the_keyboard_alone_is_enough_and_never_loses_its_place(page: Any) -> None:
    def focused() -> str:
        return str(page.evaluate("document.activeElement.id || document.activeElement.textContent"))

    def tab_to(name: str) -> None:
        for _ in range(40):
            if focused() == name:
                return
            page.keyboard.press("Tab")
        raise AssertionError(f"{name} cannot be reached; the focus is on {focused()}")

    tab_to("Settings")
    page.keyboard.press("Enter")
    tab_to("system")
    page.keyboard.type("Be brief.")
    tab_to("length")
    page.keyboard.type("12")
    tab_to("question")
    with page.expect_request("**/v1/chat/completions") as asked:
        page.keyboard.type("The first question")
        page.keyboard.press("Enter")
    assert asked.value.post_data_json["messages"][0] == {"role": "system", "content": "Be brief."}
    page.wait_for_selector("#retry")
    assert focused() == "question"
    # Screen readers hear the whole answer, once.
    content = page.evaluate(
        """() => {
            const [name] = Object.keys(localStorage).filter((each) => each.startsWith("edge-spec conversation "));
            return JSON.parse(localStorage[name]).turns[0].answer.content;
        }"""
    )
    assert page.locator("#said").evaluate("e => e.textContent") == f"Answer: {content}"
    assert page.locator("#said").get_attribute("role") == "log"
    page.evaluate("document.getElementById('retry').focus()")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#retry")).to_be_focused()
    tab_to("question")
    page.locator("#new").focus()
    page.keyboard.press("Enter")
    assert focused() == "question"
    page.keyboard.type("The second question")
    page.keyboard.press("Enter")
    page.wait_for_selector("#retry")
    page.locator("#list-button").focus()
    page.keyboard.press("Enter")
    tab_to("The second question")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert focused() == "The first question"
    page.keyboard.press("Enter")
    assert focused() == "question"
    assert page.locator("#list").is_hidden()


def test_the_stop_button_stops_and_keeps_what_is_there(page: Any) -> None:
    page.route(
        "**/v1/chat/completions", lambda route: route.continue_(post_data=_endless(route.request.post_data_json))
    )
    page.locator("#question").fill("Go on and on.")
    page.locator("#send").click()
    sync_api.expect(page.locator("li.assistant")).to_have_text(re.compile(".{40,}", re.DOTALL))
    assert page.evaluate("document.activeElement.id") == "stop"
    page.locator("#stop").click()
    page.wait_for_selector("#retry")
    assert page.evaluate("document.activeElement.id") == "question"


def test_what_is_left_out_is_the_servers_and_settings_last(page: Any) -> None:
    short(page)
    with page.expect_request("**/v1/chat/completions") as asked:
        answer(page, "Hello")
    assert "temperature" not in asked.value.post_data_json
    assert page.locator("#temperature").get_attribute("placeholder") == "0.8"
    for name, value in (("temperature", "0"), ("key", "secret")):
        page.locator(f"#{name}").fill(value)
        page.locator(f"#{name}").blur()
    page.reload()
    sync_api.expect(page.locator("#model")).to_have_text("demo")
    kept = [page.locator(f"#{name}").input_value() for name in ("temperature", "length", "key")]
    assert kept == ["0", "12", "secret"]
    assert "secret" not in page.evaluate("JSON.stringify(localStorage)")
    with page.expect_request("**/v1/chat/completions") as asked:
        answer(page, "Hello")
    assert asked.value.post_data_json["temperature"] == 0


def test_a_page_that_was_there_before_its_server_asks_all_the_same(browser: Any, served: Any) -> None:
    page = browser.new_page()
    page.route("**/v1/models", lambda route: route.abort())
    page.goto(served.url)
    sync_api.expect(page.locator("#status")).not_to_be_empty()
    page.unroute("**/v1/models")
    short(page)
    assert len(answer(page, "Tell me a story.")) > 10
    sync_api.expect(page.locator("#model")).to_have_text("demo")
    page.close()


def test_a_long_list_scrolls_and_leaves_room(page: Any) -> None:
    page.evaluate(
        """localStorage['edge-spec conversations'] = JSON.stringify([...Array(60).keys()].map((n) => (
            { id: String(n), system: "", messages: [{ role: "user", content: `question ${n}` }] })))"""
    )
    page.reload()
    page.locator("#list-button").click()
    assert page.locator("#list").bounding_box()["height"] <= 260
    assert page.locator("#question").bounding_box()["y"] < 640


def test_dark_and_light_are_different(browser: Any, served: Any) -> None:
    colors = set()
    for scheme in ("dark", "light"):
        page = browser.new_page(color_scheme=scheme)
        page.goto(served.url)
        colors.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.close()
    assert len(colors) == 2


def test_everything_has_a_name_for_screen_readers(page: Any) -> None:
    page.locator("#settings summary").click()
    found = page.locator("button, input, textarea, progress").all()
    assert len(found) > 3
    for each in found:
        named = each.evaluate(
            "e => e.textContent.trim() || e.getAttribute('aria-label') || (e.labels && e.labels[0]?.textContent.trim())"
        )
        assert named, each.evaluate("e => e.outerHTML")
