"""Laws of ollama's dialect, spoken by its own client: the texts of Python, in messages that the client reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from edge_spec import TextModel

ollama = pytest.importorskip("ollama")

pytestmark = pytest.mark.long

QUESTION = [{"role": "user", "content": "Tell me a story about a dog."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
}
GIVEN: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "description": "Now.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "get_time"}},
]
TOOLS = [ollama.Tool(**tool).model_dump(exclude_none=True) for tool in GIVEN]
"""Their keys are in the order in which the client sends them."""

OPTIONS = {"seed": 7, "num_predict": 24}


@pytest.fixture(scope="module")
def client(served: Any) -> Iterator[Any]:
    with ollama.Client(host=served.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def model(served: Any) -> TextModel:
    found: TextModel = served.model
    return found


def chat(client: Any, messages: Any = QUESTION, *, stream: bool, **fields: Any) -> tuple[dict[str, Any], Any]:
    """Return a message, added up where it is streamed, and the last response."""
    answer = client.chat(**{"model": "demo", "messages": messages, "options": OPTIONS, "stream": stream, **fields})
    if not stream:
        return answer.message.model_dump(exclude_none=True), answer
    whole: dict[str, Any] = {"role": "assistant", "content": ""}
    for part in answer:
        for name, value in part.message.model_dump(exclude_none=True).items():
            whole[name] = value if name == "role" else whole.get(name, type(value)()) + value
    return whole, part


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {}),
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"top_k": 3, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.9}, {}),
        ({"repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5}, {}),
        ({"repeat_last_n": 8, "repeat_penalty": 1.5}, {"penalty_window": 8, "repeat_penalty": 1.5}),
        ({"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2}, {}),
        ({"stop": ["dog", " a"]}, {}),
        ({"num_predict": 5}, {"max_tokens": 5}),
        ({"num_predict": -1}, {"max_tokens": None}),
        ({"dry_multiplier": 1.2}, {}),
    ],
)
def test_the_text_is_that_of_python(
    client: Any, model: TextModel, given: dict[str, Any], options: dict[str, Any], *, stream: bool
) -> None:
    asked: Any = {"seed": 7, "max_tokens": 24, **(options or given)}
    reply = model.generate(QUESTION, **asked)
    text = reply.read()
    message, last = chat(client, stream=stream, options={**OPTIONS, **given})
    assert message == {"role": "assistant", "content": text}
    assert (last.done, last.done_reason) == (True, "length" if reply.is_cut else "stop")
    assert (last.prompt_eval_count, last.eval_count) == (len(reply.prompt), len(reply.token_ids))
    assert last.total_duration >= last.eval_duration > 0 and last.load_duration == 0
    # Without a chat: a text is a user's message, or continued as it is.
    asked_text: Any = {"model": "demo", "stream": stream, "options": {**OPTIONS, **given}}
    for raw in (False, True):
        parts = client.generate(prompt=QUESTION[0]["content"], raw=raw, **asked_text)
        found = "".join(part.response for part in parts) if stream else parts.response
        assert found == model.generate(QUESTION[0]["content"], raw=raw, **asked).read()


def test_a_stream_is_lines_of_json_and_the_default(served: Any) -> None:
    for path, asked in (
        ("chat", {"messages": QUESTION}),
        ("generate", {"prompt": "Tell me a story.", "system": "Be brief."}),
    ):
        answer = served.post(f"/api/{path}", json={"model": "demo:latest", "options": OPTIONS, **asked})
        assert answer.headers["content-type"].partition(";")[0] == "application/x-ndjson"
        *parts, last = map(json.loads, answer.text.splitlines())
        assert len(parts) > 1 and not any(part["done"] for part in parts)
        assert last["done"] and last["edge_spec"]["seed"] == 7 and last["edge_spec"]["notices"] == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_round_trip_with_tools(client: Any, model: TextModel, *, stream: bool) -> None:
    question = {"role": "user", "content": "Weather?"}
    # The mark of a call is made a likely beginning: what goes on so must be one, since other answers have a form.
    (first, *_) = model.tokenize("<tool_call>", add_special=False)
    for seed, bias in ((1, 0.0), (2, 30.0)):
        options = {"seed": seed, "num_predict": 200, "logit_bias": {str(first): bias}}
        asked: Any = {"tools": TOOLS, "seed": seed, "max_tokens": 200, "logit_bias": {first: bias}}
        reply = model.generate([question], json_schema=SCHEMA, **asked)
        reply.read()
        message, _ = chat(client, [question], stream=stream, tools=GIVEN, options=options, format=SCHEMA)
        assert message["content"] == reply.answer
        calls = [call["function"] for call in message.get("tool_calls", ())]
        assert calls == [{"name": call.name, "arguments": dict(call.arguments)} for call in reply.tool_calls]
    assert calls
    results = [{"role": "tool", "tool_name": call["name"], "content": f"result {n}"} for n, call in enumerate(calls)]
    then, _ = chat(client, [question, message, *results], stream=stream, tools=GIVEN, options=options)
    told = [call.result(f"result {n}") for n, call in enumerate(reply.tool_calls)]
    answer = model.generate([question, reply.message, *told], **asked)
    answer.read()
    assert then["content"] == answer.answer


@pytest.mark.parametrize("form", ["json", SCHEMA])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_in_a_form_is_that_of_python(client: Any, model: TextModel, form: Any, *, stream: bool) -> None:
    schema = {"type": "object"} if form == "json" else form
    text = model.generate(QUESTION, json_schema=schema, seed=7, max_tokens=60).read()
    message, _ = chat(client, stream=stream, format=form, options={"seed": 7, "num_predict": 60})
    assert message["content"] == text
    if form != "json":
        assert json.loads(text)["city"] in ("Paris", "Rome")


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_those_of_python(client: Any, model: TextModel, *, stream: bool) -> None:
    answer = client.chat(model="demo", messages=QUESTION, options=OPTIONS, logprobs=True, top_logprobs=2, stream=stream)
    parts = [*answer] if stream else [answer]
    told = [
        (each.logprob, [top.logprob for top in each.top_logprobs]) for part in parts for each in part.logprobs or ()
    ]
    events = model.generate(QUESTION, seed=7, max_tokens=24, logprobs=2).events()
    ends = model.prompts.ends
    assert told == [
        (event.logprob, [*event.top.values()]) for event in events if event.id is None or not ends(event.id)
    ]


def test_a_stream_that_waits_is_kept_by_white_space(serve: Callable[..., Any]) -> None:
    served = serve(keep_alive_s=0.02, at_once=1)
    long = {"messages": QUESTION, "n": 4, "max_tokens": 900, "ignore_eos": True, "stream": True}
    with httpx2.stream("POST", served.url + "/v1/chat/completions", json=long, timeout=60) as before:
        lines = before.iter_lines()
        next(lines)
        asked = {"model": "demo", "messages": QUESTION, "options": {"num_predict": 2}}
        with httpx2.stream("POST", served.url + "/api/chat", json=asked, timeout=60) as stream:
            first, *_, last = stream.iter_lines()
    assert first.startswith(" ") and json.loads(first)["model"] == "demo"
    assert json.loads(last)["done"]


def test_what_cannot_be_honored_is_told(served: Any) -> None:
    given = {"num_ctx": 4096, "num_thread": 2, "penalize_newline": False, "temprature": 1.0, "num_predict": 2}
    asked = {"messages": QUESTION, "think": True, "keep_alive": "5m", "shift": False, "stream": False, "options": given}
    notices = served.post("/api/chat", json=asked).json()["edge_spec"]["notices"]
    places = [notice.partition(":")[0] for notice in notices]
    assert places == ["shift", "options.penalize_newline", "options.temprature", "options.num_ctx", "think"]
    assert "did you mean temperature?" in notices[2]


def test_the_model_is_listed_and_shown(client: Any, served: Any, model: TextModel) -> None:
    (listed,) = client.list().models
    assert (listed.model, listed.size) == ("demo", model.info.weight_bytes)
    assert listed.details.family == model.info.architecture
    (running,) = client.ps().models
    assert (running.name, running.context_length, running.size) == ("demo", model.n_ctx, model.ledger.held_bytes)
    shown = client.show("demo:latest")
    assert shown.template == model.prompts.chat_template
    assert shown.modelinfo["general.parameter_count"] == model.info.n_params
    assert shown.capabilities == ["completion", "tools"]
    assert httpx2.get(served.url + "/api/version").json()["version"].count(".") == 2
    # A request without a prompt has a model loaded; it is.
    for answer in (client.chat("demo"), client.generate("demo")):
        assert (answer.done, answer.done_reason) == (True, "load")


WRONG: list[tuple[str, dict[str, Any], int, str]] = [
    ("chat", {"model": "llama"}, 404, "The model 'llama' does not exist"),
    ("chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, 400, "messages[0].images: "),
    ("chat", {"messages": [{"role": "tool", "content": "x"}]}, 400, "messages[0]: no earlier message has a call"),
    ("chat", {"messages": [{"role": "wizard"}]}, 400, "messages[0].role: must be one of"),
    ("chat", {"options": {"temperature": -1}}, 400, "options.temperature is -1 and must be at least 0"),
    ("chat", {"options": {"temperature": "hot"}}, 400, 'options.temperature is "hot" and must be a finite number'),
    ("chat", {"options": {"num_predict": 0}}, 400, "options.num_predict is 0 and must be at least 1"),
    ("chat", {"options": {"stop": [""]}}, 400, "options.stop must be texts that are not empty"),
    ("chat", {"options": {"seed": 2**70}}, 400, "options.seed "),
    ("chat", {"options": {"stop": ["a"] * 17}}, 400, "options.stop: must have at most 16 items"),
    ("chat", {"options": {"logit_bias": {str(n): 1 for n in range(5000)}}}, 400, "options.logit_bias: 5000 biases"),
    ("chat", {"options": {"logit_bias": {"x": 1}}}, 400, "options.logit_bias: its names must be token ids"),
    ("chat", {"options": {"logit_bias": [1]}}, 400, "options.logit_bias "),
    ("chat", {"options": {"grammar": 5}}, 400, "options.grammar is not a text but int"),
    ("chat", {"options": {"grammar": "root ::="}, "format": "json"}, 400, "options.grammar and format are both given"),
    ("chat", {"format": "yaml"}, 400, "format: must be one of '' or 'json' or an object"),
    ("chat", {"format": {"type": "string", "pattern": "("}}, 400, "format: "),
    ("chat", {"top_logprobs": 2}, 400, "top_logprobs: needs logprobs to be true"),
    ("chat", {"messages": [{"role": "user", "content": "a b c " * 4000}]}, 400, "This model's maximum context"),
    ("generate", {"prompt": "a", "suffix": "b"}, 400, "suffix: this server does not offer it"),
    ("generate", {"prompt": "a", "context": [1]}, 400, "context: this server does not offer it"),
    ("generate", {"prompt": "a", "raw": True, "system": "b"}, 400, "system: "),
    ("show", {"model": "llama"}, 404, "The model 'llama' does not exist"),
    ("embed", {"input": "a"}, 404, "there is nothing at /api/embed"),
]


@pytest.mark.parametrize(("path", "fields", "status", "said"), WRONG, ids=[str(case[:2])[:60] for case in WRONG])
def test_a_wrong_field_is_told_in_the_form_of_the_api(
    served: Any, path: str, fields: dict[str, Any], status: int, said: str
) -> None:
    found = served.post(f"/api/{path}", json={"messages": QUESTION, **fields})
    assert found.status_code == status, found.text
    assert set(found.json()) == {"error"}
    assert found.json()["error"].startswith(said)


def test_the_client_raises_its_own_error(client: Any) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat(model="llama", messages=QUESTION)
    assert caught.value.status_code == 404 and "does not exist" in caught.value.error
