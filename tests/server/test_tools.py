"""Laws of tools: what a model is shown, what it may write, and how it is read."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest
from server_world import wait_until

from edge_spec.generation.tools.answers import AnswerParser, MergedMessage
from edge_spec.generation.tools.call_messages import in_plain_text, one_call_each
from edge_spec.generation.tools.functions import Tool, declared
from edge_spec.generation.tools.given_messages import template_messages
from edge_spec.generation.tools.grammar import after_thought, calls_grammar
from edge_spec.generation.tools.syntax import FORMS, HERMES, LLAMA, CallSyntax, syntax_of

pytestmark = pytest.mark.long

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "description": "Now.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "get_time"}},
]
FUNCTIONS = [Tool(name="get_weather", parameters=WEATHER), Tool(name="get_time")]


def ask(served: Any, **fields: Any) -> Any:
    return served.chat("Weather?", tools=TOOLS, max_tokens=200, **fields)


def with_calls(served: Any, n: int, **fields: Any) -> tuple[int, Any]:
    """An answer with so many calls, and its seed: how many a model writes is its own decision."""
    for seed in range(40):
        answer = ask(served, tool_choice="required", seed=seed, **fields)
        message = answer.choices[0].message
        if answer.choices[0].finish_reason == "tool_calls" and len(message.tool_calls) == n:
            return seed, answer
    raise AssertionError(f"no answer with {n} calls")


def test_a_round_trip_with_two_calls(served: Any) -> None:
    seed, answer = with_calls(served, 2)
    message = answer.choices[0].message
    assert message.content is None
    assert len({call.id for call in message.tool_calls}) == 2
    for call in message.tool_calls:
        schema = {"get_weather": WEATHER, "get_time": {"type": "object", "maxProperties": 0}}[call.function.name]
        jsonschema.validate(json.loads(call.function.arguments), schema)
    streamed: dict[int, list[str]] = {}
    for chunk in ask(served, tool_choice="required", seed=seed, stream=True):
        for part in chunk.choices[0].delta.tool_calls or ():
            if part.id:
                streamed[part.index] = [part.function.name, ""]
            streamed[part.index][1] += part.function.arguments
    assert chunk.choices[0].finish_reason == "tool_calls"
    assert [*streamed.values()] == [[call.function.name, call.function.arguments] for call in message.tool_calls]
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": f"result {n}"} for n, call in enumerate(message.tool_calls)
    ]
    question = {"role": "user", "content": "Weather?"}
    final = ask(served, messages=[question, message.model_dump(exclude_none=True), *results], tool_choice="none")
    assert final.choices[0].message.tool_calls is None
    assert final.choices[0].message.content
    written = [f'<tool_call>\n{{"name": "{c.function.name}", "arguments": ' for c in message.tool_calls]
    prompt = served.model.prompts.render(
        in_plain_text([question, *template_messages([message.model_dump(exclude_none=True), *results])], [])
    )
    assert final.usage.prompt_tokens == len(served.model.prompts.tokenize_rendered(prompt))
    assert all(text in prompt for text in (*written, "<tool_response>\nresult 0\n</tool_response>", "result 1"))


def test_one_call_where_several_are_not_wanted(served: Any) -> None:
    for seed in range(4):
        answer = ask(served, tool_choice="required", parallel_tool_calls=False, seed=seed)
        assert len(answer.choices[0].message.tool_calls) == 1


def test_a_named_function_is_the_one_that_is_called(served: Any) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    answer = ask(served, tool_choice=choice, parallel_tool_calls=False)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    jsonschema.validate(json.loads(call.function.arguments), WEATHER)


def test_free_text_stays_free(served: Any) -> None:
    """A grammar that allows any text changes none: up to a first call the text is the one without."""
    functions = [declared(Tool(**tool["function"])) for tool in TOOLS]
    messages = in_plain_text([{"role": "user", "content": "Weather?"}], functions)
    for seed in range(3):
        free = ask(served, tool_choice="auto", seed=seed).choices[0].message
        plain = served.model.generate(messages, seed=seed, max_tokens=200).read()
        before, called, _ = plain.partition("<tool_call>")
        assert free.content == (before.rstrip() or None if called else before)
        assert bool(free.tool_calls) == bool(called)


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_is_not_kept_is_told(served: Any, stream: bool) -> None:
    broken = {"type": "object", "properties": {"city": {"type": "string", "pattern": "("}}}
    tools = [*TOOLS, {"type": "function", "function": {"name": "find", "parameters": broken}}]
    wanted = {"tools": tools, "tool_choice": {"type": "function", "function": {"name": "find"}}, "max_tokens": 60}
    if stream:
        chunks = served.chat("Weather?", **wanted, stream=True, stream_options={"include_usage": True})
        answer = [*chunks][-1]
    else:
        answer = served.chat("Weather?", **wanted)
    (notice,) = answer.edge_spec["notices"]
    assert notice.startswith("the schema of find at #/pattern: the pattern '(' has a '(' without ')'; ")
    assert notice.endswith("; as it is not strict, some arguments may be anything")
    wait_until(lambda: "schemas of tools not kept: 1" in served.log[-1])
    tools[-1] = {"type": "function", "function": {"name": "find", "parameters": broken, "strict": True}}
    with pytest.raises(
        openai.BadRequestError, match=r"the schema of find at #/properties/city/pattern: .*without '\)'"
    ):
        served.chat("Weather?", **wanted)
    assert ask(served).edge_spec["notices"] == []


PLAIN = ["", " ", "a < b", "x {y} <tool", "<think>one</think>two", "two  \n\n", "\n\nx {", "<think>a {", "<thin {"]
MENTIONED = "<think>I could write <tool_call> or {</think>No. "


@pytest.mark.parametrize(
    ("syntax", "text"),
    [*((syntax, text) for syntax in (HERMES, LLAMA) for text in [*PLAIN, MENTIONED]), (LLAMA, "<tool_calls>? no")],
)
def test_text_without_calls_is_allowed_and_comes_through(served: Any, syntax: CallSyntax, text: str) -> None:
    grammar = calls_grammar(FUNCTIONS, syntax, required=False, several=True, may_think=True)
    assert takes(served, grammar, text)
    parser = AnswerParser("", syntax)
    message = MergedMessage([delta for char in text for delta in parser.push(char)] + parser.finish()).message()
    thought, closed, answer = text.rpartition("</think>")
    if text.startswith("<think>") and not closed:
        thought, answer = text, ""
    assert message["content"] == answer
    assert message.get("reasoning_content", "") == thought.removeprefix("<think>")
    assert "tool_calls" not in message


def takes(served: Any, grammar: str, text: str) -> bool:
    """Return whether a grammar takes a whole text, by the model's own tokens of one byte."""
    state = served.model.requests([[0]], grammar=grammar, raw=True)[0].grammar.start()
    for token in served.model.tokenize(text, add_special=False):
        if not state.allowed([token])[0]:
            return False
        state = state.after(token)
    ends = next(token for token in range(served.model.n_vocab) if served.model.prompts.ends(token))
    return bool(state.allowed([ends])[0])


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'


