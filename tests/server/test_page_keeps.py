"""Laws of the page in a real browser: it loses nothing that was typed, asked or answered."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

pytestmark = pytest.mark.slow

CHAT = "**/v1/chat/completions"


def ask(page: Any, text: str) -> None:
    page.locator("#question").fill(text)
    page.locator("#question").press("Enter")


def questions(page: Any) -> list[str]:
    return [text.removeprefix("You: ") for text in page.locator("li.user").all_text_contents()]


def last(page: Any) -> Any:
    return page.locator("li.assistant").last


def reload(page: Any) -> None:
    page.reload()
    page.get_by_role("heading", name="demo").wait_for()


def open_conversation(page: Any, title: str) -> None:
    page.locator("#list-button").click()
    page.get_by_role("button", name=title, exact=True).click()


def kept_answer(page: Any) -> dict[str, Any]:
    """The last answer of the only conversation, as the browser keeps it."""
    names = page.evaluate("Object.keys(localStorage)")
    (name,) = [each for each in names if each.startswith("edge-spec conversation ")]
    answer = json.loads(page.evaluate("(name) => localStorage[name]", name))["turns"][-1]["answer"]
    assert isinstance(answer, dict)
    return answer


def without_end(page: Any) -> None:
    """Let the model write until the context is full."""
    page.route(CHAT, lambda route: route.continue_(post_data={**route.request.post_data_json, "ignore_eos": True}))


def begun(page: Any, n: int = 40) -> str:
    """Wait for a part of the last answer, and return it."""
    expect(last(page)).to_have_text(re.compile(f".{{{n},}}", re.DOTALL))
    return str(last(page).text_content())


def answering(page: Any, *pieces: str, ended_by: str = "eos") -> list[dict[str, Any]]:
    """Answer in the server's place; returns a list to which what is asked is added."""
    asked: list[dict[str, Any]] = []

    def fulfil(route: Any) -> None:
        asked.append(route.request.post_data_json)
        chunks = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
        end = {"choices": [{"delta": {}, "finish_reason": "stop", "ended_by": ended_by}]}
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in [*chunks, end])
        route.fulfill(content_type="text/event-stream", body=body + "data: [DONE]\n\n")

    page.unroute(CHAT)
    page.route(CHAT, fulfil)
    return asked


def fill_store(page: Any) -> None:
    """Leave room for a few hundred characters more."""
    page.evaluate(
        """() => {
            let size = 4_000_000;
            for (let n = 0; size > 200; n++) {
                try { localStorage[`filler ${n}`] = "x".repeat(size); } catch { size = Math.floor(size / 2); }
            }
        }"""
    )


def empty_store(page: Any) -> None:
    page.evaluate(
        "Object.keys(localStorage).filter((name) => name.startsWith('filler')).forEach((n) => delete localStorage[n])"
    )


# --- a reload


def test_a_reload_within_an_answer_keeps_the_question_and_what_was_answered(page: Any) -> None:
    without_end(page)
    ask(page, "Tell me a very long story about the sea.")
    seen = begun(page)
    reload(page)
    assert questions(page) == ["Tell me a very long story about the sea."]
    assert str(last(page).text_content()).startswith(seen)
    expect(last(page).locator(".note")).to_have_text("Broken off: the page was closed.")
    answering(page, "Once more.")
    page.locator("#retry").click()
    expect(last(page)).to_contain_text("Once more.")
    expect(last(page).locator(".note")).to_have_count(0)
    reload(page)
    expect(last(page)).to_contain_text("Once more.")


def test_a_question_is_kept_before_anything_is_answered(page: Any) -> None:
    page.route(CHAT, lambda route: None)
    ask(page, "Are you there?")
    reload(page)
    assert questions(page) == ["Are you there?"]
    asked = answering(page, "Yes.")
    page.locator("#retry").click()
    expect(last(page)).to_contain_text("Yes.")
    assert asked[0]["messages"] == [{"role": "user", "content": "Are you there?"}]


