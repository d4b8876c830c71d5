"""Laws of thoughts in Anthropic's and ollama's dialects: switched as their clients do, and told apart from answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from family_models import write_family_model

import edge_spec
from edge_spec import TextModel
from edge_spec.server.running import ModelServer
from edge_spec.server.settings import ServerSettings

anthropic = pytest.importorskip("anthropic")
ollama = pytest.importorskip("ollama")

pytestmark = pytest.mark.long

QUESTION = [{"role": "user", "content": "Weather?"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextModel]:
    folder = tmp_path_factory.mktemp("thinking")
    path = write_family_model(folder / "model.gguf", "Qwen 3")
    with edge_spec.load(path, engine="onnx", speculation="ngram", n_threads=1, cache_dir=folder) as model:
        yield model


@pytest.fixture(scope="module")
def url(model: TextModel) -> Iterator[str]:
    with ModelServer(model, ServerSettings(port=0, name="it")) as server:
        yield server.url


def thinking(model: TextModel, *, is_on: bool) -> tuple[str, Any]:
    """A grammar of an answer, after a thought if that is on, and the reply of Python."""
    grammar = 'root ::= "<think>Hm." [ab] "</think>It rains" [.!]' if is_on else 'root ::= "It rains" [.!]'
    prompt = model.prompt_of(QUESTION, template_options={"enable_thinking": is_on})
    reply = model.generate(tokens=prompt, seed=2, max_tokens=60, grammar=grammar)
    reply.read()
    return grammar, reply


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_anthropics_client_has_them_as_blocks(model: TextModel, url: str, *, is_on: bool, stream: bool) -> None:
    grammar, reply = thinking(model, is_on=is_on)
    asked: Any = {"model": "it", "messages": QUESTION, "max_tokens": 60, "extra_body": {"seed": 2, "grammar": grammar}}
    asked["thinking"] = {"type": "enabled", "budget_tokens": 1024} if is_on else {"type": "disabled"}
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        if stream:
            with client.messages.stream(**asked) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(**asked)
        thought = reply.message.get("reasoning_content", "")
        assert [block.thinking for block in message.content if block.type == "thinking"] == [thought] * bool(thought)
        assert [block.text for block in message.content if block.type == "text"] == [reply.answer] * bool(reply.answer)
        assert bool(thought) == is_on
        # What it has said comes back with its thoughts, which have no signature.
        assert all(block.signature == "" for block in message.content if block.type == "thinking")
        then: Any = [*QUESTION, {"role": "assistant", "content": message.content}, {"role": "user", "content": "And?"}]
        counted = client.messages.count_tokens(model="it", messages=then).input_tokens
        assert counted == model.count_tokens([*QUESTION, reply.message, {"role": "user", "content": "And?"}])


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_ollamas_client_has_them_beside_the_content(model: TextModel, url: str, *, is_on: bool, stream: bool) -> None:
    grammar, reply = thinking(model, is_on=is_on)
    options = {"seed": 2, "num_predict": 60, "grammar": grammar}
    with ollama.Client(host=url) as client:
        chat = client.chat(model="it", messages=QUESTION, think=is_on, options=options, stream=stream)
        parts = [part.message for part in (chat if stream else [chat])]
        text = client.generate(model="it", prompt="Weather?", think=is_on, options=options, stream=stream)
        answers = [*text] if stream else [text]
    thought = reply.message.get("reasoning_content", "")
    for found in (parts, answers):
        assert "".join(part.thinking or "" for part in found) == thought
    assert "".join(part.content or "" for part in parts) == reply.answer
    assert "".join(part.response or "" for part in answers) == reply.answer
