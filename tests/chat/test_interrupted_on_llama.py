"""Laws of conversations on llama.cpp that wait or are saved: they go on as one that nothing has interrupted.

Where the attention sums by places, as over keys and values of 16 and 32 bits, and layers have windows besides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from families import EXPERT_FAMILIES, FAMILIES
from gemma4_shapes import SHAPES, write_gemma4
from gguf_files import GEMMA3, write_gguf
from hybrid_files import ONLY_LETTERS
from hybrid_shapes import SMALL_HYBRIDS, write_hybrid

import edge_spec
from edge_spec import ChatSession, TextModel

pytestmark = pytest.mark.long

TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}assistant: "

Writer = Callable[[Path], Path]
WRITERS: dict[str, Writer] = {
    "gemma4 as E2B": partial(
        write_gemma4, kind="Q4_0", shape=SHAPES["as E2B: shared layers, a table"], chat_template=TEMPLATE
    ),
    "gemma4 as 31B": partial(
        write_gemma4, kind="Q4_0", shape=SHAPES["as 31B: keys are values, no table"], chat_template=TEMPLATE
    ),
    "gpt-oss": partial(write_gguf, chat_template=TEMPLATE, **EXPERT_FAMILIES["gpt-oss, 2 of 8"]),
    "olmo2 with windows": partial(write_gguf, chat_template=TEMPLATE, **FAMILIES["olmo2 with windows"]),
    "gemma3": partial(write_gguf, chat_template=TEMPLATE, **GEMMA3),
    "llama": partial(write_gguf, chat_template=TEMPLATE),
    "lfm2": lambda path: write_hybrid(path, SMALL_HYBRIDS["lfm2"], "Q4_0", seed=1),
}

CACHES: dict[str, dict[str, Any]] = {
    "f16": {"kv_k": "f16", "kv_v": "f16"},
    "f32": {"kv_k": "f32", "kv_v": "f32"},
    "q8_0": {"kv_k": "q8_0", "kv_v": "q8_0"},
    "q8_0/f16": {"kv_k": "q8_0", "kv_v": "f16"},
    "f32/f16": {"kv_k": "f32", "kv_v": "f16"},
    "bf16": {"kv_k": "bf16", "kv_v": "bf16"},
    "f16 without flash attention": {"kv_k": "f16", "kv_v": "f16", "flash_attention": False},
}

N_CTX = 400
STORY = "Tell me a story about a dog in a house near the sea, and of all its friends, please."
"""As many tokens as characters: llama.cpp takes 64 rows and more by tiles."""

STEPS: tuple[tuple[str, str], ...] = (
    ("send", STORY),
    ("send", "And then? " + STORY),
    ("edit", "Why? " + STORY),
    ("retry", ""),
    ("send", "Go on. " + STORY),
    ("send", "And then?"),
)
"""The last but one outgrows the context."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: write(tmp_path_factory.mktemp("model") / "model.gguf") for kind, write in WRITERS.items()}


def loaded(path: Path, cache_dir: Path, n_ctx: int = N_CTX, **given: Any) -> TextModel:
    return edge_spec.load(
        path, speculation="off", engine="llama", n_ctx=n_ctx, n_threads=1, max_rows=4, cache_dir=cache_dir, **given
    )


def begun(model: TextModel, notices: list[str], *, seed: int = 5) -> ChatSession:
    asked: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True, "logit_bias": ONLY_LETTERS, "temperature": 1.0}
    return model.chat("You are a friend.", seed=seed, on_notice=notices.append, **asked)


def asked(session: ChatSession, verb: str, text: str) -> list[int]:
    reply = getattr(session, verb)(*([text] if text else []))
    reply.read()
    return reply.token_ids


def wait(model: TextModel, session: ChatSession, notices: list[str], path: Path) -> ChatSession:
    """Let others be read, which need the cells."""
    other = begun(model, [], seed=6)
    asked(other, "send", "Hello, hello! " * 9)
    other.close()
    return session


def save(model: TextModel, session: ChatSession, notices: list[str], path: Path) -> ChatSession:
    """Save it, and load it again after another text."""
    session.save(path / "said.chat")
    session.close()
    model.generate("A" * 40, raw=True, max_tokens=3, seed=1).read()
    return ChatSession.load(model, path / "said.chat", on_notice=notices.append)


EVERY_CACHE = ("llama", "gemma4 as E2B")
PAIRS = [
    # Each kind of model, and each cache with windows and without; the other pairs once a week.
    pytest.param(kind, cache, marks=() if cache == "f16" or kind in EVERY_CACHE else pytest.mark.slow)
    for kind in WRITERS
    for cache in CACHES
]


@pytest.mark.parametrize(("kind", "cache"), PAIRS)
def test_a_conversation_goes_on_as_if_nothing_had_interrupted_it(
    files: dict[str, Path], kind: str, cache: str, tmp_path: Path, probe_cache: Path
) -> None:
    with loaded(files[kind], probe_cache, **CACHES[cache]) as model:
        assert model.identity == "bitwise"
        told: list[str] = []
        alone = begun(model, told)
        wanted = [asked(alone, *step) for step in STEPS]
        assert any("context is full" in notice for notice in told)
        assert alone.n_seen < alone.n_tokens
        alone.close()
        for interrupt in (wait, save):
            notices: list[str] = []
            session = begun(model, notices)
            answers = []
            for step in STEPS:
                answers.append(asked(session, *step))
                session = interrupt(model, session, notices, tmp_path)
            assert answers == wanted, interrupt.__name__
            assert notices == told
            session.close()


@pytest.mark.parametrize("cache", ["f16", "f32/f16"])
@pytest.mark.parametrize("kind", ["gemma4 as E2B", "llama"])
def test_seventeen_conversations_side_by_side_are_each_as_alone(
    files: dict[str, Path], kind: str, cache: str, probe_cache: Path
) -> None:
    """Most of them wait most of the time."""
    questions = ("Tell me a story.", "And then? " * 7)
    with loaded(files[kind], probe_cache, n_ctx=160, **CACHES[cache]) as model:
        wanted = []
        for seed in range(17):
            alone = begun(model, [], seed=seed)
            wanted.append([asked(alone, "send", question) for question in questions])
            alone.close()
        notices: list[str] = []
        sessions = [begun(model, notices, seed=seed) for seed in range(17)]
        answers: list[list[list[int]]] = [[] for _ in sessions]
        for question in questions:
            replies = [session.send(question) for session in sessions]
            for _ in range(3):
                for reply in replies:
                    next(reply, None)
            for reply, answer in zip(replies, answers, strict=True):
                reply.read()
                answer.append(reply.token_ids)
        assert not any("read again" in notice for notice in notices)
        assert answers == wanted
