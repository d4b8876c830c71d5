"""Laws of every form of calls: read the same however the text is cut, nothing told too early, and held to schemas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marked_vocabulary import takes
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from pydantic import TypeAdapter

from edge_spec.errors import SettingsError
from edge_spec.generation.events import TokenEvent
from edge_spec.generation.request import ReplyRequest
from edge_spec.generation.text_stream import TextStream
from edge_spec.generation.thoughts import THOUGHTS, ThoughtMarks
from edge_spec.generation.tools.answers import AnswerParser, MergedMessage
from edge_spec.generation.tools.arguments import BARE, JSON, PYTHON, TAGGED
from edge_spec.generation.tools.calls import CallReading
from edge_spec.generation.tools.functions import Tool
from edge_spec.generation.tools.grammar import calls_grammar, schema_of
from edge_spec.generation.tools.syntax import FORMS, CallSyntax
from edge_spec.sampling import SamplerSettings
from edge_spec.server.dialects import dialect_at
from edge_spec.server.jobs import Job
from edge_spec.server.request_log import Record
from edge_spec.server.settings import ServerSettings
from edge_spec.server.streaming import PieceStream
from edge_spec.speculation.statistics import Statistics

pytestmark = pytest.mark.long

NAMES = ("gpt-oss", "Gemma 4", "Qwen 3.5", "Hermes", "LFM2", "Ministral 3", "Llama")
ROOM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["hall", "cell"]},
        "seats": {"type": "integer"},
        "open": {"type": "boolean"},
        "rows": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "owner": {"type": "object", "properties": {"note": {"type": ["string", "null"]}}, "required": ["note"]},
    },
    "required": ["name", "open"],
}
FUNCTIONS = [Tool(name="find_room", parameters=ROOM), Tool(name="find")]
SCHEMAS = {function.name: schema_of(function) for function in FUNCTIONS}
VALUES = {
    "name": 'A "B" {c} \\ [d] =, é\n<tool_call> it\'s',
    "kind": "hall",
    "seats": -12,
    "open": True,
    "rows": [[1, 2.5], [], [3]],
    "owner": {"note": None},
}


def spelled(form: CallSyntax, values: dict[str, Any]) -> str:
    """Arguments as a family writes them."""
    if form.arguments is BARE:
        return bare(values)
    if form.arguments is TAGGED:
        parts = (
            (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            for name, value in values.items()
        )
        return "".join(f"<parameter={name}>\n{text}\n</parameter>\n" for name, text in parts) + "</function>"
    return form.arguments.written(values)


def bare(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{bare(value[name])}" for name in sorted(value)) + "}"
    return "[" + ",".join(map(bare, value)) + "]" if isinstance(value, list) else json.dumps(value)


def called(form: CallSyntax, *calls: tuple[str, dict[str, Any]]) -> str:
    """Calls as a family writes them, by our own hand."""
    texts = [name + form.middle + spelled(form, values) for name, values in calls]
    if form.joined:
        return form.opening + form.joined.join(texts) + form.closing
    return form.separator.join(form.opening + text + form.closing for text in texts)


def marks_for(form: CallSyntax) -> ThoughtMarks:
    return {"gpt-oss": THOUGHTS[3], "Gemma 4": THOUGHTS[1], "Ministral 3": THOUGHTS[2]}.get(
        NAMES[FORMS.index(form)], THOUGHTS[0]
    )


def answered(form: CallSyntax) -> tuple[str, str]:
    """Return what the prompt has written of an answer, and one with a thought, a text and calls."""
    marks, calls = marks_for(form), (("find_room", VALUES), ("find", {}))
    thought = f"{marks.opening}Hm, <tool_call> or to=functions.{marks.closing}{marks.between}"
    if form.forced:
        text = "<|channel|>commentary<|message|>Let me see.<|end|>" + marks.between
        header = f"<|channel|>commentary{form.opening}find_room <|constrain|>json<|message|>"
        return marks.between, thought + text + header + spelled(form, VALUES)
    # Llama's calls are whole answers.
    return "", thought + ("Let me see.\n" if form.mark else "") + called(form, *calls)


def expected(form: CallSyntax) -> dict[str, Any]:
    values = dict(sorted(VALUES.items())) if form.arguments is BARE else VALUES
    text = json.dumps(values, ensure_ascii=False)
    calls = [{"name": "find_room", "arguments": text}, {"name": "find", "arguments": "{}"}]
    return {
        "role": "assistant",
        "content": "Let me see." if form.mark else None,
        "reasoning_content": "Hm, <tool_call> or to=functions.",
        "tool_calls": calls[:1] if form.forced else calls,
    }


def read(
    form: CallSyntax,
    pieces: Iterator[str] | list[str],
    *,
    opening: str = "",
    is_cut: bool = False,
    schemas: Any = SCHEMAS,
) -> Any:
    parser = AnswerParser(opening, form, schemas)
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    message = MergedMessage(deltas + parser.finish(is_cut=is_cut)).message()
    if "tool_calls" in message:
        message["tool_calls"] = [call["function"] for call in message["tool_calls"]]
    return message


@pytest.fixture(params=FORMS, ids=NAMES)
def form(request: Any) -> CallSyntax:
    found: CallSyntax = request.param
    return found


def test_calls_are_read_the_same_however_the_text_is_cut(form: CallSyntax) -> None:
    opening, text = answered(form)
    whole = expected(form)
    assert read(form, [text], opening=opening) == whole
    assert read(form, list(text), opening=opening) == whole
    for place in range(len(text)):
        assert read(form, [text[:place], text[place:]], opening=opening) == whole, text[:place]


def test_of_a_text_that_is_cut_nothing_is_told_that_the_whole_one_does_not_say(form: CallSyntax) -> None:
    opening, text = answered(form)
    whole = expected(form)
    for place in range(len(text)):
        found = read(form, list(text[:place]), opening=opening, is_cut=True)
        for name in ("content", "reasoning_content"):
            assert (whole[name] or "").startswith((found.get(name) or "").rstrip()), text[:place]
        calls = found.get("tool_calls", [])
        for call, all_of_it in zip(calls, whole["tool_calls"], strict=False):
            assert call["name"] == all_of_it["name"]
            assert all_of_it["arguments"].startswith(call["arguments"]), text[:place]
        assert len(calls) <= len(whole["tool_calls"])


def test_a_call_that_was_cut_off_is_not_among_those_of_a_reply(form: CallSyntax) -> None:
    opening, text = answered(form)
    reading = CallReading(syntax=form, schemas=SCHEMAS)
    _, whole = reading.message(opening + text, is_cut=False)
    assert [call.name for call in whole] == [call["name"] for call in expected(form)["tool_calls"]]
    for place in range(len(text)):
        _, calls = reading.message(opening + text[:place], is_cut=True)
        assert calls == whole[: len(calls)], text[:place]


class Written(AsyncIterator[tuple[int, list[TokenEvent], Any]]):
    """Work that has been done: an answer of such pieces, and how it has ended."""

    def __init__(self, pieces: list[bytes], finish_reason: str) -> None:
        stream = TextStream()
        texts = [*map(stream.push, pieces), stream.finish()]
        answer = SimpleNamespace(
            finish_reason=finish_reason,
            is_cut=finish_reason != "eos",
            statistics=Statistics(),
            n_reused=0,
            settings=SimpleNamespace(seed=0),
            identity="bitwise",
            prompt=(1,),
            stopped_by=None,
        )
        events = [TokenEvent(id=None, text=text, top={}, drafted_by=None, round=1) for text in texts]
        self._batches = iter([*(([event], None) for event in events), ([], answer)])
        self.kept, self.notices, self.answers = SimpleNamespace(grow=lambda n_bytes: None), (), [answer]

    async def __anext__(self) -> tuple[int, list[TokenEvent], Any]:
        try:
            return 0, *next(self._batches)
        except StopIteration:
            raise StopAsyncIteration from None


def responded(
    form: CallSyntax, opening: str, pieces: list[bytes], finish_reason: str, *, stream: bool, path: str
) -> str:
    """Return the response to a client."""
    prompts = SimpleNamespace(spelling=lambda token: b"", ends=lambda token: False)
    profile = SimpleNamespace(name="it")
    model: Any = SimpleNamespace(prompts=prompts, profile=profile, speed_up=lambda done: None, n_ctx=1)
    reading = CallReading(syntax=form, schemas=SCHEMAS)
    request = ReplyRequest(prompt=(1,), settings=SamplerSettings(seed=0), opening=opening, reading=reading)
    settings, job = ServerSettings(name="it"), Job(requests=[request], is_stream=stream)
    jobs: Any = SimpleNamespace(
        model=model, settings=settings, think=lambda *given: None, chat=lambda *given, **more: job
    )
    dialect, work = dialect_at(path), cast(Any, Written(pieces, finish_reason))
    body = {"messages": [{"role": "user", "content": "Which?"}], "stream": stream, "max_tokens": 1}
    response = dialect.writes[path](jobs, body)
    assert not isinstance(response, dict)

    async def content() -> bytes:
        if not stream:
            return b"".join(await response.whole(work))
        sent = list[bytes]()
        chunks = response.chunks(work)
        events = PieceStream(chunks, dialect, settings, inf, Record(), asyncio.Event(), lambda: None)

        async def send(message: Any) -> None:
            sent.append(message.get("body", b""))

        await events({}, asyncio.Event().wait, send)  # type: ignore[arg-type]
        return b"".join(sent)

    return asyncio.run(content()).decode()


def openai_message(text: str, *, stream: bool) -> dict[str, Any]:
    if not stream:
        (choice,) = json.loads(text)["choices"]
    else:
        *lines, done, after = text.split("\n\n")
        assert (done, after) == ("data: [DONE]", "")
        state = ChatCompletionStreamState()
        for line in lines:
            state.handle_chunk(ChatCompletionChunk.model_validate_json(line.removeprefix("data: ")))
        choice = state.current_completion_snapshot.model_dump(mode="json")["choices"][0]
    message = choice["message"]
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return {
        "content": message["content"] or "",
        "thought": message.get("reasoning_content") or "",
        "calls": [(function["name"], function["arguments"]) for function in functions],
        "finish_reason": choice["finish_reason"],
    }


def anthropic_message(text: str, *, stream: bool) -> dict[str, Any]:
    types = pytest.importorskip("anthropic.types")
    if stream:
        of_stream = TypeAdapter(types.RawMessageStreamEvent)
        for part in text.strip().split("\n\n"):
            name, data = part.split("\n", 1)
            event = of_stream.validate_json(data.removeprefix("data: "))
            assert name == f"event: {event.type}"
            if event.type == "message_start":
                message = event.message.model_dump()
            elif event.type == "content_block_start":
                assert event.index == len(message["content"])
                message["content"].append({**event.content_block.model_dump(), "json": ""})
            elif event.type == "content_block_delta":
                block, delta = message["content"][event.index], event.delta.model_dump()
                kind = delta.pop("type")
                for field, more in delta.items():
                    block["json" if kind == "input_json_delta" else field] += more
            elif event.type == "message_delta":
                message |= event.delta.model_dump(exclude_none=True)
        assert event.type == "message_stop"
    else:
        message = types.Message.model_validate_json(text).model_dump()
        for block in message["content"]:
            block["json"] = json.dumps(block.get("input"), ensure_ascii=False)
    blocks = {kind: [each for each in message["content"] if each["type"] == kind] for kind in ("text", "thinking")}
    assert all(block["signature"] == "" for block in blocks["thinking"])
    calls = [(each["name"], each["json"]) for each in message["content"] if each["type"] == "tool_use"]
    reasons = {"tool_use": "tool_calls", "max_tokens": "length"}
    return {
        "content": "".join(block["text"] for block in blocks["text"]),
        "thought": "".join(block["thinking"] for block in blocks["thinking"]),
        "calls": whole_calls(calls),
        "finish_reason": reasons.get(message["stop_reason"], message["stop_reason"]),
    }


def ollama_message(text: str, *, stream: bool) -> dict[str, Any]:
    kind = pytest.importorskip("ollama").ChatResponse
    parts = [kind.model_validate_json(line) for line in text.splitlines()]
    assert (stream or len(parts) == 1) and parts[-1].done
    calls = [call.function for part in parts for call in part.message.tool_calls or ()]
    reason = "tool_calls" if calls and parts[-1].done_reason == "stop" else parts[-1].done_reason
    return {
        "content": "".join(part.message.content or "" for part in parts),
        "thought": "".join(part.message.thinking or "" for part in parts),
        "calls": [(call.name, json.dumps(call.arguments, ensure_ascii=False)) for call in calls],
        "finish_reason": reason,
    }


def whole_calls(calls: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those of some calls whose arguments have been written to their end."""
    found = []
    for name, arguments in calls:
        try:
            json.loads(arguments)
        except json.JSONDecodeError:
            break
        found.append((name, arguments))
    return found


