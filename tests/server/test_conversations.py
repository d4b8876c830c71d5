"""Laws of whole conversations over the wire: reuse, load and eviction change no text."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

SUBJECTS = ("a dog", "a cat", "a boat")


@pytest.mark.parametrize("keeps", [True, False], ids=["caches kept", "caches evicted"])
@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_clients_at_once_get_what_each_gets_alone(
    serve: Callable[..., Any], engine: str, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(engine)
    if not keeps:
        monkeypatch.setattr(served.model.sessions.cache, "limit_bytes", 0)

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
