"""Laws of tools in Python: they are called as the server's clients see it, whichever way a family writes calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from family_models import MARKS, write_family_model

import edge_spec
from edge_spec import ChatSession, EdgeSpecError, TextModel
from edge_spec.generation.thoughts import marks_of
from edge_spec.generation.tools.calls import ToolCall
from edge_spec.server.running import ModelServer
from edge_spec.server.settings import ServerSettings

pytestmark = pytest.mark.long

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "clock"}},
]
ASKED: dict[str, Any] = {"tools": TOOLS, "tool_choice": "get_weather", "parallel_tool_calls": False, "max_tokens": 120}
QUESTION = {"role": "user", "content": "Weather?"}
FAMILIES = ("Qwen 3", "Qwen 3.5", "LFM2", "Gemma 4", "gpt-oss", "Ministral 3")


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextModel]:
    folder = tmp_path_factory.mktemp("family")
    path = write_family_model(folder / "model.gguf", str(request.param))
    with edge_spec.load(path, engine="onnx", speculation="ngram", n_threads=1, cache_dir=folder) as model:
        yield model


@pytest.fixture(scope="module")
def client(model: TextModel) -> Iterator[openai.OpenAI]:
    with (
        ModelServer(model, ServerSettings(port=0, name="it")) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        yield client


def served(client: openai.OpenAI, messages: list[Any], seed: int, **asked: Any) -> tuple[str, list[Any]]:
    """The answer and the calls that can be made of it, as a client of the server has them."""
    if asked["tool_choice"] == "get_weather":
        asked["tool_choice"] = {"type": "function", "function": {"name": "get_weather"}}
    if "logit_bias" in asked:
        asked["logit_bias"] = {str(token): bias for token, bias in asked["logit_bias"].items()}
    choice = client.chat.completions.create(model="it", messages=messages, seed=seed, **asked).choices[0]
    calls = list[Any]()
    for call in choice.message.tool_calls or ():
        assert call.type == "function"
        try:
            calls.append((call.function.name, json.loads(call.function.arguments)))
        except json.JSONDecodeError:
            assert choice.finish_reason == "length"
    return choice.message.content or "", calls


def closing_bias(model: TextModel) -> dict[str, Any]:
    """What ends thoughts: where the template lets it think first, the demo model would do so for ever."""
    closing = marks_of(model.prompts.chat_template or "").closing
    return {"logit_bias": {model.n_vocab - len(MARKS) + MARKS.index(closing): 100.0}} if closing in MARKS else {}


def called(calls: tuple[ToolCall, ...]) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in calls]


def test_replies_call_what_the_server_lets_them_call(client: openai.OpenAI, model: TextModel) -> None:
    closes = closing_bias(model)
    n_calls = 0
    for seed in range(4):
        asked = {**ASKED, **closes} if seed else {**ASKED, "tool_choice": "auto", "parallel_tool_calls": True}
        reply = model.generate([QUESTION], seed=seed, **asked)
        text = "".join(text for is_thought, text in reply.parts() if not is_thought)
        assert text == reply.answer
        assert (reply.answer, called(reply.tool_calls)) == served(client, [QUESTION], seed, **asked)
        again = model.generate(tokens=model.prompt_of([QUESTION], tools=TOOLS), seed=seed, **asked)
        assert (again.read(), again.tool_calls) == (reply.text, reply.tool_calls)
        n_calls += len(reply.tool_calls)
        if reply.tool_calls:
            results = [call.result({"sky": "blue"}) for call in reply.tool_calls]
            messages = [QUESTION, reply.message, *results]
            then = {**ASKED, "tool_choice": "auto", "max_tokens": 12}
            continued = model.generate(messages, seed=seed, **then)
            continued.read()
            assert (continued.answer, called(continued.tool_calls)) == served(client, messages, seed, **then)
            assert continued.prompt == tuple(model.prompt_of(messages, tools=TOOLS))
    assert n_calls


def test_an_answer_by_a_schema_is_that_of_the_server_whoever_opens_the_thought(
    client: openai.OpenAI, model: TextModel
) -> None:
    """A thought comes before what the schema is about."""
    closes = closing_bias(model)
    bias = {"logit_bias": {str(token): each for token, each in closes.get("logit_bias", {}).items()}}
    n_whole = 0
    for seed in range(3):
        reply = model.generate([QUESTION], json_schema=SCHEMA, seed=seed, max_tokens=120, **closes)
        reply.read()
        form: Any = {"format": SCHEMA, **bias}
        messages: Any = [QUESTION]
        answer = client.chat.completions.create(
            model="it", messages=messages, seed=seed, max_tokens=120, extra_body=form
        )
        assert reply.answer == (answer.choices[0].message.content or "")
        if reply.finish_reason == "eos":
            assert json.loads(reply.answer)["city"] in ("Rome", "Oslo")
            n_whole += 1
    assert n_whole


def test_a_conversation_with_results_goes_on_after_it_was_saved(model: TextModel, tmp_path: Path) -> None:
    session = model.chat("Be brief.", seed=3, **ASKED, **closing_bias(model))
    for seed in range(3, 9):
        reply = session.send("Weather?", seed=seed)
        reply.read()
        if reply.tool_calls:
            break
        session.undo()
    assert reply.tool_calls == session.messages[-1].tool_calls
    session.save(tmp_path / "talk.chat")
    loaded = ChatSession.load(model, tmp_path / "talk.chat")
    texts = set()
    for each in (session, loaded):
        results = [call.result("Sunny") for call in each.messages[-1].tool_calls]
        texts.add(each.send(results, tool_choice="auto", max_tokens=12).read())
        assert [message.role for message in each.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert len(texts) == 1
    assert session.n_tokens == loaded.n_tokens and session.n_turns == 1
    # Anew from its messages, and after another answer to the results, it stands where it stood.
    given = [message.to_json() for message in session.messages]
    anew = model.chat(messages=json.loads(json.dumps(given)), tools=TOOLS)
    assert anew.messages == session.messages
    session.retry(tool_choice="auto", max_tokens=4).read()
    session.save(tmp_path / "talk.chat")
    assert ChatSession.load(model, tmp_path / "talk.chat").messages == session.messages
    assert [message.role for message in session.undo()] == ["tool", "assistant"]
    assert session.messages == loaded.messages[:3]
    assert session.messages[-1].answer == reply.answer and "city" not in session.messages[-1].answer


@pytest.fixture(scope="module")
def demo(probe_cache: Path) -> Iterator[TextModel]:
    with edge_spec.load("demo", engine="llama", speculation="ngram", n_threads=1, cache_dir=probe_cache) as model:
        yield model


def test_without_tools_nothing_is_a_call(demo: TextModel) -> None:
    text = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
    reply = demo.generate([QUESTION], grammar=f"root ::= {json.dumps(text)}", seed=1)
    assert (reply.read(), reply.tool_calls, reply.answer) == (text, (), text)
    assert reply.message == {"role": "assistant", "content": text}


def test_tools_that_change_within_a_conversation_are_those_of_the_prompt(demo: TextModel) -> None:
    session = demo.chat(seed=5, max_tokens=6)
    session.send("Hello").read()
    session.set(tools=TOOLS)
    shown = session.send("Weather?")
    shown.read()
    hidden = session.send("And now?", tool_choice="none")
    hidden.read()
    assert "get_weather" in demo.detokenize(shown.prompt) and "get_weather" not in demo.detokenize(hidden.prompt)
    for reply, n in ((shown, 2), (hidden, 4)):
        messages = [message.to_json() for message in session.messages[:n]] + [session.messages[n].to_json()]
        tools = TOOLS if reply is shown else None
        assert demo.detokenize(reply.prompt) == demo.detokenize(demo.prompt_of(messages, tools=tools))
    # What stays of a conversation that outgrows the context begins with the tools.
    session.send("And then?", tool_choice="auto").read()
    window = session._conversation.window
    assert "get_weather" in demo.detokenize(session._conversation.tokens[: window.head])


def test_an_answer_that_is_json_may_call_instead(demo: TextModel) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    calls, answers = set(), set()
    # The mark of a call, or else the brace of an answer, is made the likeliest beginning.
    for begin, found in (("<tool_call>", calls), ("{", answers)):
        (first, *_) = demo.tokenize(begin, add_special=False)
        asked: Any = {**ASKED, "tool_choice": "auto", "json_schema": schema, "logit_bias": {first: 30.0}}
        for seed in range(4):
            reply = demo.generate([QUESTION], seed=seed, **asked)
            if reply.read() and reply.finish_reason == "eos":
                assert bool(reply.tool_calls) == (found is calls)
                found.add(reply.answer)
    assert calls <= {""} and all(json.loads(each)["a"] in (1, 2) for each in answers)
    assert calls and answers


def test_schemas_that_cannot_be_kept_are_told(demo: TextModel) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=x)y"}}, "required": ["a"]}
    loose = {"type": "function", "function": {"name": "f", "parameters": schema}}
    notices: list[str] = []
    reply = demo.generate([QUESTION], tools=[loose], tool_choice="f", max_tokens=4, on_notice=notices.append)
    reply.read()
    assert reply.notices == notices and len(notices) == 1 and notices[0].startswith("the schema of f ")
    strict = {"type": "function", "function": {**loose["function"], "strict": True}}
    with pytest.raises(EdgeSpecError, match="the schema of f "):
        demo.generate([QUESTION], tools=[strict])


CLOCK = {"name": "clock"}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"tools": "clock"}, "tools is str and must be a list; "),
        ({"tools": [{"name": "clock"}]}, "tools [0] is no function; "),
        ({"tools": [TOOLS[1], {"type": "function", "function": {"name": "a b"}}]}, "tools [1] has the name 'a b' "),
        ({"tools": [TOOLS[1], TOOLS[1]]}, "tools has two functions named clock; rename one"),
        (
            {"tools": [{"type": "function", "function": {**CLOCK, "parameters": []}}]},
            "tools [0] (clock) has a parameters of the wrong type; ",
        ),
        (
            {"tools": [{"type": "function", "function": {**CLOCK, "parameters": {"a": {1}}}}]},
            "tools [0] (clock) holds what JSON cannot write; ",
        ),
        ({"tools": TOOLS, "tool_choice": "weather"}, "tool_choice is 'weather'; give one of auto, none, required, "),
        ({"tool_choice": "required"}, "tool_choice is 'required', but there are no tools; "),
        ({"tools": TOOLS, "grammar": 'root ::= "a"'}, "`grammar` and `tools` are both given; "),
    ],
)
def test_what_cannot_be_is_told_in_a_line(demo: TextModel, asked: Any, told: str) -> None:
    for ask in (demo.generate, lambda text, **options: demo.chat().send(text, **options)):
        with pytest.raises(EdgeSpecError) as caught:
            ask("Weather?", **asked)
        assert str(caught.value).startswith(told) and "\n" not in str(caught.value)
    with pytest.raises(EdgeSpecError):
        demo.chat(**asked)


def test_results_belong_to_calls(demo: TextModel) -> None:
    session = demo.chat(tools=TOOLS, seed=1)
    session.send("Weather?", tool_choice="get_weather", parallel_tool_calls=False, max_tokens=120).read()
    (call,) = session.messages[-1].tool_calls
    wrong: list[tuple[Any, str]] = [
        ([], "the call of get_weather has no result; "),
        ([{"role": "tool", "tool_call_id": "other", "content": "Sunny"}], "the call of get_weather has no result; "),
        ([call.result("Sunny"), {"role": "user", "content": "Hi"}], "there are more results than calls; "),
        (3, "a message is a text, or results of calls, not int; "),
    ]
    for given, told in wrong:
        with pytest.raises(EdgeSpecError) as caught:
            session.send(given)
        assert str(caught.value).startswith(told)
    for odd in (object(), {1, 2}, float("nan")):
        with pytest.raises(EdgeSpecError, match="cannot be written as JSON"):
            call.result(odd)
    session.send([call.result("Sunny")], max_tokens=4).read()
    if not session.messages[-1].tool_calls:
        with pytest.raises(EdgeSpecError, match="the last answer calls no tools"):
            session.send([call.result("Sunny")])
    messages: list[Any] = [QUESTION, call.result("Sunny")]
    with pytest.raises(EdgeSpecError, match="message 1 is the result of no call; its tool_call_id must be"):
        demo.generate(messages)
    with pytest.raises(EdgeSpecError, match="a message has a tool call that is none"):
        demo.generate([QUESTION, {"role": "assistant", "content": "", "tool_calls": [{"name": "clock"}]}])