MESSAGES = {
    "/v1/chat/completions": openai_message,
    "/v1/messages": anthropic_message,
    "/api/chat": ollama_message,
}


@pytest.mark.parametrize("path", MESSAGES)
def test_a_stream_of_the_server_adds_up_to_the_response_that_is_not_streamed(form: CallSyntax, path: str) -> None:
    opening, text = answered(form)
    raw = text.encode()
    told = expected(form)
    calls = [(call["name"], call["arguments"]) for call in told["tool_calls"]]
    all_of_it = {"content": told["content"] or "", "thought": told["reasoning_content"], "calls": calls}
    bytewise = [raw[n : n + 1] for n in range(len(raw))]
    cases = [(bytewise, "eos"), (bytewise, "length")]
    # What reads the text is tried at each place above.
    step = 3 if path == "/v1/chat/completions" else 11
    cases += [([raw[:place], raw[place:]], "eos") for place in range(0, len(raw), step)]
    cases += [([raw[: place // 2], raw[place // 2 : place]], "length") for place in range(1, len(raw), step)]
    for pieces, reason in cases:
        streamed, at_once = (
            MESSAGES[path](responded(form, opening, pieces, reason, stream=each, path=path), stream=each)
            for each in (True, False)
        )
        assert streamed == at_once, pieces
        if reason == "eos":
            assert at_once == {**all_of_it, "finish_reason": "tool_calls"}, pieces


def test_each_piece_of_arguments_comes_as_soon_as_it_is_sure(form: CallSyntax) -> None:
    opening, text = answered(form)
    parser = AnswerParser(opening, form, SCHEMAS)
    name = text.index('"B"') + 1 if '"B"' in text else text.index("B")
    deltas = [delta for char in text[:name] for delta in parser.push(char)]
    arguments = MergedMessage(deltas).message()["tool_calls"][0]["function"]["arguments"]
    assert arguments.endswith('"name": "A ') or arguments.endswith('"name": "A \\"')


def test_the_grammar_takes_calls_and_no_others(form: CallSyntax) -> None:
    _, text = answered(form)
    may: Any = {"several": True, "may_think": True, "marks": marks_for(form)}
    free = calls_grammar(FUNCTIONS, form, required=False, **may)
    forced = calls_grammar(FUNCTIONS, form, required=True, **may)
    assert takes(free, text)
    assert takes(free, "Nothing to call.")
    assert not takes(forced, "Nothing to call.")
    for wrong in (("seats", "-12", "many"), ("kind", "hall", "tent"), ("name", "find_room", "find_rome")):
        assert not takes(free, text.replace(*wrong[1:])), wrong
    assert not takes(free, text[:-1])
    one = called(form, ("find_room", {"name": "x", "open": False}))
    assert takes(forced, one)
    assert not takes(forced, called(form, ("find_room", {"name": "x"})))
    assert takes(forced, called(form, ("find", {})))
    two = called(form, ("find", {}), ("find", {}))
    assert takes(forced, two) == (not form.forced)
    alone = calls_grammar(FUNCTIONS, form, required=True, several=False, may_think=False)
    assert takes(alone, one)
    assert not takes(alone, two)


TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.just("\n"), max_size=12)
NUMBERS = st.integers(-(10**9), 10**9)
ROOMS = st.fixed_dictionaries(
    {"name": TEXTS, "open": st.booleans()},
    optional={
        "kind": st.sampled_from(["hall", "cell"]),
        "seats": NUMBERS,
        "rows": st.lists(st.lists(NUMBERS, max_size=2), max_size=2),
        "owner": st.fixed_dictionaries({"note": st.none() | TEXTS}),
    },
).map(lambda values: {name: values[name] for name in ROOM["properties"] if name in values})  # type: ignore[attr-defined]


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_random_values_are_allowed_and_read_as_they_were_written(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(FORMS))
    values = data.draw(ROOMS)
    text = called(form, ("find_room", values))
    grammar = calls_grammar(FUNCTIONS, form, required=True, several=True, may_think=False)
    assert takes(grammar, text)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    opening = marks_for(form).between
    (call,) = read(form, ["<|channel|>commentary" * bool(form.forced), *pieces], opening=opening)["tool_calls"]
    assert json.loads(call["arguments"]) == values


LOOSE: dict[str, Any] = {
    "open": {"type": "object"},
    "deep": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/b"}, "c": {}},
        "$defs": {"b": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
    },
    "nothing": {"type": "object", "properties": {}},
}


def test_arguments_of_which_little_is_said_may_be_anything(form: CallSyntax) -> None:
    functions = [Tool(name=name, parameters=schema) for name, schema in LOOSE.items()]
    schemas = {function.name: schema_of(function) for function in functions}
    grammar = calls_grammar(functions, form, required=True, several=True, may_think=False)
    taken: list[tuple[str, dict[str, Any]]] = [
        ("open", {}),
        ("open", {"x": 1, "y": "z"}),
        ("deep", {}),
        ("deep", {"a": 3}),
        ("deep", {"a": "three", "c": [True, {"d": None}]}),
        ("nothing", {}),
    ]
    for name, values in taken:
        text = called(form, (name, values))
        assert takes(grammar, text), text
        parser = AnswerParser(marks_for(form).between, form, schemas)
        lead = "<|channel|>commentary" * bool(form.forced)
        message = MergedMessage(parser.push(lead + text) + parser.finish()).message()
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == values
    assert not takes(grammar, called(form, ("nothing", {"a": 1})))
    assert not takes(grammar, called(form, ("deep", {"b": 1})))


STAMP = "2026-02-03"
TREE = {"type": "object", "properties": {"name": {"type": "string"}, "next": {"$ref": "#/$defs/tree"}}}
HELD: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "a pattern": ({"type": "string", "pattern": "^[a-c]{2}$"}, ["ab"], ["xy", "abc", "a"]),
    "a pattern somewhere": ({"type": "string", "pattern": "a/.b"}, ["a/xb", "--a/éb\n--"], ["a/b", "axb"]),
    "a pattern of one end": ({"type": "string", "pattern": "^\\d+ "}, ["12 x", "1 "], ["x 1 ", "12"]),
    "lengths": ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "é\né"], ["a", "abcd"]),
    "a length and a pattern": ({"type": "string", "minLength": 3, "pattern": "^a"}, ["abc"], ["ab", "xabc"]),
    "a date": ({"type": "string", "format": "date"}, [STAMP], ["today", STAMP + "x"]),
    "values": ({"enum": ["a", 'b "x" </p>', "true", 3, None, False]}, ['b "x" </p>', 3, None, False], ["b", 4, True]),
    "values of one type": ({"type": "string", "enum": ["a", "b", 3]}, ["a", "b"], ["c"]),
    "values or nothing": ({"type": ["string", "null"], "enum": ["a", None]}, ["a", None], ["b", 0]),
    "strange values": (
        {"enum": ["5 € — x/y_z\n\"{}'\\", '<|"|>', "x\n</parameter>"]},
        ["5 € — x/y_z\n\"{}'\\"],
        ["5 €"],
    ),
    "one value": ({"const": "a"}, ["a"], ["b"]),
    "numbers": ({"type": "integer", "minimum": 2, "maximum": 30}, [2, 17, 30], [1, 31, -5]),
    "numbers or nothing": ({"anyOf": [{"type": "number", "minimum": 2}, {"type": "null"}]}, [2.5, None], [1.5]),
    "a text or nothing": (
        {"anyOf": [{"type": "string", "pattern": "^[a-c]+$"}, {"type": "null"}]},
        ["abc", None],
        ["xyz", "aN"],
    ),
    "a text or a number": ({"type": ["string", "integer"], "maxLength": 2}, ["ab", 12345], ["abc"]),
    "a text or a bounded number": (
        {"anyOf": [{"type": "string", "minLength": 2}, {"type": "integer", "maximum": 9}]},
        ["ab", 7],
        ["a", 17],
    ),
    "a text or texts": (
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"enum": ["a"]}, "maxItems": 2}]},
        ["b", [], ["a", "a"]],
        [["b"], ["a", "a", "a"], [1]],
    ),
    "a list of lengths": (
        {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1, "maxItems": 3},
        [[1], [1, 2, 3]],
        [[], [0], [1, 2, 3, 4]],
    ),
    "an empty list": ({"type": "array", "items": {"type": "integer"}, "maxItems": 0}, [[]], [[1]]),
    "names of any kind": (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        [{}, {"a": 1, "b": 2}],
        [{"a": "x"}, {"a": 1, "b": True}],
    ),
    "an object": (
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 1}}, "required": ["a"]},
        [{"a": "x"}],
        [{}, {"a": "xy"}, {"b": 1}],
    ),
    "all of one": ({"allOf": [{"type": "string", "maxLength": 1}], "description": "One."}, ["a"], ["ab"]),
    "a tree": ({"$ref": "#/$defs/tree"}, [{}, {"name": "a", "next": {"next": {"name": "b"}}}], [{"next": {"x": 1}}]),
}
"""Schemas of an argument, values that they allow, and others."""


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("case", HELD)
def test_arguments_are_held_to_what_schemas_say(form: CallSyntax, case: str, strict: bool) -> None:
    schema, good, bad = HELD[case]
    whole = {"type": "object", "properties": {"x": schema, "y": {}}, "required": ["x"], "$defs": {"tree": TREE}}
    functions = [Tool(name="f", parameters=whole, strict=strict)]
    grammar = calls_grammar(functions, form, required=True, several=False, may_think=False)
    for value in good:
        text = called(form, ("f", {"x": value}))
        assert takes(grammar, text), value
        lead = ["<|channel|>commentary" * bool(form.forced), *text]
        (call,) = read(form, lead, opening=marks_for(form).between, schemas={"f": schema_of(functions[0])})[
            "tool_calls"
        ]
        assert json.loads(call["arguments"]) == {"x": value}
    for value in bad:
        assert not takes(grammar, called(form, ("f", {"x": value}))), value


