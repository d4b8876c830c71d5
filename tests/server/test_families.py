"""Laws of tools in the forms of families people run: what a template writes of a call, the model may write, and it is
read as the same call.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from family_templates import FAMILIES

from edge_spec.generation.prompts import PromptBuilder
from edge_spec.sampling.guidance import GuidedGrammar, GuidedVocabulary
from edge_spec.sampling.lark import Lark
from edge_spec.server.answers import AnswerParser, MergedMessage
from edge_spec.server.call_grammar import calls_grammar
from edge_spec.server.call_syntax import HERMES, LLAMA, CallSyntax, syntax_of
from edge_spec.server.chat_prompts import chat_prompt
from edge_spec.server.fields import FunctionFields

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTIONS = [FunctionFields(name="get_weather", parameters=CITY), FunctionFields(name="get_time")]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Now.", "parameters": CITY}}]
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Weather?"}
ENDS = ("<|eot_id|>", "<|im_end|>", "<end_of_turn>")
THOUGHT = "<think>\nIn a <tool_call> I would name the city.\n</think>\n\n"


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
    return chat_prompt(PromptBuilder(tokenizer, FAMILIES[family], 1), messages, TOOLS, options)


class Marked:
    """A vocabulary of bytes in which marks are single tokens, as those that families add to their vocabularies."""

    marks = (b"<think>", b"</think>", b"<tool_call>", b"</tool_call>")
    adds_bos, bos, eos = False, -1, 260
    n_vocab = 261

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else self.marks[token - 256] if token < 260 else b""

    def ends(self, token: int) -> bool:
        return token == self.eos

    def tokens(self, text: bytes) -> list[int]:
        found = []
        while text:
            mark = next((n for n, mark in enumerate(self.marks) if text.startswith(mark)), None)
            found.append(text[0] if mark is None else 256 + mark)
            text = text[1 if mark is None else len(self.marks[mark]) :]
        return found


@pytest.fixture(scope="module")
def grammars() -> Any:
    marked: Any = Marked()
    return GuidedVocabulary(marked)


def takes(vocabulary: GuidedVocabulary, grammar: Lark, text: str) -> bool:
    """Whether a reply may be this text and end there."""
    state: Any = GuidedGrammar(vocabulary, grammar).start()
    for token in [*Marked().tokens(text.encode()), Marked.eos]:
        if not state.allowed([token])[0]:
            return False
        state = state.after(token)
    return True


def test_families_are_known_by_their_templates() -> None:
    known = {family: syntax_of(template) for family, template in FAMILIES.items()}
    hermes = dict.fromkeys(("Qwen 2.5", "Qwen 3", "Hermes 3", "SmolLM3"), HERMES)
    assert known == {"Llama 3.1": LLAMA, "SmolLM2": None, "Gemma 3": None, **hermes}


@pytest.mark.parametrize("family", FAMILIES)
def test_everything_said_stands_in_the_prompt_in_its_order(family: str) -> None:
    messages = [SYSTEM, QUESTION, calls("Rome", "Oslo"), result("Rome"), result("Oslo")]
    text, _ = written(family, messages)
    asked = ['"city": "Rome"', '"city": "Oslo"', "rain in Rome", "rain in Oslo"]
    # Llama's template takes one call in a message, so each result follows its call.
    order = [0, 2, 1, 3] if family == "Llama 3.1" else [0, 1, 2, 3]
    parts = ["Weather?", *(asked[place] for place in order)]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert all(text.count(part) == 1 for part in (*parts, "Be brief.", '"description": "Now."'))


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_template_writes_of_calls_is_what_may_be_written_and_is_read(
    grammars: GuidedVocabulary, family: str, thinks: bool
) -> None:
    cities = ("Rome",) if family == "Llama 3.1" else ("Rome", "Oslo")
    prompt, syntax = written(family, [QUESTION])
    whole, _ = written(family, [QUESTION, calls(*cities)])
    answer = min((whole.removeprefix(prompt).partition(end)[0] for end in ENDS), key=len)
    # Qwen 3 writes an empty thought into its last answer.
    answer = (THOUGHT if thinks else "") + answer.removeprefix("<think>\n\n</think>\n\n")
    grammar = calls_grammar(FUNCTIONS, syntax, required=False, several=True, may_think=True)
    assert takes(grammars, grammar, answer)
    assert takes(grammars, calls_grammar(FUNCTIONS, syntax, required=True, several=True, may_think=True), answer)
    assert not takes(grammars, grammar, answer.replace("get_weather", "get_money"))
    parser = AnswerParser("", syntax)
    message = MergedMessage([delta for char in answer for delta in parser.push(char)] + parser.finish()).message()
    assert message["content"] is None
    assert ("reasoning_content" in message) == thinks
    read = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]
    assert read == [("get_weather", {"city": city}) for city in cities]


@pytest.mark.parametrize("family", ["Qwen 3", "SmolLM3"])
def test_without_thinking_the_thought_is_closed_in_the_prompt(grammars: GuidedVocabulary, family: str) -> None:
    text, syntax = written(family, [QUESTION], enable_thinking=False)
    assert text.endswith(("<think>\n\n</think>\n\n", "<think>\n\n</think>\n"))
    spelled: Any = Marked()
    spelled.name = lambda token: ""
    prompts = PromptBuilder(spelled, FAMILIES[family], Marked.n_vocab)
    assert prompts.opening(spelled.tokens(text.encode())) == ""
    assert prompts.opening(spelled.tokens(b"<|im_start|>assistant\n<think>\n")) == "<think>\n"
    grammar = calls_grammar(FUNCTIONS, syntax, required=False, several=True, may_think=True)
    assert takes(grammars, grammar, "Rain, I think.")


def test_a_thought_of_a_call_ends_in_text_or_in_a_call(grammars: GuidedVocabulary) -> None:
    for syntax in (HERMES, LLAMA):
        grammar = calls_grammar(FUNCTIONS, syntax, required=False, several=True, may_think=True)
        for answer in (THOUGHT + "It rains.", THOUGHT, THOUGHT.partition("</think>")[0]):
            assert takes(grammars, grammar, answer)
            parser = AnswerParser("", syntax)
            message = MergedMessage(parser.push(answer) + parser.finish()).message()
            assert message["content"] == answer.removeprefix(THOUGHT) * answer.startswith(THOUGHT)
            assert "tool_calls" not in message
        assert not takes(grammars, grammar, THOUGHT + "{" if syntax is LLAMA else THOUGHT + "<tool_call>")
