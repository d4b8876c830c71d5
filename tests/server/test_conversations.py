"""Laws of whole conversations over the wire: reuse, load and eviction change no text."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.long

SUBJECTS = ("a dog", "a cat", "a boat")


@pytest.mark.parametrize("keeps", [True, False], ids=["caches kept", "caches evicted"])
@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_clients_at_once_get_what_each_gets_alone(
    serve: Callable[..., Any], engine: str, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(engine)
    if not keeps:
        monkeypatch.setattr(served.model.prefix_cache, "limit_bytes", 0)

    def talk(subject: str) -> list[Any]:
        question = f"Tell me a long story about {subject}. " * 6
        messages: list[Any] = [{"role": "user", "content": question}]
        for seed in range(2):
            answer = served.chat(messages=messages, seed=seed, max_tokens=8).choices[0].message.content
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
        return messages

    with ThreadPoolExecutor(len(SUBJECTS)) as clients:
        conversations = [*clients.map(talk, SUBJECTS)]
    for messages in conversations:
        for seed, place in enumerate((1, 3)):
            fresh = served.model.generate(messages[:place], seed=seed, max_tokens=8).read()
            assert messages[place]["content"] == fresh


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_some_conversations_are_evicted_while_others_stay(
    serve: Callable[..., Any], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(engine)
    cache = served.model.prefix_cache

    def turn(messages: list[Any]) -> tuple[list[Any], int]:
        """A conversation with the answer and another question, and how much of it did not have to be read."""
        answer = served.chat(messages=messages, seed=len(messages), max_tokens=6)
        more = [{"role": "assistant", "content": answer.choices[0].message.content}]
        return [
            *messages,
            *more,
            {"role": "user", "content": "And then?"},
        ], answer.usage.prompt_tokens_details.cached_tokens

    def begun(subject: str) -> list[Any]:
        return turn([{"role": "user", "content": f"{subject}, {subject}! " * 12}])[0]

    # As many cells as planned, whatever was asked before.
    with served.model.worker.pause():
        for uses_disk in (True, False):
            served.model.prefix_cache.to_disk(uses_disk)
    begun("horse")
    before = cache.n_bytes
    begun("tree")
    of_one = cache.n_bytes - before
    # Room for two besides the one whose text the models have.
    monkeypatch.setattr(cache, "limit_bytes", of_one * 5 // 2)
    # More of them than the cells have room for.
    conversations = [begun(f"dog {n}") for n in range(24)]
    turns = [turn(messages) for messages in reversed(conversations)]
    # The latest one goes on at once, and the oldest one has to be read again.
    kept = [n_cached > 32 for _, n_cached in turns]
    assert kept[0] and not kept[-1]
    for messages, _ in turns:
        for place in (1, 3):
            fresh = served.model.generate(messages[:place], seed=place, max_tokens=6).read()
            assert messages[place]["content"] == fresh