WORDS: list[Any] = ["null", "None", "true", "12", "-3.5", "[1]", "", " ", "12 ", "a\n", "ab", " null"]
WORDS += [None, True, 1, 12, 100, -3.5, [], ["a"], [None], {}, {"a": {"b": 1}}]


@pytest.mark.parametrize("case", HELD)
@pytest.mark.parametrize("name", ["Gemma 4", "Qwen 3.5", "LFM2"])
def test_whatever_the_grammar_takes_is_valid_as_it_is_read(name: str, case: str) -> None:
    form = FORMS[NAMES.index(name)]
    whole = {"type": "object", "properties": {"x": HELD[case][0]}, "required": ["x"], "$defs": {"tree": TREE}}
    function = Tool(name="f", parameters=whole, strict=True)
    grammar = calls_grammar([function], form, required=True, several=False, may_think=False)
    for value in WORDS:
        text = called(form, ("f", {"x": value}))
        if takes(grammar, text):
            (call,) = read(form, [text], schemas={"f": schema_of(function)})["tool_calls"]
            jsonschema.validate(json.loads(call["arguments"]), whole)


MORE: dict[str, dict[str, Any]] = {
    "an address": {"type": "string", "format": "email"},
    "a pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
    "names by pattern": {"type": "object", "patternProperties": {"^a": {"type": "integer"}}},
    "both": {"allOf": [{"type": "string", "minLength": 1}, {"maxLength": 3}]},
}
KEPT_BY = {JSON: set(MORE), PYTHON: set(MORE), BARE: set[str](), TAGGED: {"a pair", "names by pattern"}}