def test_drafts_and_the_conversation_that_is_shown_are_kept(page: Any, windows: Callable[[], Any]) -> None:
    answering(page, "Yes.")
    ask(page, "First")
    expect(last(page)).to_contain_text("Yes.")
    page.locator("#question").fill("a draft of the first one")
    page.locator("#new").click()
    expect(page.locator("#question")).to_have_value("")
    page.locator("#question").fill("a draft of a new one")
    reload(page)
    expect(page.locator("#question")).to_have_value("a draft of a new one")
    open_conversation(page, "First")
    expect(page.locator("#question")).to_have_value("a draft of the first one")
    reload(page)
    expect(page.locator("#question")).to_have_value("a draft of the first one")
    assert questions(page) == ["First"]
    # What is sent is no draft any more.
    page.locator("#question").press("Enter")
    expect(page.locator("li.user")).to_have_count(2)
    reload(page)
    expect(page.locator("#question")).to_have_value("")
    # Nor does a draft go with its window.
    page.close()
    other = windows()
    open_conversation(other, "New conversation")
    expect(other.locator("#question")).to_have_value("a draft of a new one")


# --- several windows


def test_windows_add_to_one_history(page: Any, windows: Callable[[], Any]) -> None:
    other = windows()
    for each, text in ((page, "One"), (other, "Two"), (page, "One again")):
        answering(each, f"To {text}.")
        ask(each, text)
        expect(last(each)).to_contain_text(f"To {text}.")
    for each in (page, other):
        reload(each)
        each.locator("#list-button").click()
        titles = each.locator("#list li button:first-child").all_text_contents()
        assert sorted(titles) == ["One", "Two"]
    assert questions(page) == ["One", "One again"]


def test_windows_show_what_another_one_adds_to_the_same_conversation(page: Any, windows: Callable[[], Any]) -> None:
    answering(page, "To the first.")
    ask(page, "First")
    expect(last(page)).to_contain_text("To the first.")
    other = windows()
    asked = answering(other, "To the second.")
    ask(other, "Second")
    expect(last(page)).to_contain_text("To the second.")
    answering(page, "To the third.")
    ask(page, "Third")
    expect(last(other)).to_contain_text("To the third.")
    assert questions(page) == questions(other) == ["First", "Second", "Third"]
    assert [each["content"] for each in asked[0]["messages"]] == ["First", "To the first.", "Second"]


def test_copies_of_a_conversation_become_the_same_in_any_order(page: Any) -> None:
    joined = page.evaluate(
        """async () => {
            const made = await import("./conversation.js");
            const { addTurn, created, isAhead, join, setAnswer, setSystem, takeBack } = made;
            const copy = (value) => structuredClone(value);
            const first = created();
            addTurn(first, "both");
            const second = copy(first), third = copy(first);
            setSystem(first, "of the first");
            addTurn(second, "of the second");
            setAnswer(second.turns[0], { ...second.turns[0].answer, content: "an answer" });
            addTurn(third, "of the third");
            takeBack(addTurn(third, "taken back"));
            const orders = [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1]]
                .map((order) => order.map((number) => [first, second, third][number]));
            const seen = orders.map((order) => {
                const all = copy(order[0]);
                for (const each of [...order, ...order]) join(all, copy(each));
                return [JSON.stringify(all), order.map((each) => [isAhead(all, each), isAhead(each, all)])];
            });
            return [[...new Set(seen.map(([all]) => all))], seen.map(([, ahead]) => ahead)];
        }"""
    )
    (all_joined,), ahead = joined
    found = json.loads(all_joined)
    assert found["system"]["text"] == "of the first"
    assert [found["turns"][0][part] for part in ("question", "draws")] == ["both", 0]
    assert found["turns"][0]["answer"]["content"] == "an answer"
    assert {turn["question"] for turn in found["turns"]} == {"both", "of the second", "of the third", ""}
    # The whole knows what each copy does not, never the other way.
    assert all(pair == [True, False] for order in ahead for pair in order)


