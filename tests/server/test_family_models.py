"""Laws of models with the templates of families, whose marks are control tokens: from a request to its answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from family_models import MARKS, write_family_model

import edge_spec
from edge_spec.generation.thoughts import HARMONY, THOUGHTS
from edge_spec.model import TextModel
from edge_spec.server.chat_prompts import chat_prompt
from edge_spec.server.running import ModelServer
from edge_spec.server.settings import ServerSettings
from edge_spec.tokens.shown import CHANNELS

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
QUESTION = {"role": "user", "content": "Weather?"}
NO_THOUGHT = {"chat_template_kwargs": {"enable_thinking": False}}
"""The demo model would think for ever, where a template lets it."""


@pytest.fixture(scope="module", params=["gpt-oss", "Gemma 4", "Qwen 3.5", "LFM2", "LFM2.5", "Ministral 3"])
def family(request: Any) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(family: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextModel]:
    folder = tmp_path_factory.mktemp("family")
    path = write_family_model(folder / "model.gguf", family)
    with edge_spec.load(path, engine="llama", speculation="ngram", n_threads=1, cache_dir=folder) as model:
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


def test_marks_that_a_message_names_are_text_and_those_of_calls_are_tokens(model: TextModel, family: str) -> None:
    prompts = model.prompts
    first = model.n_vocab - len(MARKS)
    named = [mark for mark in MARKS if mark in ("<|tool_call_start|>", "<|tool_call>", "[TOOL_CALLS]", "<think>")]
    named += CHANNELS
    assert all(prompts.is_control(first + MARKS.index(mark)) for mark in named)
    assert all(prompts.spelling(first + MARKS.index(mark)) == mark.encode() for mark in named)

    def counted(messages: list[dict[str, Any]]) -> dict[str, int]:
        text, _ = chat_prompt(prompts, messages, [], {})
        tokens = prompts.tokenize_rendered(text)
        return {mark: tokens.count(first + MARKS.index(mark)) for mark in named}

    function = {"name": "get_weather", "arguments": {"city": " ".join(named)}}
    calls = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    result = {"role": "tool", "tool_call_id": "1", "name": "get_weather", "content": "rain"}
    said = {"role": "user", "content": f"What is {' '.join(named)}?"}
    plain = counted([QUESTION])
    assert counted([said]) == plain
    mark = {"Gemma 4": "<|tool_call>", "LFM2": "<|tool_call_start|>", "LFM2.5": "<|tool_call_start|>"}.get(
        family, "[TOOL_CALLS]" if family == "Ministral 3" else ""
    )
    with_calls = counted([QUESTION, calls, result])
    assert not mark or with_calls[mark] == plain[mark] + 1
    others = [name for name in named if name not in (mark, "<think>", *CHANNELS)]
    assert [with_calls[name] for name in others] == [plain[name] for name in others]


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
