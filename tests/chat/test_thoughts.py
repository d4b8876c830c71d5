"""Laws of thoughts: told from answers by every family's marks, wherever the text is cut."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from edge_spec.chat.conversation import Message
from edge_spec.generation.thoughts import HARMONY, THOUGHTS, Thinking, ThoughtMarks, answer_of, marks_of, thought_of

THOUGHT, ANSWER = "\nI <could> say </this> or <|that|>, é.\n", "Yes <b>it</b> is."


def whole(marks: ThoughtMarks) -> str:
    return f"{marks.opening}{THOUGHT}{marks.closing}{marks.between}{marks.answer}{ANSWER}"


def parts(pieces: Iterable[str], before: str = "", *, is_cut: bool = False) -> tuple[str, str]:
    """The thought and the answer."""
    thinking = Thinking(before)
    found = [part for piece in pieces for part in thinking.push(piece)] + thinking.finish(is_cut=is_cut)
    assert all(text for _, text in found)
    return "".join(text for thinks, text in found if thinks), "".join(text for thinks, text in found if not thinks)


@pytest.mark.parametrize("marks", THOUGHTS, ids=lambda marks: marks.opening)
def test_thoughts_are_told_from_answers_wherever_the_text_is_cut(marks: ThoughtMarks) -> None:
    text = whole(marks)
    assert (thought_of(text), answer_of(text)) == (THOUGHT.strip(), ANSWER)
    assert parts(text) == (THOUGHT, ANSWER)
    for place in range(len(text)):
        assert parts([text[:place], text[place:]]) == (THOUGHT, ANSWER)
        # A prompt may have written some of it.
        if len(marks.opening) <= place <= len(marks.opening + THOUGHT):
            rest = parts([text[place:]], text[:place])
            assert (THOUGHT.endswith(rest[0]), rest[1]) == (True, ANSWER)


@pytest.mark.parametrize("marks", THOUGHTS, ids=lambda marks: marks.opening)
def test_of_a_text_that_is_cut_nothing_is_told_that_the_whole_one_does_not_say(marks: ThoughtMarks) -> None:
    text = whole(marks)
    for place in range(len(text)):
        thought, answer = parts(text[:place], is_cut=True)
        assert THOUGHT.startswith(thought) and ANSWER.startswith(answer), text[:place]
    assert parts(text[:-1], is_cut=True) == (THOUGHT, ANSWER[:-1])


CHANNELS = {
    "<|channel|>final<|message|>Yes.": ("", "Yes."),
    "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>": ("a\n\nb", ""),
    "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Yes.": ("a", "I look.\n\nYes."),
    "<|channel|>analysis to=python<|message|>1+1<|end|>": ("1+1", ""),
    "<|channel|>final <|constrain|>json<|message|>{}": ("", "{}"),
    "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}": ("", " to=functions.f<|message|>{}"),
    " to=functions.f<|channel|>commentary json<|message|>{}": ("", " to=functions.f<|message|>{}"),
    "No channel.": ("", "No channel."),
    "<|channel|>analysis": ("", ""),
    "": ("", ""),
}


@pytest.mark.parametrize("text", CHANNELS)
def test_channels_are_thoughts_answers_and_calls(text: str) -> None:
    assert parts(text, HARMONY.between) == CHANNELS[text]
    assert parts([text], HARMONY.between) == CHANNELS[text]


PLACES = {
    ("<think>Hm < so</think>\n\nYes <b>", ""): ("Hm < so", "Yes <b>"),
    (" <think>open", ""): ("open", ""),
    ("so</think>Yes", "<think>\n"): ("so", "Yes"),
    ("plain <think>no</think>", ""): ("", "plain <think>no</think>"),
    ("more", "<think>a</think>b"): ("", "more"),
    ("<|channel>thought\nHm </think> <channel|>Yes <channel|>", ""): ("\nHm </think> ", "Yes <channel|>"),
    ("<|channel>thought\nHm <chan", ""): ("\nHm <chan", ""),
    ("so<channel|>Yes", "<|channel>thought\n"): ("so", "Yes"),
    ("Yes", "<|channel>thought\n<channel|>"): ("", "Yes"),
    ("<|channel>final", ""): ("", "<|channel>final"),
    ("<think><channel|></think>Yes", ""): ("<channel|>", "Yes"),
}
"""What a model writes, and what the prompt has written before."""


@pytest.mark.parametrize(("text", "before"), PLACES)
def test_only_what_comes_first_is_a_thought(text: str, before: str) -> None:
    assert parts(text, before) == parts([text], before) == PLACES[text, before]


def test_templates_show_the_marks() -> None:
    for marks in THOUGHTS:
        assert marks_of(f"{{{{ '{marks.opening}' + thought + '{marks.closing}' }}}}") is marks
    assert marks_of("{{ messages }}") is THOUGHTS[0]


def test_a_template_that_refuses_channels_gets_thought_and_answer() -> None:
    message = Message(role="assistant", content=HARMONY.between + whole(HARMONY))
    assert message.for_template() == {"role": "assistant", "content": ANSWER, "thinking": THOUGHT.strip()}
    for marks in THOUGHTS[:-1]:
        content = whole(marks)
        assert Message(role="assistant", content=content).for_template()["content"] == content