def test_a_window_joins_what_it_has_not_heard_of_yet(page: Any) -> None:
    answering(page, "Yes.")
    ask(page, "First")
    expect(last(page)).to_contain_text("Yes.")
    # What a window writes itself is not told to it.
    page.evaluate(
        """() => {
            const name = Object.keys(localStorage).find((each) => each.startsWith("edge-spec conversation "));
            const record = JSON.parse(localStorage[name]);
            record.turns.push({ ...record.turns[0], id: "other", question: "Of the other" });
            localStorage[name] = JSON.stringify(record);
        }"""
    )
    ask(page, "Second")
    expect(page.locator("li.user")).to_have_count(3)
    reload(page)
    assert sorted(questions(page)) == ["First", "Of the other", "Second"]


def test_what_two_windows_wrote_at_the_same_moment_is_written_again(page: Any, windows: Callable[[], Any]) -> None:
    answering(page, "Yes.")
    ask(page, "First")
    expect(last(page)).to_contain_text("Yes.")
    other = windows()
    # As if its write had come just after that of the first window, and without a look at it.
    other.evaluate(
        """() => {
            const name = Object.keys(localStorage).find((each) => each.startsWith("edge-spec conversation "));
            const record = JSON.parse(localStorage[name]);
            const turn = record.turns.pop();
            record.turns.push({ ...turn, id: "other", question: "Of the other", asked: turn.asked + 1 });
            localStorage[name] = JSON.stringify(record);
        }"""
    )
    expect(page.locator("li.user")).to_have_count(2)
    expect(other.locator("li.user")).to_have_count(2)
    reload(page)
    assert questions(page) == ["First", "Of the other"]


def test_an_answer_that_another_window_writes_is_seen_and_left_alone(page: Any, windows: Callable[[], Any]) -> None:
    without_end(page)
    ask(page, "Go on and on.")
    begun(page)
    other = windows()
    expect(last(other).locator(".note")).to_have_text("Another window is writing this answer.")
    assert other.locator("#retry, #continue").count() == 0
    length = len(str(last(other).text_content()))
    begun(other, length + 40)
    ask(other, "Meanwhile")
    expect(other.locator("#status")).to_contain_text("Another window is writing")
    expect(other.locator("#question")).to_have_value("Meanwhile")
    page.locator("#stop").click()
    expect(last(other).locator(".note")).to_have_text("Stopped.")
    page.locator("#retry").click()
    expect(last(other).locator(".note")).to_have_text("Another window is writing this answer.")
    page.close()
    expect(last(other).locator(".note")).to_have_text("Broken off: the page was closed.")
    assert other.locator("#continue").count() == 1


def test_what_another_window_deletes_stays_on_the_screen(page: Any, windows: Callable[[], Any]) -> None:
    answering(page, "Yes.")
    ask(page, "First")
    expect(last(page)).to_contain_text("Yes.")
    other = windows()
    other.locator("#list-button").click()
    other.get_by_role("button", name="Delete First").click()
    expect(page.locator("#unkept")).to_contain_text("deleted in another window")
    assert questions(page) == ["First"]
    ask(page, "Second")
    expect(last(page)).to_contain_text("Yes.")
    expect(page.locator("#unkept")).to_be_empty()
    reload(page)
    assert questions(page) == ["First", "Second"]


# --- no room


def test_a_full_store_is_told_and_loses_nothing_that_is_shown(page: Any) -> None:
    answering(page, "Yes. " * 200)
    ask(page, "First")
    expect(page.locator("#retry")).to_be_visible()
    fill_store(page)
    ask(page, "Second")
    expect(page.locator("li.assistant")).to_have_count(2)
    expect(page.locator("#unkept")).to_contain_text("keeps no more")
    page.locator("#new").click()
    ask(page, "Third")
    expect(last(page)).to_contain_text("Yes.")
    open_conversation(page, "First")
    assert questions(page) == ["First", "Second"]
    # The browser asks before it closes the page.
    said: list[str] = []

    def stay(dialog: Any) -> None:
        said.append(dialog.type)
        dialog.dismiss()

    page.once("dialog", stay)
    page.close(run_before_unload=True)
    page.wait_for_timeout(500)
    assert said == ["beforeunload"] and not page.is_closed()
    # With room again, all of it is written.
    empty_store(page)
    page.locator("#new").click()
    ask(page, "Fourth")
    expect(last(page)).to_contain_text("Yes.")
    expect(page.locator("#unkept")).to_be_empty()
    reload(page)
    page.locator("#list-button").click()
    titles = page.locator("#list li button:first-child").all_text_contents()
    assert titles == ["Fourth", "Third", "First"]
    page.get_by_role("button", name="First", exact=True).click()
    assert questions(page) == ["First", "Second"]