@pytest.mark.parametrize("case", MORE)
def test_what_a_form_cannot_keep_is_left_to_the_tool_unless_it_is_strict(form: CallSyntax, case: str) -> None:
    schema = {"type": "object", "properties": {"x": MORE[case], "y": {"enum": ["a"]}}, "required": ["y"]}
    loose, strict = (Tool(name="f", parameters=schema, strict=value) for value in (False, True))
    may: Any = {"required": True, "several": False, "may_think": False}
    notices: list[str] = []
    free = calls_grammar([loose], form, **may, on_notice=notices.append)
    assert [each.rpartition(";")[2] for each in notices] == (
        [] if case in KEPT_BY[form.arguments] else [" as it is not strict, some arguments may be anything"]
    )
    # The others are held all the same.
    assert takes(free, called(form, ("f", {"y": "a"}))) and not takes(free, called(form, ("f", {"y": "b"})))
    wrong = called(form, ("f", {"x": [2, 1], "y": "a"}))
    assert takes(free, wrong) != (case in KEPT_BY[form.arguments])
    if case in KEPT_BY[form.arguments]:
        assert not takes(calls_grammar([strict], form, **may), wrong)
    else:
        with pytest.raises(SettingsError, match="the schema of f cannot be kept in this form of calls: "):
            calls_grammar([strict], form, **may)


