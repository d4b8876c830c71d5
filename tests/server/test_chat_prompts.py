"""Laws of prompts for chat templates that know no tools, no system message, or only turns that alternate."""

from __future__ import annotations

from typing import Any

import pytest

from edge_spec.errors import PromptError
from edge_spec.generation.prompts import PromptBuilder
from edge_spec.generation.tools.chat_prompts import chat_prompt
from edge_spec.generation.tools.syntax import HERMES

ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
TEMPLATES = {
    "like Gemma 2's": "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + ALTERNATING,
    # Its own form of calls is one that is not parsed, and ids of calls have to have nine characters.
    "like Mistral's": "{% set first = messages[0].content if messages[0].role == 'system' else '' %}{{ first }}"
    "{% set messages = messages[1:] if first else messages %}"
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools }}{% endif %}"
    "{% for m in messages if m.tool_calls %}[TOOL_CALLS]{% for call in m.tool_calls %}{% if call.id|length != 9 %}"
    "{{ raise_exception('ids have nine characters') }}{% endif %}{% endfor %}{% endfor %}" + ALTERNATING,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Now.", "parameters": {}}}
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Weather?"}
CALLS = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": f"call_{city}", "type": "function", "function": {"name": "get_weather", "arguments": {"city": city}}}
        for city in ("Rome", "Oslo")
    ],
}
RESULTS = [{"role": "tool", "tool_call_id": f"call_{city}", "content": f"rain in {city}"} for city in ("Rome", "Oslo")]
ANSWER = {"role": "assistant", "content": "Rain."}


class Names:
    """What a template asks of a tokenizer."""

    bos = eos = 0
    control_names: tuple[str, ...] = ()

    def name(self, token: int) -> str:
        return "<s>"


def written(template: str, messages: list[dict[str, Any]], tools: list[Any]) -> str:
    tokenizer: Any = Names()
    text, syntax = chat_prompt(PromptBuilder(tokenizer, template, 2), messages, tools, {})
    assert syntax is HERMES
    return text


@pytest.mark.parametrize("system", [[], [SYSTEM]], ids=["no system message", "a system message"])
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_a_conversation_with_calls_is_written_for_every_template(template: str, system: list[dict[str, Any]]) -> None:
    called = [*system, QUESTION, CALLS]
    for more in (*(RESULTS[:n] for n in range(1, len(RESULTS) + 1)), [*RESULTS, ANSWER, QUESTION]):
        text = written(template, [*called, *more], [TOOL])
        parts = ["get_weather", "<tool_call>", "Weather?", '{"city": "Rome"}', '{"city": "Oslo"}', "rain in Rome"]
        places = [text.index(part) for part in parts]
        assert places == sorted(places)
        assert ("Be brief." in text) == bool(system)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_a_system_message_is_never_refused_nor_lost(template: str) -> None:
    text = written(template, [SYSTEM, QUESTION], [])
    assert text.index("Be brief.") < text.index("Weather?")


def test_what_a_template_refuses_otherwise_is_an_error() -> None:
    with pytest.raises(PromptError, match="alternate"):
        written(TEMPLATES["like Gemma 2's"], [QUESTION, QUESTION], [])
    with pytest.raises(PromptError, match="alternate"):
        written(TEMPLATES["like Gemma 2's"], [SYSTEM, QUESTION, QUESTION], [])


@pytest.mark.parametrize("end", ["", "</{{ m.role }}>", "e"])
@pytest.mark.parametrize("content", ["Once upon", "e", " a </assistant> b ", "<s>", "x\n"])
@pytest.mark.parametrize("trimmed", ["", "|trim"])
def test_a_last_message_that_is_continued_ends_the_prompt(end: str, content: str, trimmed: str) -> None:
    template = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content" + trimmed + " }}" + end
    template += "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    tokenizer: Any = Names()
    messages = [QUESTION, {"role": "assistant", "content": content}]
    text, _ = chat_prompt(PromptBuilder(tokenizer, template, 2), messages, [], {}, continues=True)
    closing = end.replace("{{ m.role }}", "user")
    # Space before a text may be cut by a template, space at its end belongs to what is continued.
    assert text == f"<s><user>Weather?{closing}<assistant>" + (content.lstrip() if trimmed else content)


def test_a_template_that_leaves_the_last_message_out_is_refused() -> None:
    tokenizer: Any = Names()
    with pytest.raises(PromptError, match="leaves the last message out"):
        chat_prompt(
            PromptBuilder(tokenizer, "{{ messages[0].content }}", 2), [QUESTION, ANSWER], [], {}, continues=True
        )