def test_deleting_a_conversation_makes_room_for_the_others(page: Any) -> None:
    answering(page, "Yes. " * 2000)
    ask(page, "Large")
    expect(page.locator("#retry")).to_be_visible()
    fill_store(page)
    answering(page, "Yes. " * 200)
    page.locator("#new").click()
    ask(page, "Small")
    expect(page.locator("#unkept")).to_contain_text("keeps no more")
    page.locator("#list-button").click()
    page.get_by_role("button", name="Delete Large").click()
    expect(page.locator("#unkept")).to_be_empty()
    reload(page)
    assert questions(page) == ["Small"]
    expect(last(page)).to_contain_text("Yes. Yes.")


# --- what was kept before


def messages(question: str, answer: str) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer, "thought": "", "tokens": [], "attempt": 1},
    ]


def put_former(page: Any, conversations: list[dict[str, Any]]) -> None:
    page.evaluate("(kept) => (localStorage['edge-spec conversations'] = JSON.stringify(kept))", conversations)


def test_the_former_history_is_taken_over_once(page: Any) -> None:
    newest = {"id": "2", "system": "", "messages": [*messages("Newest", "Yes."), {"role": "user", "content": "And?"}]}
    oldest = {"id": "1", "system": "Be brief.", "seed": 7, "messages": messages("Oldest", "No.") * 12}
    put_former(page, [newest, oldest, {"id": "3"}])
    reload(page)
    assert questions(page) == ["Newest", "And?"]
    open_conversation(page, "Oldest")
    assert questions(page) == ["Oldest"] * 12
    assert page.locator("#system").input_value() == "Be brief."
    asked = answering(page, "Perhaps.")
    page.locator("#retry").click()
    expect(last(page)).to_contain_text("Perhaps.")
    # The next draw of the same seed, as before.
    assert asked[0]["seed"] == 7 + 2
    page.locator("#list-button").click()
    page.get_by_role("button", name="Delete Newest").click()
    reload(page)
    page.locator("#list-button").click()
    assert page.locator("#list li button:first-child").all_text_contents() == ["Oldest"]
    expect(last(page)).to_contain_text("Perhaps.")


def test_a_former_history_that_fills_most_of_the_store_is_taken_over_as_well(page: Any) -> None:
    put_former(page, [{"id": str(n), "system": "", "messages": messages(f"q{n}", "x" * 400_000)} for n in range(10)])
    reload(page)
    expect(page.locator("#unkept")).to_be_empty()
    page.locator("#list-button").click()
    assert page.locator("#list li button:first-child").all_text_contents() == [f"q{n}" for n in range(10)]
    names = page.evaluate("Object.keys(localStorage)")
    assert len(names) == 10 and "edge-spec conversations" not in names


def test_a_former_history_without_room_stays_where_it_is(page: Any) -> None:
    put_former(page, [{"id": "1", "system": "", "messages": messages("Large", "x" * 10_000)}])
    fill_store(page)
    reload(page)
    assert questions(page) == ["Large"]
    expect(page.locator("#unkept")).to_contain_text("keeps no more")
    assert "edge-spec conversations" in page.evaluate("Object.keys(localStorage)")
    page.locator("#list-button").click()
    page.get_by_role("button", name="Delete Large").click()
    assert "edge-spec conversations" not in page.evaluate("Object.keys(localStorage)")


# --- stopped, continued, failed