@pytest.mark.parametrize(("name", "mark"), [("Gemma 4", '<|"|>'), ("Qwen 3.5", "\n</parameter>")])
def test_values_that_a_form_cannot_write_are_refused_where_there_are_no_others(name: str, mark: str) -> None:
    form = FORMS[NAMES.index(name)]
    may: Any = {"required": True, "several": False, "may_think": False}
    schema = {"type": "object", "properties": {"x": {"enum": [f"a{mark}b"]}}, "required": ["x"]}
    with pytest.raises(SettingsError, match="form of calls"):
        calls_grammar([Tool(name="f", parameters=schema, strict=True)], form, **may)
    assert takes(calls_grammar([Tool(name="f", parameters=schema)], form, **may), called(form, ("f", {"x": "a"})))


def test_several_calls_of_gpt_oss_are_read_however_the_text_is_cut() -> None:
    """Its calls end with the end of a reply, so a grammar lets it write one; a text may hold more."""
    form, calls = FORMS[NAMES.index("gpt-oss")], [("find_room", VALUES), ("find", {}), ("find_room", {"name": "é"})]
    between = marks_for(form).between
    headers = ("<|channel|>commentary to=functions.{} <|constrain|>json<|message|>",)
    headers += (
        " to=functions.{}<|channel|>commentary json<|message|>",
        "<|channel|>commentary to=functions.{}<|message|>",
    )
    parts = [header.format(name) + spelled(form, values) for header, (name, values) in zip(headers, calls, strict=True)]
    text = f"<|end|>{between}".join(("<|channel|>analysis<|message|>Hm.", *parts))
    whole = [{"name": name, "arguments": json.dumps(values, ensure_ascii=False)} for name, values in calls]
    for place in range(len(text) + 1):
        message = read(form, [text[:place], text[place:]], opening=between)
        assert (message["tool_calls"], message["content"], message["reasoning_content"]) == (whole, None, "Hm.")
        cut = read(form, list(text[:place]), opening=between, is_cut=True).get("tool_calls", [])
        for call, all_of_it in zip(cut, whole, strict=False):
            assert call["name"] == all_of_it["name"] and all_of_it["arguments"].startswith(call["arguments"])


