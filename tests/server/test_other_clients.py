"""Laws of what other clients send: other addresses, other fields, and what they are told of them."""

from __future__ import annotations

import time
from typing import Any

import httpx2
import pytest

pytestmark = pytest.mark.long

QUESTION = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "seed": 1}


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/chat/completions/", "/chat/completions//"])
def test_an_address_may_lack_its_version_and_end_with_a_slash(served: Any, path: str) -> None:
    found = served.post(path, json=QUESTION)
    assert found.json()["choices"] == served.post(json=QUESTION).json()["choices"]


def test_models_are_at_other_addresses_too(served: Any) -> None:
    listed = httpx2.get(served.url + "/v1/models").json()
    assert 0 <= time.time() - listed["data"][0]["created"] < 3600
    for path in ("/models", "/models/", "/v1/models/"):
        assert httpx2.get(served.url + path).json() == listed
    for path in ("/models/demo", "/v1/models/demo/"):
        assert httpx2.get(served.url + path).json() == listed["data"][0]


def test_a_key_is_needed_at_other_addresses_too(serve: Any) -> None:
    served = serve(api_key="s3cret")
    for path in ("/models", "/v1/models/", "/metrics/", "/v1/metrics", "/models/demo"):
        assert httpx2.get(served.url + path).status_code == 401
    for path in ("/tokenize", "/chat/completions"):
        assert served.post(path, json=QUESTION).status_code == 401


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/responses", "/v1", "/a%0ab"])
def test_an_address_with_nothing_is_named(served: Any, path: str) -> None:
    error = served.post(path, json={}).json()["error"]
    assert error["code"] == "unknown_url"
    assert error["message"].startswith(f"there is nothing at {path.replace('%0a', chr(92) + 'n')}; ")


def test_texts_become_tokens_and_texts_again(served: Any) -> None:
    for text in ("Hello, world <|im_end|>", "", "é 🙂"):
        for path in ("/tokenize", "/v1/tokenize"):
            tokens = served.post(path, json={"content": text, "parse_special": False}).json()["tokens"]
            assert tokens == served.model.prompts.tokenize(text, add_special=False, controls=False)
        assert served.post("/detokenize", json={"tokens": tokens}).json() == {"content": text}
    for path, body, param in (
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": "a" * ((1 << 17) + 1)}, "content"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
    ):
        found = served.post(path, json=body)
        assert found.status_code == 400 and found.json()["error"]["param"] == param


def notices(served: Any, **fields: Any) -> list[str]:
    told: list[str] = served.post(json={**QUESTION, **fields}).json()["edge_spec"]["notices"]
    return told


def test_a_field_that_nobody_knows_is_told(served: Any) -> None:
    ignored = "there is no such field, and it was ignored"
    assert notices(served, temprature=0.5) == [f"temprature: {ignored}; did you mean temperature?"]
    assert notices(served, repetition_penalty=1.1) == [f"repetition_penalty: {ignored}; did you mean repeat_penalty?"]
    assert notices(served, mirostat_mode=2) == [f"mirostat_mode: {ignored}; did you mean mirostat?"]
    assert notices(served, modalities=["audio"]) == [f"modalities: {ignored}"]
    assert notices(served, **{"a\n" * 50: 1}) == ["a\\n" * 24 + f": {ignored}"]
    assert len(notices(served, **{f"x{n}": n for n in range(100)})) == 9
    known = {"user": "me", "metadata": {}, "modalities": ["text"], "temperature": 0.5, "zzz": None, "stream": False}
    assert notices(served, **known) == []
    assert not any("schemas" in line for line in served.log[-12:])


@pytest.mark.parametrize("field", ["guided_json", "guided_regex", "structured_outputs"])
def test_what_would_say_what_may_be_written_is_refused(served: Any, field: str) -> None:
    error = served.post(json={**QUESTION, field: {"type": "object"}}).json()["error"]
    assert error["code"] == "unsupported" and error["param"] == field


def test_arguments_of_earlier_calls_may_be_objects(served: Any) -> None:
    prompts = []
    for arguments in ('{"city": "Rome"}', {"city": "Rome"}):
        called = {"id": "c", "type": "function", "function": {"name": "now", "arguments": arguments}}
        messages = [
            *QUESTION["messages"],  # type: ignore[misc]
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "c", "content": "rain"},
        ]
        prompts.append(served.post(json={**QUESTION, "messages": messages}).json()["choices"])
    assert prompts[0] == prompts[1]


def test_a_part_that_is_not_read_is_named_as_it_was_sent(served: Any) -> None:
    messages = [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]
    error = served.post(json={**QUESTION, "messages": messages}).json()["error"]
    assert error["message"] == 'messages[0].content[0].type: "input_text" is not read here; send parts of type "text"'