def test_a_stopped_answer_says_so_with_its_figures_and_is_continued(page: Any) -> None:
    without_end(page)
    ask(page, "Go on and on.")
    begun(page, 80)
    page.locator("#stop").click()
    expect(last(page).locator(".note")).to_have_text("Stopped.")
    figures = page.locator("#speed").text_content()
    assert re.fullmatch(r"\d+ tokens/s · \d+\.\d\d tokens per round", figures)
    reload(page)
    expect(last(page).locator(".note")).to_have_text("Stopped.")
    assert page.locator("#speed").text_content() == figures
    stopped = kept_answer(page)
    asked = answering(page, " and", " this.")
    page.locator("#continue").focus()
    page.keyboard.press("Enter")
    expect(last(page)).to_contain_text(" and this.")
    assert asked[0]["continue_final_message"] is True and asked[0]["add_generation_prompt"] is False
    assert asked[0]["messages"][-1] == {"role": "assistant", "content": stopped["content"]}
    expect(last(page).locator(".note")).to_have_count(0)
    kept = kept_answer(page)
    assert kept["content"] == stopped["content"] + " and this."
    # What has the focus is still there.
    expect(page.locator("#retry")).to_be_focused()


def test_the_server_continues_what_was_stopped(page: Any) -> None:
    without_end(page)
    ask(page, "Go on and on.")
    begun(page, 80)
    page.locator("#stop").click()
    expect(page.locator("#continue")).to_be_visible()
    stopped = kept_answer(page)["content"]
    page.locator("#length").evaluate("(field) => (field.value = 8)")
    page.locator("#continue").click()
    expect(last(page).locator(".note")).to_have_text("Stopped at the longest length.")
    answer = kept_answer(page)
    assert answer["content"].startswith(stopped) and len(answer["content"]) > len(stopped)
    assert "".join(text for text, _, _ in answer["tokens"]) == answer["content"]


def test_an_answer_at_its_longest_length_says_so(page: Any) -> None:
    answering(page, "Once upon", ended_by="length")
    ask(page, "A story.")
    expect(last(page).locator(".note")).to_have_text("Stopped at the longest length.")
    assert page.locator("#continue").count() == 1


def test_what_fails_or_is_stopped_leaves_what_was_there(page: Any) -> None:
    page.route(CHAT, lambda route: route.abort())
    ask(page, "First")
    expect(page.locator("#status")).to_contain_text("the connection to the server was lost")
    expect(page.locator("#question")).to_have_value("First")
    assert questions(page) == []
    answering(page, "Yes.")
    page.locator("#question").press("Enter")
    expect(last(page)).to_contain_text("Yes.")
    # Another try that does not begin takes nothing away.
    page.unroute(CHAT)
    page.route(CHAT, lambda route: route.abort())
    page.locator("#retry").click()
    expect(page.locator("#status")).to_contain_text("the connection to the server was lost")
    expect(last(page)).to_contain_text("Yes.")
    page.unroute(CHAT)
    page.route(CHAT, lambda route: None)
    page.locator("#retry").click()
    page.locator("#stop").click()
    expect(last(page)).to_contain_text("Yes.")
    # Where something else was typed meanwhile, the question stays in the conversation.
    ask(page, "Second")
    page.locator("#question").fill("Third")
    page.locator("#stop").click()
    expect(last(page).locator(".note")).to_have_text("Stopped.")
    expect(page.locator("#question")).to_have_value("Third")
    reload(page)
    assert questions(page) == ["First", "Second"]
    expect(page.locator("#question")).to_have_value("Third")


def test_an_answer_whose_connection_breaks_is_kept_as_far_as_it_came(page: Any) -> None:
    chunk = json.dumps({"choices": [{"delta": {"content": "Half an"}}]})
    page.route(CHAT, lambda route: route.fulfill(content_type="text/event-stream", body=f"data: {chunk}\n\n"))
    ask(page, "First")
    expect(last(page).locator(".note")).to_contain_text("Broken off: the connection to the server was lost")
    reload(page)
    expect(last(page)).to_contain_text("Half an")
    assert page.locator("#continue").count() == 1


# --- meanwhile