def test_the_grammar_takes_text_and_calls_and_nothing_else(served: Any) -> None:
    free = calls_grammar(FUNCTIONS, HERMES, required=False, several=True, may_think=False)
    forced = calls_grammar(FUNCTIONS, HERMES, required=True, several=False, may_think=True)
    for text in ("", "Hello < <tool_cal", CALL, f"Well.\n{CALL}\n{TIME}", f"<tool_<{TIME}"):
        assert takes(served, free, text), text
    for text in (
        CALL.replace("Rome", "Oslo"),
        CALL[:-1],
        f"{CALL}{TIME}",
        f"{CALL}\nDone.",
        TIME.replace("{}", '{"a": 1}'),
    ):
        assert not takes(served, free, text), text
    for text in (CALL, TIME, f"<think>Hm </thin. </think>\n\n{CALL}"):
        assert takes(served, forced, text), text
    for text in ("", "Hello", f"Hello {CALL}", f"{CALL}\n{TIME}"):
        assert not takes(served, forced, text), text
    opened = after_thought(forced)
    assert takes(served, opened, f"Hm.</think>\n\n{CALL}")
    assert not takes(served, opened, CALL)


@pytest.mark.parametrize("may_think", [True, False])
def test_the_grammar_of_llama_takes_calls_as_the_whole_answer(served: Any, may_think: bool) -> None:
    free = calls_grammar(FUNCTIONS, LLAMA, required=False, several=True, may_think=may_think)
    one = '{"name": "get_time", "parameters": {}}'
    for text in ("", "Hello {x}", one, f"{one}; {one}", f"\n {one}", "\n\n"):
        assert takes(served, free, text), text
    for text in ('{"name": "x"}', f"{one} and", "{}", '\n{"a": 1}', " {x} is a set", "; {", "\t{"):
        assert not takes(served, free, text), text


def test_a_thought_may_mention_calls_and_what_follows_it_is_one(served: Any) -> None:
    for syntax, call in ((HERMES, TIME), (LLAMA, '{"name": "get_time", "parameters": {}}')):
        free = calls_grammar(FUNCTIONS, syntax, required=False, several=True, may_think=True)
        text = f"<think>A <tool_call> is {{</think>\n\n{call}"
        assert takes(served, free, text)
        assert not takes(served, free, text[:-1])
        parser = AnswerParser("", syntax)
        message = MergedMessage(parser.push(text) + parser.finish()).message()
        assert message["reasoning_content"] == "A <tool_call> is {"
        assert [each["function"]["name"] for each in message["tool_calls"]] == ["get_time"]
        assert message["content"] is None


def test_templates_show_how_calls_are_written() -> None:
    assert syntax_of("{{ messages }}") is None
    assert syntax_of('{% if tools %}<tool_call>{"name": {% endif %}') is HERMES
    assert syntax_of(r"{% if tools %}{{ '<tool_call>\n{\"name\": ' }}{% endif %}") is HERMES
    assert syntax_of('{% if tools %}{"name": }<tool_call><function=a>{% endif %}') is FORMS[2]
    assert syntax_of('{% if tools %}{"name": , "parameters": } ipython {% endif %}') is LLAMA
    assert syntax_of("{% for tool in tools %}<|tool_call>call:{% endfor %}") is FORMS[1]


def test_calls_of_one_message_become_one_message_each() -> None:
    calls = [{"id": name, "function": {"name": name, "arguments": {}}} for name in "ab"]
    results = [{"role": "tool", "tool_call_id": name, "content": name} for name in "ab"]
    question = {"role": "user", "content": "?"}
    answer = {"role": "assistant", "content": "", "tool_calls": calls}
    made = one_call_each([question, answer, *results, question])
    assert [message.get("tool_calls", [message])[0].get("id", message["role"]) for message in made] == [
        "user",
        "a",
        "tool",
        "b",
        "tool",
        "user",
    ]
    assert [made[2]["content"], made[4]["content"]] == ["a", "b"]


def test_allowed_tools_are_those_that_may_be_called(served: Any) -> None:
    allowed = {"type": "function", "function": {"name": "get_time"}}
    for mode in ("required", "auto"):
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [allowed]}}
        for seed in range(4):
            message = ask(served, tool_choice=choice, seed=seed, parallel_tool_calls=False).choices[0].message
            assert mode == "auto" or message.tool_calls
            assert {call.function.name for call in message.tool_calls or ()} <= {"get_time"}
