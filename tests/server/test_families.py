"""Laws of tools in the forms of families people run: what a template writes of a call, the model may write, and it is
read as the same call.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from family_templates import FAMILIES
from marked_vocabulary import Marked, takes

from edge_spec.generation.prompts import PromptBuilder
from edge_spec.generation.thoughts import marks_of
from edge_spec.generation.tools.answers import AnswerParser, MergedMessage
from edge_spec.generation.tools.chat_prompts import chat_prompt
from edge_spec.generation.tools.functions import Tool
from edge_spec.generation.tools.grammar import calls_grammar, schema_of
from edge_spec.generation.tools.syntax import FORMS, HERMES, LLAMA, CallSyntax, syntax_of

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTIONS = [Tool(name="get_weather", parameters=CITY), Tool(name="get_time")]
SCHEMAS = {function.name: schema_of(function) for function in FUNCTIONS}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Now.", "parameters": CITY}}]
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Weather?"}
ENDS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<turn|>",
    "<|call|>",
    "</s>",
    "<|end_of_text|>",
    "<|tool_response>",
    "<|assistant|>",
)
THOUGHT = "\nIn a <tool_call> or <|tool_call> I would name the city.\n"
OPTIONS = {"Qwen 3.5": {"enable_thinking": False}, "Gemma 4": {"enable_thinking": True}}
"""Answers begin behind the prompt: without an open thought, and without an empty one."""
CALLED = {
    "Qwen 3.5": "<parameter=city>\n{}\n</parameter>",
    "LFM2": 'city="{}"',
    "LFM2.5": "city='{}'",
    "Gemma 4": '<|tool_call>call:get_weather{{city:<|"|>{}<|"|>}}',
}
"""How calls of a city look; in others as JSON."""


def calls(*cities: str) -> dict[str, Any]:
    """An answer that asks for the weather of some cities."""
    made = []
    for city in cities:
        function = {"name": "get_weather", "arguments": {"city": city}}
        made.append({"id": f"call_{city}", "type": "function", "function": function})
    return {"role": "assistant", "content": "", "tool_calls": made}


def result(city: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{city}", "name": "get_weather", "content": f"rain in {city}"}


class Names:
    """What a template asks of a tokenizer."""

    bos, eos = 0, -1
    control_names = ("<s>",)

    def name(self, token: int) -> str:
        return "<s>" if token == 0 else ""


def written(family: str, messages: list[dict[str, Any]], **options: Any) -> tuple[str, CallSyntax]:
    """The prompt of a conversation with tools."""
    tokenizer: Any = Names()
    options = OPTIONS.get(family, {}) | options
    return chat_prompt(PromptBuilder(tokenizer, FAMILIES[family], 1), messages, TOOLS, options)


def thought_in(family: str) -> str:
    """A thought as a family writes it."""
    marks = marks_of(FAMILIES[family])
    return f"{marks.opening}{THOUGHT}{marks.closing}{marks.between or chr(10) + chr(10)}"


def test_families_are_known_by_their_templates() -> None:
    known = {family: syntax_of(template) for family, template in FAMILIES.items()}
    hermes = dict.fromkeys(("Qwen 2.5", "Qwen 3", "Hermes 3", "SmolLM3"), HERMES)
    hermes["Granite 4"] = HERMES
    places = {"gpt-oss": 0, "Gemma 4": 1, "Qwen 3.5": 2, "LFM2": 4, "LFM2.5": 4, "Ministral 3": 5}
    own = {family: FORMS[place] for family, place in places.items()}
    assert known == {"Llama 3.1": LLAMA, "SmolLM2": None, "Gemma 3": None, "OLMo 2": None, **hermes, **own}


@pytest.mark.parametrize("family", FAMILIES)
def test_everything_said_stands_in_the_prompt_in_its_order(family: str) -> None:
    messages = [SYSTEM, QUESTION, calls("Rome", "Oslo"), result("Rome"), result("Oslo")]
    text, _ = written(family, messages)
    asked = [CALLED.get(family, '"city": "{}"').format(city) for city in ("Rome", "Oslo")]
    asked += ["rain in Rome", "rain in Oslo"]
    # These templates take one call in a message, so each result follows its call.
    order = [0, 2, 1, 3] if family in ("Llama 3.1", "gpt-oss") else [0, 1, 2, 3]
    parts = ["Weather?", *(asked[place] for place in order)]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert all(text.count(part) == 1 for part in (*parts, "Be brief.", "Now."))


@pytest.mark.long
@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_template_writes_of_calls_is_what_may_be_written_and_is_read(family: str, thinks: bool) -> None:
    cities = ("Rome",) if family in ("Llama 3.1", "gpt-oss") else ("Rome", "Oslo")
    prompt, syntax = written(family, [QUESTION])
    whole, _ = written(family, [QUESTION, calls(*cities)])
    answer = min((whole.removeprefix(prompt).partition(end)[0] for end in ENDS), key=len)
    # Qwen 3 writes an empty thought into its last answer.
    answer = (thought_in(family) if thinks else "") + answer.removeprefix("<think>\n\n</think>\n\n")
    may: Any = {"several": True, "may_think": True, "marks": marks_of(FAMILIES[family])}
    grammar = calls_grammar(FUNCTIONS, syntax, required=False, **may)
    assert takes(grammar, answer)
    assert takes(calls_grammar(FUNCTIONS, syntax, required=True, **may), answer)
    assert not takes(grammar, answer.replace("get_weather", "get_money"))
    parser = AnswerParser("<|start|>assistant" if family == "gpt-oss" else "", syntax, SCHEMAS)
    message = MergedMessage([delta for char in answer for delta in parser.push(char)] + parser.finish()).message()
    assert message["content"] is None
    assert ("reasoning_content" in message) == thinks
    read = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]
    assert read == [("get_weather", {"city": city}) for city in cities]


@pytest.mark.parametrize("family", ["Qwen 3", "SmolLM3"])
def test_without_thinking_the_thought_is_closed_in_the_prompt(family: str) -> None:
    text, syntax = written(family, [QUESTION], enable_thinking=False)
    assert text.endswith(("<think>\n\n</think>\n\n", "<think>\n\n</think>\n"))
    spelled: Any = Marked()
    spelled.name = lambda token: ""
    prompts = PromptBuilder(spelled, FAMILIES[family], Marked.n_vocab)
    assert prompts.opening(spelled.tokens(text.encode())) == ""
    assert prompts.opening(spelled.tokens(b"<|im_start|>assistant\n<think>\n")) == "<think>\n"
    grammar = calls_grammar(FUNCTIONS, syntax, required=False, several=True, may_think=True)
    assert takes(grammar, "Rain, I think.")


def test_a_thought_of_a_call_ends_in_text_or_in_a_call() -> None:
    for syntax in (HERMES, LLAMA):
        thought = f"<think>{THOUGHT}</think>\n\n"
        grammar = calls_grammar(FUNCTIONS, syntax, required=False, several=True, may_think=True)
        for answer in (thought + "It rains.", thought, thought.partition("</think>")[0]):
            assert takes(grammar, answer)
            parser = AnswerParser("", syntax)
            message = MergedMessage(parser.push(answer) + parser.finish()).message()
            assert message["content"] == answer.removeprefix(thought) * answer.startswith(thought)
            assert "tool_calls" not in message
        assert not takes(grammar, thought + "{" if syntax is LLAMA else thought + "<tool_call>")