def test_other_conversations_are_used_while_an_answer_is_written(page: Any) -> None:
    without_end(page)
    ask(page, "Go on and on.")
    seen = begun(page)
    page.locator("#new").click()
    expect(page.locator("li")).to_have_count(2)  # of the list, which is closed
    expect(page.locator("#send")).to_be_visible()
    page.locator("#length").evaluate("(field) => (field.value = 8)")
    ask(page, "Second")
    expect(page.locator("#retry")).to_be_visible()
    page.locator("#list-button").click()
    expect(page.locator("#list li", has_text="Go on and on.")).to_contain_text("being written")
    page.get_by_role("button", name="Go on and on.", exact=True).click()
    expect(page.locator("#stop")).to_be_visible()
    assert begun(page, len(seen) + 40).startswith(seen)
    # Escape stops the one that is shown.
    page.keyboard.press("Escape")
    expect(last(page).locator(".note")).to_have_text("Stopped.")
    open_conversation(page, "Second")
    expect(last(page).locator(".note")).to_have_text("Stopped at the longest length.")


def test_an_answer_that_ends_elsewhere_takes_no_focus(page: Any) -> None:
    held: list[Any] = []
    page.route(CHAT, lambda route: held.append(route))
    ask(page, "First")
    page.locator("#new").click()
    page.locator("#list-button").click()
    page.get_by_role("button", name="Delete New conversation").focus()
    while not held:
        page.wait_for_timeout(20)
    held[0].abort()
    # It went back to where it was typed.
    expect(page.get_by_role("button", name="First", exact=True)).to_have_count(0)
    expect(page.get_by_role("button", name="New conversation", exact=True)).to_have_count(2)
    focused = page.evaluate("document.activeElement.ariaLabel")
    assert focused == "Delete New conversation"


# --- copying, and the first look


@pytest.mark.parametrize("has_clipboard", [True, False])
def test_answers_and_code_are_copied(page: Any, *, has_clipboard: bool) -> None:
    if not has_clipboard:
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    written = "Here:\n```py\nprint(1)\n```\nThat is **all**."
    answering(page, written)
    ask(page, "Some code, please.")
    for name, text in (("Copy the code", "print(1)"), ("Copy the answer", written)):
        button = page.get_by_role("button", name=name)
        button.focus()
        page.keyboard.press("Enter")
        expect(page.locator("button[name=copy]", has_text="Copied")).to_be_focused()
        page.locator("#question").fill("")
        page.locator("#question").press("Control+V")
        expect(page.locator("#question")).to_have_value(text)
        expect(button).to_be_visible(timeout=10_000)


def test_what_is_typed_first_goes_into_the_box(page: Any) -> None:
    page.keyboard.type("Hello")
    expect(page.locator("#question")).to_have_value("Hello")


@pytest.mark.parametrize("width", [390, 1100])
def test_the_line_of_figures_begins_where_all_else_does(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    expect(page.locator("#bytes")).to_contain_text("MiB")
    left = page.locator("#figures label").bounding_box()["x"]
    assert abs(left - page.locator("#question").bounding_box()["x"]) < 1


def test_what_is_told_of_an_answer_is_seen_without_scrolling(page: Any) -> None:
    answering(page, "\n\n".join(f"Line {n}" for n in range(60)), ended_by="length")
    ask(page, "Many lines, please.")
    expect(page.locator("#continue")).to_be_in_viewport()
    # Who reads further up is left there.
    page.locator("main").evaluate("(main) => (main.scrollTop = 100)")
    page.locator("#colors").evaluate("(box) => box.click()")
    assert page.locator("main").evaluate("(main) => main.scrollTop") == 100


def test_selected_text_stays_selected_while_another_window_writes(page: Any, windows: Callable[[], Any]) -> None:
    answering(page, "An answer to be read.")
    ask(page, "First")
    expect(last(page)).to_contain_text("to be read")
    other = windows()
    page.locator("li.assistant p").first.select_text()
    without_end(other)
    ask(other, "Second")
    begun(page)
    assert page.evaluate("getSelection().toString()") == "An answer to be read."
