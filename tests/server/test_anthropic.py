"""Laws of Anthropic's dialect, spoken by its own client: the texts of Python, in messages that the client reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from edge_spec import TextModel

anthropic = pytest.importorskip("anthropic")

pytestmark = pytest.mark.long

QUESTION = [{"role": "user", "content": "Tell me a story about a dog."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
}
TOOLS = [
    {"name": "get_weather", "description": "Now.", "input_schema": SCHEMA},
    {"name": "get_time", "input_schema": {"type": "object", "properties": {}}},
]
IN_PYTHON: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "description": "Now.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}},
]


@pytest.fixture(scope="module")
def client(served: Any) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def model(served: Any) -> TextModel:
    found: TextModel = served.model
    return found


def asked(client: Any, messages: Any = QUESTION, *, stream: bool = False, **fields: Any) -> Any:
    """Return a message, whole or added up by the client from a stream; fields that it does not know are ours."""
    given = {"model": "demo", "messages": messages, "max_tokens": 24, "extra_body": {"seed": 7}, **fields}
    if not stream:
        return client.messages.create(**given)
    with client.messages.stream(**given) as events:
        return events.get_final_message()


def content(message: Any) -> list[dict[str, Any]]:
    """The blocks of a message, without the ids of calls."""
    return [block.model_dump(exclude={"id"}, exclude_none=True) for block in message.content]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {}),
        # This client has no settings of a sampler any more; the API has.
        ({"extra_body": {"temperature": 0.0}}, {"temperature": 0.0}),
        ({"extra_body": {"seed": 7, "top_k": 3, "top_p": 0.5}}, {"top_k": 3, "top_p": 0.5}),
        ({"stop_sequences": ["dog", " a"]}, {"stop": ["dog", " a"]}),
        (
            {"extra_body": {"seed": 3, "min_p": 0.3, "repeat_penalty": 1.2}},
            {"seed": 3, "min_p": 0.3, "repeat_penalty": 1.2},
        ),
    ],
)
def test_the_text_is_that_of_python(
    client: Any, model: TextModel, fields: dict[str, Any], options: Any, *, stream: bool
) -> None:
    reply = model.generate(QUESTION, **{"seed": 7, "max_tokens": 24, **options})
    text = reply.read()
    message = asked(client, stream=stream, **fields)
    assert content(message) == [{"type": "text", "text": text}]
    reasons = {"eos": "end_turn", "stop": "stop_sequence", "length": "max_tokens"}
    assert message.stop_reason == reasons[str(reply.finish_reason)]
    assert message.stop_sequence == reply.stopped_by
    assert (reply.stopped_by in (" a", "dog")) == (reply.finish_reason == "stop")
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == len(reply.prompt)
    assert usage.output_tokens == len(reply.token_ids)


def test_a_stream_has_the_events_of_the_api_in_their_order(client: Any) -> None:
    with client.messages.stream(model="demo", messages=QUESTION, max_tokens=24, extra_body={"seed": 7}) as stream:
        kinds = [event.type for event in stream if event.type not in ("text", "thinking", "input_json")]
    first, begun, *deltas, ended, delta, stop = kinds
    assert (first, begun) == ("message_start", "content_block_start")
    assert set(deltas) == {"content_block_delta"}
    assert (ended, delta, stop) == ("content_block_stop", "message_delta", "message_stop")


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]])
def test_the_system_message_is_the_first_one(client: Any, model: TextModel, system: Any) -> None:
    text = system if isinstance(system, str) else "Be\nbrief."
    messages = [{"role": "system", "content": text}, *QUESTION]
    answer = asked(
        client, [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}], system=system
    )
    assert content(answer)[0]["text"] == model.generate(messages, seed=7, max_tokens=24).read()
    counted = client.messages.count_tokens(model="demo", messages=QUESTION, system=system)
    assert counted.input_tokens == model.count_tokens(messages)


def test_the_last_message_of_the_assistant_is_continued(client: Any, model: TextModel) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "Once upon a time"}]
    reply = model.generate(tokens=model.prompt_of(messages, continues=True), seed=7, max_tokens=24)
    assert content(asked(client, messages)) == [{"type": "text", "text": reply.read()}]


@pytest.mark.parametrize("stream", [False, True])
def test_a_round_trip_with_tools(client: Any, model: TextModel, *, stream: bool) -> None:
    choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    fields: Any = {"tools": TOOLS, "max_tokens": 200}
    question = {"role": "user", "content": "Weather?"}
    message = asked(client, [question], stream=stream, tool_choice=choice, **fields)
    given = {"tools": IN_PYTHON, "seed": 7, "max_tokens": 200}
    reply = model.generate([question], tool_choice="get_weather", parallel_tool_calls=False, **given)
    reply.read()
    (call,) = reply.tool_calls
    assert message.stop_reason == "tool_use"
    assert content(message) == [{"type": "tool_use", "name": call.name, "input": dict(call.arguments)}]
    (used,) = message.content
    result = [{"type": "text", "text": "Sunny"}]
    answer = {"type": "tool_result", "tool_use_id": used.id, "content": result}
    then = [question, {"role": "assistant", "content": [used.model_dump()]}]
    then.append({"role": "user", "content": [answer, {"type": "text", "text": "And now?"}]})
    final = asked(client, then, stream=stream, tool_choice={"type": "none"}, **fields)
    messages = [question, reply.message, call.result("Sunny"), {"role": "user", "content": "And now?"}]
    # Tools that may not be called are not shown.
    assert content(final)[0]["text"] == model.generate(messages, seed=7, max_tokens=200).read()
    assert client.messages.count_tokens(model="demo", messages=then, tools=TOOLS).input_tokens == model.count_tokens(
        messages, tools=IN_PYTHON
    )


def test_tools_that_may_be_called_need_not_be(client: Any, model: TextModel) -> None:
    for seed in range(3):
        message = asked(client, tools=TOOLS, max_tokens=60, extra_body={"seed": seed})
        reply = model.generate(QUESTION, tools=IN_PYTHON, seed=seed, max_tokens=60)
        reply.read()
        assert "".join(block.text for block in message.content if block.type == "text") == reply.answer
        calls = [(block.name, block.input) for block in message.content if block.type == "tool_use"]
        assert calls == [(call.name, dict(call.arguments)) for call in reply.tool_calls]


def test_an_answer_by_a_schema_is_that_of_python(client: Any, model: TextModel) -> None:
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    text = content(asked(client, output_config=form, max_tokens=60))[0]["text"]
    assert text == model.generate(QUESTION, json_schema=SCHEMA, seed=7, max_tokens=60).read()
    assert json.loads(text)["city"] in ("Paris", "Rome")


@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_honored_is_told(client: Any, *, stream: bool) -> None:
    fields: Any = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}
    fields["extra_body"] = {"seed": 1, "max_tokens": 4, "container": "x"}
    if stream:
        events = client.messages.create(model="demo", messages=QUESTION, stream=True, **fields)
        told = next(event for event in events if event.type == "message_delta").edge_spec
    else:
        told = asked(client, **fields).edge_spec
    places = [notice.partition(":")[0] for notice in told["notices"]]
    assert places == ["container", "thinking.budget_tokens", "thinking.type"]
    assert told["seed"] == 1


WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({"model": "claude"}, 404, "The model 'claude' does not exist"),
    ({"max_tokens": None}, 400, "max_tokens: this field is needed"),
    ({"max_tokens": 0}, 400, "max_tokens: must be at least 1"),
    ({"temperature": -1}, 400, "temperature is -1 and must be at least 0"),
    ({"stop_sequences": [""]}, 400, "stop_sequences must be texts that are not empty"),
    ({"messages": []}, 400, "messages: must not be empty"),
    ({"messages": [{"role": "tool", "content": ""}]}, 400, "messages[0].role: must be one of"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        400,
        'messages[0].content[0].type: "image" is not read here',
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "a"}]}]},
        400,
        "messages[0].content.tool_use_id: no earlier message",
    ),
    (
        {"messages": [{"role": "user", "content": "a b c " * 4000}]},
        400,
        "prompt is too long: ",
    ),
    (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        400,
        "tools[0].type: ",
    ),
    (
        {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}},
        400,
        "tool_choice.name: ",
    ),
    (
        {"tool_choice": {"type": "any"}},
        400,
        "tool_choice is 'required', but there are no tools",
    ),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "string", "pattern": "("}}}},
        400,
        "output_config.format.schema: ",
    ),
]


@pytest.mark.parametrize(("fields", "status", "said"), WRONG, ids=[str(case[0])[:60] for case in WRONG])
def test_a_wrong_field_is_told_in_the_form_of_the_api(
    served: Any, fields: dict[str, Any], status: int, said: str
) -> None:
    found = served.post("/v1/messages", json={"model": "demo", "messages": QUESTION, "max_tokens": 4, **fields})
    assert found.status_code == status, found.text
    told = found.json()
    kinds = {400: "invalid_request_error", 404: "not_found_error"}
    assert (told["type"], told["error"]["type"]) == ("error", kinds[status])
    assert told["error"]["message"].startswith(said)


def test_the_client_raises_its_own_errors(client: Any, served: Any, serve: Callable[..., Any]) -> None:
    with pytest.raises(anthropic.NotFoundError):
        asked(client, model="claude")
    assert httpx2.get(served.url + "/v1/messages").json()["error"]["type"] == "invalid_request_error"
    locked = serve(api_key="secret")
    for key, kind in (("secret", None), ("wrong", anthropic.AuthenticationError)):
        with anthropic.Anthropic(base_url=locked.url, api_key=key, max_retries=0) as other:
            if kind is None:
                assert asked(other).content
            else:
                with pytest.raises(kind):
                    asked(other)


def test_a_stream_that_fails_ends_with_an_error_of_the_api(serve: Callable[..., Any]) -> None:
    hasty = serve(timeout_s=0.3, name="hasty")
    fields = {"model": "hasty", "messages": QUESTION, "max_tokens": 900, "stream": True, "ignore_eos": True}
    found = hasty.post("/v1/messages", json={**fields, "speculation": "off"})
    *_, last, after = found.text.split("\n\n")
    name, data = last.splitlines()
    assert (found.status_code, name, after) == (200, "event: error", "")
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "timeout_error"
