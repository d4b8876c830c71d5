"""Laws of conversations whose context was full: what is asked again afterwards has the text that it has elsewhere.

The template puts nothing between messages, and all questions are the same: what the model sees from two places of the
conversation on begins alike.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_files import GEMMA3, write_gguf
from hybrid_files import ONLY_LETTERS

import edge_spec
from edge_spec import ChatSession, Reply, TextModel

pytestmark = pytest.mark.long

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
QUESTION = "Tell me a story of a dog."
SHORT, LONG = 30, 60

KINDS: dict[str, dict[str, Any]] = {"llama": {}, "gemma3": GEMMA3}
SETTINGS: dict[str, dict[str, Any]] = {
    "onnx": {"engine": "onnx"},
    "llama": {"engine": "llama"},
    "llama f16": {"engine": "llama", "kv_k": "f16"},
}
STEPS: dict[str, Callable[[ChatSession], Reply]] = {
    "edit": lambda session: session.edit(QUESTION, max_tokens=SHORT, seed=9),
    "undo": lambda session: (session.undo(), session.send(QUESTION, max_tokens=SHORT, seed=9))[1],
    "retry": lambda session: session.retry(max_tokens=SHORT),
}

of_each_kind = pytest.mark.parametrize("kind", KINDS)
with_each = pytest.mark.parametrize("settings", SETTINGS)
by_each_step = pytest.mark.parametrize("step", STEPS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        kind: write_gguf(folder / f"{number}.gguf", **{**KINDS[kind], "chat_template": TEMPLATE})
        for number, kind in enumerate(KINDS)
    }


@pytest.fixture(scope="module")
def load(files: dict[str, Path], probe_cache: Path) -> Callable[[str, str], TextModel]:
    lengths: dict[str, int] = {}

    def loaded(kind: str, settings: str) -> TextModel:
        asked: dict[str, Any] = {"n_threads": 1, "cache_dir": probe_cache, "speculation": "off", **SETTINGS[settings]}
        if kind not in lengths:
            with edge_spec.load(files[kind], n_ctx=1024, **asked) as roomy:
                before = begun(roomy)
                before.send(QUESTION, max_tokens=1).read()
                lengths[kind] = before.n_tokens + (SHORT + LONG) // 2
        return edge_spec.load(files[kind], n_ctx=lengths[kind], **asked)

    return loaded


def begun(model: TextModel, notices: list[str] | None = None, *, seed: int = 3) -> ChatSession:
    """A conversation of two turns, which the context has room for with a third short answer."""
    told = notices if notices is not None else []
    asked: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True, "logit_bias": ONLY_LETTERS}
    session = model.chat("A friend.", seed=seed, on_notice=told.append, **asked)
    for _ in range(2):
        session.send(QUESTION, max_tokens=SHORT).read()
    return session


def outgrown(model: TextModel, notices: list[str], *, seed: int = 3) -> ChatSession:
    session = begun(model, notices, seed=seed)
    session.send(QUESTION, max_tokens=LONG).read()
    assert any("context is full" in notice for notice in notices) and session.n_seen < session.n_tokens
    notices.clear()
    return session


@of_each_kind
@with_each
@by_each_step
def test_what_is_asked_again_is_what_it_is_where_nothing_was_outgrown(
    load: Callable[[str, str], TextModel], kind: str, settings: str, step: str
) -> None:
    with load(kind, settings) as model:
        for seed in range(2):
            notices: list[str] = []
            fresh = begun(model, notices, seed=seed)
            if step == "retry":
                fresh.send(QUESTION, max_tokens=1).read()
                wanted = STEPS[step](fresh).read()
            else:
                wanted = fresh.send(QUESTION, max_tokens=SHORT, seed=9).read()
            assert not notices and fresh.n_seen == fresh.n_tokens
            fresh.close()
            session = outgrown(model, notices, seed=seed)
            reply = STEPS[step](session)
            text = reply.read()
            gets_same_bits = model.followed["target"].model.capabilities.reuse_step == 1
            assert (reply.identity == "bitwise") == gets_same_bits == (not notices)
            assert text == wanted or not gets_same_bits
            session.close()


@of_each_kind
@with_each
def test_a_question_that_outgrows_the_context_is_asked_otherwise(
    load: Callable[[str, str], TextModel], kind: str, settings: str
) -> None:
    """It finds what the first one has moved; what an answer has moved is of no use for it, which is told."""
    asked = " ".join([QUESTION] * 4)
    with load(kind, settings) as model:
        for seed in range(3):
            notices: list[str] = []
            session = begun(model, notices, seed=seed)
            wanted = session.send(asked, max_tokens=5, seed=9).read()
            assert any("context is full" in notice for notice in notices) and session.n_seen < session.n_tokens
            session.edit(asked, max_tokens=5, seed=8).read()
            reply = session.edit(asked, max_tokens=5, seed=9)
            assert (reply.read(), reply.identity) == (wanted, "bitwise")
            assert not any("read again" in notice for notice in notices)
            session.close()
            session = outgrown(model, notices, seed=seed)
            reply = session.edit(asked, max_tokens=5, seed=9)
            reply.read()
            assert reply.identity == "rounding" and any("read again" in notice for notice in notices)
            session.close()


@with_each
def test_another_conversation_is_what_it_is_alone(load: Callable[[str, str], TextModel], settings: str) -> None:
    with load("llama", settings) as model:
        for seed in range(3):
            alone = begun(model, seed=50)
            wanted = [message.content for message in alone.messages]
            alone.close()
            session = outgrown(model, [], seed=seed)
            reply = session.retry(max_tokens=SHORT)
            next(reply)
            other = begun(model, seed=50)
            assert [message.content for message in other.messages] == wanted
            reply.close()
            session.close()
            other.close()


@with_each
def test_a_conversation_that_is_loaded_without_caches_says_what_it_is(
    load: Callable[[str, str], TextModel], settings: str, tmp_path: Path
) -> None:
    with load("llama", settings) as model:
        gets_same_bits = model.followed["target"].model.capabilities.reuse_step == 1
        for make, is_moved in ((begun, False), (outgrown, True)):
            session = make(model, [])
            session.save(tmp_path / "said.chat", caches=False)
            wanted = session.send(QUESTION, max_tokens=5).read()
            session.close()
            notices: list[str] = []
            again = ChatSession.load(model, tmp_path / "said.chat", on_notice=notices.append)
            reply = again.send(QUESTION, max_tokens=5)
            next(reply)
            is_same = gets_same_bits and not is_moved
            assert any("read again" in notice for notice in notices) == (not is_same)
            assert reply.identity == ("bitwise" if is_same else "rounding")
            assert reply.read() == wanted or not is_same
            # What comes later says nothing of what was there before.
            again.clear()
            assert reply.identity == ("bitwise" if is_same else "rounding")
            assert again.send(QUESTION, max_tokens=1).identity == "bitwise"
            again.close()
