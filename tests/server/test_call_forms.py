"""Laws of every form of calls: read the same however the text is cut, nothing told too early, and held to schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marked_vocabulary import takes

from edge_spec.generation.thoughts import THOUGHTS, ThoughtMarks
from edge_spec.server.answers import AnswerParser, MergedMessage
from edge_spec.server.call_arguments import BARE, JSON, PYTHON, TAGGED
from edge_spec.server.call_grammar import calls_grammar, schema_of
from edge_spec.server.call_syntax import FORMS, CallSyntax
from edge_spec.server.errors import ApiError
from edge_spec.server.fields import FunctionFields

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
FUNCTIONS = [FunctionFields(name="find_room", parameters=ROOM), FunctionFields(name="find")]
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
    """What the prompt has written of an answer, and one with a thought, a text and calls."""
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
    functions = [FunctionFields(name=name, parameters=schema) for name, schema in LOOSE.items()]
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


KEPT = {JSON: True, PYTHON: True, BARE: False, TAGGED: False}


def test_what_a_form_cannot_keep_is_left_to_the_tool_unless_it_is_strict(form: CallSyntax) -> None:
    code = {"type": "object", "properties": {"code": {"type": "string", "pattern": "^[a-c]{2}$"}}, "required": ["code"]}
    loose, strict = (FunctionFields(name="f", parameters=code, strict=value) for value in (False, True))
    may: Any = {"required": True, "several": False, "may_think": False}
    good, bad = (called(form, ("f", {"code": text})) for text in ("ab", "xy"))
    assert takes(calls_grammar([loose], form, **may), good)
    assert takes(calls_grammar([loose], form, **may), bad) != KEPT[form.arguments]
    if KEPT[form.arguments]:
        assert not takes(calls_grammar([strict], form, **may), bad)
    else:
        with pytest.raises(ApiError, match=r"tools\[0\]\.function\.parameters: .*form of calls"):
            calls_grammar([strict], form, **may)


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
    loose, strict = (FunctionFields(name="f", parameters=BAD[name], strict=value) for value in (False, True))
    assert takes(calls_grammar([loose], form, **may), called(form, ("f", {}))) or name == "references that branch"
    try:
        calls_grammar([strict], form, **may)
    except ApiError as error:
        assert error.status == 400
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
