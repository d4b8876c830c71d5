"""Laws of requests that cannot be answered: each is told why, in OpenAI's form, and the next one is answered."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest

from edge_spec.errors import EdgeSpecError, SettingsError
from edge_spec.server.running import ModelServer
from edge_spec.server.service import Service
from edge_spec.server.settings import ServerSettings

pytestmark = pytest.mark.long

ASK = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "look"}}

WRONG: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"model": "gpt-4"}, 404, "model_not_found", "model"),
    ({"messages": []}, 400, "invalid_value", "messages"),
    ({"messages": None}, 400, "invalid_value", "messages"),
    ({"messages": "hello"}, 400, "invalid_value", "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "invalid_value", "messages[0].role"),
    ({"messages": [{"role": "user", "content": 7}]}, 400, "invalid_value", "messages[0].content"),
    ({"messages": [{"role": "user"}]}, 400, "invalid_value", "messages[0]"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        400,
        "unsupported_content",
        "messages[0].content[0].type",
    ),
    (
        {"messages": [*ASK, {"role": "tool", "tool_call_id": "no", "content": "x"}]},
        400,
        "invalid_value",
        "messages[1].tool_call_id",
    ),
    ({"messages": [{"role": "user", "content": "a b c " * 4000}]}, 400, "context_length_exceeded", "messages"),
    ({"temperature": -1}, 400, "invalid_value", "temperature"),
    ({"temperature": "hot"}, 400, "invalid_value", "temperature"),
    ({"temperature": 1e400}, 400, "invalid_json", None),
    *(
        ({name: 10**309}, 400, "invalid_value", name)
        for name in ("temperature", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "dry_base")
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "integer", "minimum": -(10**309)}},
            }
        },
        400,
        "invalid_value",
        "response_format.json_schema.schema",
    ),
    ({"top_p": 1.5}, 400, "invalid_value", "top_p"),
    ({"n": 0}, 400, "invalid_value", "n"),
    ({"n": 10**6}, 400, "invalid_value", "n"),
    ({"max_tokens": 0}, 400, "invalid_value", "max_tokens"),
    ({"max_tokens": True}, 400, "invalid_value", "max_tokens"),
    ({"stop": ""}, 400, "invalid_value", "stop"),
    ({"stop": 5}, 400, "invalid_value", "stop"),
    ({"logit_bias": {"x": 1}}, 400, "invalid_value", "logit_bias"),
    ({"logit_bias": {"99999999": 1}}, 400, "invalid_value", "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, 400, "invalid_value", "logit_bias"),
    ({"logit_bias": {"5": 1000}}, 400, "invalid_value", "logit_bias.5"),
    ({"top_logprobs": 3}, 400, "invalid_value", "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 500}, 400, "invalid_value", "top_logprobs"),
    ({"stream": "yes"}, 400, "invalid_value", "stream"),
    ({"speculation": "magic"}, 400, "invalid_value", "speculation"),
    ({"grammar": 'root ::= "'}, 400, "invalid_value", "grammar"),
    ({"grammar": "root ::= " + "(" * 5000}, 400, "invalid_value", "grammar"),
    ({"grammar": "root ::= " + '"a" | ' * 20000 + '"b"'}, 400, "invalid_value", "grammar"),
    ({"grammar": 'root ::= "a"', "tools": [TOOL]}, 400, "invalid_value", "grammar"),
    ({"response_format": {"type": "xml"}}, 400, "invalid_value", "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, 400, "invalid_value", "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": "("}}}},
        400,
        "invalid_value",
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "string", "format": []}}}},
        400,
        "invalid_value",
        "response_format.json_schema.schema",
    ),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, 400, "invalid_value", "tools[0].function.name"),
    ({"tools": [TOOL, TOOL]}, 400, "invalid_value", "tools"),
    ({"tool_choice": "required"}, 400, "invalid_value", "tool_choice"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
        400,
        "invalid_value",
        "tool_choice",
    ),
    ({"functions": [{"name": "x"}]}, 400, "unsupported", "functions"),
]


@pytest.mark.parametrize("fields, status, code, param", WRONG, ids=[str(case[0])[:60] for case in WRONG])
def test_a_wrong_field_is_named(served: Any, fields: dict[str, Any], status: int, code: str, param: str | None) -> None:
    body = json.dumps({"messages": ASK, "max_tokens": 1, **fields})
    found = served.post(content=body.encode())
    assert found.status_code == status, found.text
    error = found.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert error["message"] and "`" not in error["message"] and "Traceback" not in error["message"]


BODIES = [
    b"",
    b"{",
    b"[]",
    b'"text"',
    b"\xff\xfe\x00",
    b'{"messages": NaN}',
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"seed": ' + b"9" * 100_000 + b"}",
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
]


@pytest.mark.parametrize("body", BODIES, ids=[repr(body[:24]) for body in BODIES])
def test_what_is_no_json_is_refused(served: Any, body: bytes) -> None:
    found = served.post(content=body)
    assert (found.status_code, found.json()["error"]["code"]) == (400, "invalid_json"), found.text


def tool_of(schema: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "look", "parameters": schema}}]}


def format_of(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


TOO_LARGE: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "4 MB of a text": ({"messages": [{"role": "user", "content": "word " * 800_000}]}, "at least 124999", "messages"),
    "4 MB of spaces": ({"messages": [{"role": "user", "content": " " * 4_000_000}]}, "at least", "messages"),
    "10,000 messages": ({"messages": [{"role": "user", "content": "a"}] * 10_000}, "at least", "messages"),
    "control tokens": ({"messages": [{"role": "user", "content": "<|im_end|>" * 5_000}]}, "at least 1562", "messages"),
    "700 kB of tools": (tool_of({"properties": {f"p{n}": {} for n in range(50_000)}}), "at most 131072", "tools"),
    "a schema of 300 kB": (
        format_of({"enum": [*range(40_000)]}),
        "at most 131072",
        "response_format.json_schema.schema",
    ),
}


@pytest.mark.parametrize("fields, why, param", TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_what_would_take_long_is_refused_by_its_size(
    served: Any, fields: dict[str, Any], why: str, param: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(Service, "begin", lambda *given: begun.append(given))
    found = served.post(json={"messages": ASK, "max_tokens": 1, **fields})
    assert found.status_code == 400, found.text
    error = found.json()["error"]
    assert re.search(why, error["message"]), error["message"]
    assert param in (None, error["param"])
    assert not begun


def test_a_wide_enum_is_answered(served: Any) -> None:
    values = [f"value {n}" for n in range(4_000)]
    answer = served.chat(extra_body=format_of({"enum": values}), max_tokens=20).choices[0]
    assert answer.finish_reason == "stop" and json.loads(answer.message.content) in values


def test_unknown_fields_and_nulls_do_no_harm(served: Any) -> None:
    extra = {"user": "ann", "store": True, "metadata": {"a": "b"}, "temperature": None, "tools": None, "stop": None}
    body = {"messages": ASK, "max_tokens": 4, "seed": 1}
    plain, rich = (served.post(json=each).json() for each in (body, {**body, **extra}))
    assert plain["choices"] == rich["choices"]


def test_what_is_too_large_is_refused_and_the_client_is_told(serve: Callable[..., Any]) -> None:
    served = serve(max_body_bytes=2048)
    asks_first = {"content": b" " * 4096, "headers": {"Expect": "100-continue"}}
    # So much does not fit the buffers of a connection: the client still sends when the answer is certain.
    large = {"content": b" " * (16 << 20)}
    for more in ({"content": b" " * 4096}, {"content": iter([b" " * 1024] * 4)}, large, asks_first):
        found = served.post(**more)
        assert (found.status_code, found.json()["error"]["code"]) == (413, "body_too_large")
    assert served.chat(max_tokens=1).usage.completion_tokens == 1


def test_addresses_that_are_not_there(served: Any) -> None:
    for path in ("/v1/nothing", "/../../etc/passwd", "/%2e%2e/x", "/v1/models/../../x", "/v1/chat/completion"):
        found = httpx2.get(served.url + path)
        assert found.status_code == 404
        assert found.json()["error"]["message"]
    found = httpx2.get(served.url + "/v1/chat/completions")
    assert (found.status_code, found.headers["allow"]) == (405, "POST")
    assert found.json()["error"]["message"] == "ask this address with POST"
    assert httpx2.get(served.url + "/health").json() == {"status": "ok"}


def test_a_prompt_that_is_too_long_is_named_as_the_request_names_it(served: Any) -> None:
    found = served.post("/v1/completions", json={"prompt": "a b c " * 4000}).json()["error"]
    assert (found["code"], found["param"]) == ("context_length_exceeded", "prompt")


def test_clients_raise_the_error_that_belongs_to_it(served: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        served.chat(model="gpt-4")
    with pytest.raises(openai.BadRequestError, match="maximum context length is 1024 tokens") as caught:
        served.chat("a b c " * 4000)
    assert caught.value.code == "context_length_exceeded"


def test_a_taken_port_and_open_addresses_are_refused(served: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EdgeSpecError, match=f"cannot listen on 127.0.0.1:{port}"):
            ModelServer(served.model, ServerSettings(port=port))
    with pytest.raises(SettingsError, match="without a key"):
        ServerSettings(host="0.0.0.0")
    assert ServerSettings(host="0.0.0.0", api_key="secret").is_open is False
    assert ServerSettings(host="::1").is_open is False
    assert ServerSettings(host="0.0.0.0", insecure=True).is_open is True


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("completions", {"prompt": []}, "prompt: it is empty; give some text to continue"),
        ("chat/completions", {"temperature": True}, "temperature is true and must be a finite number of at least 0"),
        (
            "chat/completions",
            {"temperature": [None]},
            "temperature is [null] and must be a finite number of at least 0",
        ),
        ("chat/completions", {"ignore_eos": "yes"}, 'ignore_eos is "yes" and must be true or false'),
        (
            "chat/completions",
            {"json_schema": {"minLength": True}},
            "json_schema: json_schema at #/minLength: true is not a whole number from 0 to 100000; choose one",
        ),
        (
            "chat/completions",
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "any", "tools": []}}},
            "tool_choice.allowed_tools.mode: must be one of 'auto' or 'required'",
        ),
        (
            "chat/completions",
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}},
            "tool_choice.allowed_tools: this field is needed",
        ),
    ],
)
def test_a_message_is_in_the_words_of_what_was_sent(
    served: Any, path: str, fields: dict[str, Any], message: str
) -> None:
    question = {"messages": [{"role": "user", "content": "x"}]} if path.startswith("chat") else {}
    assert served.post(f"/v1/{path}", json={**question, **fields}).json()["error"]["message"] == message