def deep(n: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(n):
        schema = {"type": "array", "items": schema}
    return schema


BAD: dict[str, dict[str, Any]] = {
    "definitions that are none": {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": 3},
    "a reference to itself": {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"$ref": "#/$defs/b"}}},
    "references that branch": {
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "$defs": {
            **{f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(40)},
            "d40": {"type": "integer"},
        },
    },
    "names that are none": {"properties": {"a": {}}, "required": [["a"], 3]},
    "no values": {"properties": {"a": {"enum": []}}},
    "types that are none": {"properties": {"a": {"type": [{}, 3]}, "b": {"anyOf": "x"}, "c": {"type": {}}}},
    "properties that are none": {"properties": [1]},
    "too deep": {"properties": {"a": deep(300)}},
}


@pytest.mark.parametrize("name", BAD)
def test_a_schema_that_is_none_is_left_to_the_tool_or_refused(form: CallSyntax, name: str) -> None:
    may: Any = {"required": True, "several": False, "may_think": False}
    loose, strict = (Tool(name="f", parameters=BAD[name], strict=value) for value in (False, True))
    notices: list[str] = []
    grammar = calls_grammar([loose], form, **may, on_notice=notices.append)
    assert takes(grammar, called(form, ("f", {}))) or name == "references that branch"
    try:
        calls_grammar([strict], form, **may)
        assert not notices
    except SettingsError:
        # Whoever does not want it strict is told, too.
        assert notices
    read(form, [called(form, ("f", {"a": 1}))], opening=marks_for(form).between, schemas={"f": schema_of(loose)})


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("[find_room(name='it\\'s', open=True)]", '{"name": "it\'s", "open": true}'),
        ('[find_room(name="a\\u00e9\\n\\"", open=false)]', '{"name": "a\\u00e9\\n\\"", "open": false}'),
        ("[find_room( name = 'a' , open = False, owner={'note': None} )]", None),
    ],
)
def test_python_is_read_as_people_write_it(text: str, arguments: str | None) -> None:
    form = FORMS[NAMES.index("LFM2")]
    (call,) = read(form, list(f"<|tool_call_start|>{text}<|tool_call_end|>"))["tool_calls"]
    assert call["arguments"] == (arguments or '{"name": "a", "open": false, "owner": {"note": null}}')
