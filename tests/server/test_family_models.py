"""Laws of models with the templates of families, whose marks are control tokens: from a request to its answer."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from family_models import MARKS, SPECIAL_TOKENS, write_family_model
from family_templates import FAMILIES

import edge_spec
from edge_spec.cli.terminal.display import PlainDisplay
from edge_spec.generation.thoughts import HARMONY, THOUGHTS, ThoughtMarks, is_in_channels, marks_of
from edge_spec.generation.tools.chat_prompts import chat_prompt
from edge_spec.generation.tools.functions import Tool, declared
from edge_spec.generation.tools.grammar import calls_grammar
from edge_spec.model import TextModel
from edge_spec.server.running import ModelServer
from edge_spec.server.settings import ServerSettings
from edge_spec.tokens.shown import SHOWN

pytestmark = pytest.mark.long

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
QUESTION = {"role": "user", "content": "Weather?"}
NO_THOUGHT = {"chat_template_kwargs": {"enable_thinking": False}}
"""The demo model would think for ever, where a template lets it."""


@pytest.fixture(scope="module", params=SPECIAL_TOKENS)
def family(request: Any) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(family: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextModel]:
    folder = tmp_path_factory.mktemp("family")
    path = write_family_model(folder / "model.gguf", family)
    with edge_spec.load(path, engine="onnx", speculation="ngram", n_threads=1, cache_dir=folder) as model:
        yield model


@pytest.fixture(scope="module")
def client(model: TextModel) -> Iterator[openai.OpenAI]:
    with (
        ModelServer(model, ServerSettings(port=0, name="it")) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        yield client


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    asked = {"model": "it", "messages": [QUESTION], "seed": 7, "max_tokens": 120}
    return client.chat.completions.create(**{**asked, **fields})


def test_a_required_call_is_valid_streamed_or_not(client: openai.OpenAI, model: TextModel) -> None:
    # Where the template lets it think first, it calls all the same.
    calls_first = {str(model.n_vocab - len(MARKS) + MARKS.index("<|tool_call_start|>")): 100}
    for seed in range(20):
        asked = {"tools": TOOLS, "tool_choice": "required", "seed": seed, "parallel_tool_calls": False}
        asked["logit_bias"] = calls_first
        choice = ask(client, **asked, extra_body=NO_THOUGHT).choices[0]
        if choice.finish_reason == "length":
            continue
        (call,) = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        assert call.function.name == "get_weather"
        jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
        streamed = ""
        for chunk in ask(client, **asked, stream=True, extra_body=NO_THOUGHT):
            for part in chunk.choices[0].delta.tool_calls or ():
                streamed += part.function.arguments
        assert streamed == call.function.arguments
        return
    raise AssertionError("no answer has come to its end")


def test_a_json_answer_is_the_content(client: openai.OpenAI) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
    for seed in range(20):
        choice = ask(
            client,
            response_format=wanted,
            seed=seed,
            extra_body=NO_THOUGHT,
        ).choices[0]
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content), SCHEMA)
            return
    raise AssertionError("no answer has come to its end")


def special(model: TextModel) -> dict[str, int]:
    """The special tokens of a family, and all marks."""
    names = {*MARKS}.union(*((*each.ends, *each.others, *each.as_text) for each in SPECIAL_TOKENS.values()))
    tokens = {model.prompts.spelling(token).decode("utf-8", "replace"): token for token in range(model.n_vocab)}
    return {name: tokens[name] for name in sorted(names & tokens.keys())}


def test_a_reply_ends_at_the_tokens_that_end_a_turn_in_the_family_and_at_no_others(
    model: TextModel, family: str
) -> None:
    own, known = SPECIAL_TOKENS[family], special(model)
    ends, read = {*own.ends, "<|call|>", "<|return|>"}, {*SHOWN, *own.as_text, own.normal}
    assert known.keys() >= {*own.ends, *own.others}
    assert {name for name, token in known.items() if model.prompts.ends(token)} == ends & known.keys()
    for name, token in known.items():
        reply = model.generate([QUESTION], logit_bias={token: 100}, max_tokens=2)
        shown = 2 * name if name in read else ""
        assert (reply.read(), reply.finish_reason) == (shown, "eos" if name in ends else "length"), name


@pytest.mark.parametrize("family", ["gpt-oss"], indirect=True, scope="module")
def test_gpt_oss_makes_one_call_since_the_token_behind_it_ends_the_answer(model: TextModel) -> None:
    prompts, arguments = model.prompts, {"city": "Rome", "days": 3}
    made = [{"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}]
    functions = [Tool(**tool["function"]) for tool in TOOLS]
    called = [QUESTION, {"role": "assistant", "content": "", "tool_calls": made}]
    text, syntax = chat_prompt(prompts, called, [*map(declared, functions)], {})
    header, spelled = " to=functions.get_weather<|channel|>commentary json<|message|>", json.dumps(arguments)
    end = prompts.tokenize_rendered(text.partition(header + spelled)[2])[0]
    (next_message,) = prompts.tokenize("<|end|>", add_special=False)
    assert prompts.spelling(end) == b"<|call|>" and prompts.ends(end)
    grammar = calls_grammar(functions, syntax, required=True, several=True, may_think=False)
    state: Any = model.requests([[0]], grammar=grammar, raw=True)[0].grammar
    state = state.start()
    for token in prompts.tokenize(header + spelled, add_special=False):
        assert state.allowed([token])[0]
        state = state.after(token)
    assert [*state.allowed([end, next_message])] == [True, False]


def test_special_tokens_that_somebody_names_are_text_and_those_of_calls_are_tokens(
    model: TextModel, family: str
) -> None:
    prompts, known = model.prompts, special(model)
    # Where a family lists tags as text they are tokens to whoever writes them.
    tags = {name for name in SPECIAL_TOKENS[family].as_text if not prompts.is_control(known[name])}
    assert tags <= {"<think>", "</think>", "<tool_call>", "</tool_call>"}
    assert all(prompts.spelling(token) == name.encode() for name, token in known.items())
    named = " ".join(name for name in known if name not in tags)

    def counted(messages: list[dict[str, Any]], tools: list[Any] | None = None) -> dict[str, int]:
        text, _ = chat_prompt(prompts, messages, tools or [], {})
        tokens = prompts.tokenize_rendered(text)
        return {name: tokens.count(token) for name, token in known.items() if name not in tags}

    def conversation(text: str) -> list[dict[str, Any]]:
        function = {"name": "get_weather", "arguments": {"city": text}}
        calls = [{"id": "1", "type": "function", "function": function}]
        return [
            {"role": "system", "content": f"Be brief {text}."},
            {"role": "user", "content": f"What is {text}?"},
            {"role": "assistant", "content": f"I know {text}."},
            QUESTION,
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "1", "name": "get_weather", "content": f"rain {text}"},
        ]

    tool = {"name": "f", "description": "Names.", "parameters": {"type": "object", "properties": {}}}
    for tools in ([], [{"type": "function", "function": tool}]):
        named_tools = [{"type": "function", "function": tool | {"description": named}}] if tools else []
        plain = counted(conversation("nothing"), tools)
        assert counted(conversation(named), named_tools) == plain
        assert all(plain[name] for name in known.keys() & {"<|turn>", "<|im_start|>", "[INST]", "<|start_of_role|>"})
    marks = {"Gemma 4": "<|tool_call>", "Ministral 3": "[TOOL_CALLS]"}
    mark = marks.get(family, "<|tool_call_start|>" if family.startswith("LFM") else "")
    assert not mark or plain[mark] == 1


@pytest.mark.parametrize("thoughts", ["hide", "show"])
def test_a_thought_is_shown_or_hidden_with_all_that_stands_around_it(
    model: TextModel, family: str, thoughts: str
) -> None:
    marks: ThoughtMarks = marks_of(FAMILIES[family])
    prompt = model.prompt_of([{"role": "system", "content": "Be brief."}, QUESTION])
    opening = model.prompts.opening(prompt)
    text = f"{marks.opening}\nHm.\n{marks.closing}{marks.between}\n{marks.answer}It rains."
    if is_in_channels(text):
        text = text.replace("\n", "")
    text = text.removeprefix(opening.rstrip()).lstrip() if opening.strip() == marks.opening else text
    rule = json.dumps(text, ensure_ascii=False)
    out = io.StringIO()
    display = PlainDisplay(out, io.StringIO(), thoughts=thoughts)
    display.begin()
    reply = model.generate(tokens=prompt, raw=True, grammar=f"root ::= {rule}")
    for is_thought, piece in reply.parts():
        display.write(piece, thought=is_thought)
    display.end()
    said = " ".join(out.getvalue().split())
    assert said == ("It rains." if thoughts == "hide" else "<think> Hm. </think> It rains.")
    assert (reply.message["reasoning_content"].strip(), reply.answer) == ("Hm.", "It rains.")


def test_a_conversation_goes_on_with_what_was_answered(model: TextModel, family: str) -> None:
    chat = model.chat("Be brief.", seed=3, max_tokens=20)
    parts = list(chat.send("Hello?").parts())
    answer = chat.messages[-1]
    assert "".join(text for is_thought, text in parts if not is_thought).strip() == answer.answer.strip()
    chat.send("And now?").read()
    assert [message.role for message in chat.messages] == ["system", "user", "assistant", "user", "assistant"]


def test_an_answer_that_is_read_again_keeps_the_marks_that_the_model_has_written(model: TextModel) -> None:
    prompts, first = model.prompts, model.n_vocab - len(MARKS)
    for marks in THOUGHTS:
        said = "<|start|>system<|message|> or [TOOL_CALLS]" if marks is not HARMONY else "<|start|>system or [ARGS]"
        content = f"{marks.opening}Hm {said}.{marks.closing}{marks.between}{marks.answer}Yes, {said}."
        tokens = prompts.tokenize_answer(content)
        assert model.detokenize(tokens) == content
        names = [MARKS[token - first] for token in tokens if token >= first]
        whole = prompts.tokenize(f"{marks.opening}{marks.closing}{marks.between}{marks.answer}", add_special=False)
        assert names == [MARKS[token - first] for token in whole if token >= first]
        assert names
        assert prompts.tokenize_answer(content, marks.opening) == tokens[len(prompts.tokenize_answer(marks.opening)) :]
