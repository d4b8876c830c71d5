"""Laws of conversations on the demo family: no drafter, other conversation or bad input changes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from conversations import ASKED, converse

from edge_spec import TextModel
from edge_spec.chat import Message
from edge_spec.chat.saving import to_json, to_markdown
from edge_spec.errors import PromptError, PromptTooLong, SettingsError

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("engine", "temperature"),
    [
        ("llama", 0.8),
        ("onnx", 0.0),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("llama", 0.0), ("onnx", 0.8))),
    ],
)
def test_long_conversations_are_the_same_with_every_drafter(
    load: Callable[..., TextModel], engine: str, temperature: float
) -> None:
    plain = converse(load(speculation="off", engine=engine), 14, temperature=temperature)
    assert sum("the context is full" in str(seen) for seen in plain) >= 2
    for mode in ("ngram", "sequence", "tree", "hierarchy", "auto"):
        assert converse(load(speculation=mode, engine=engine), 14, temperature=temperature) == plain, mode


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_sessions_take_turns_without_changing_each_other(load: Callable[..., TextModel], engine: str) -> None:
    model = load(speculation="hierarchy", engine=engine)
    alone = [converse(model, 4, seed=seed) for seed in (1, 2)]
    sessions = [model.chat("You are a friend.", seed=seed, max_tokens=40) for seed in (1, 2)]
    for turn in range(4):
        for session in sessions:
            session.send(ASKED[turn]).read()
        model.generate("Something else.", seed=1, max_tokens=5).read()
    assert [list(session.messages) for session in sessions] == alone
    # On ONNX Runtime the target has cells for every text; copies are of drafters.
    assert model.session_cache_bytes > 0 or engine == "onnx"


def test_what_was_read_is_not_read_again(load: Callable[..., TextModel]) -> None:
    model = load(speculation="off", n_ctx=1024)
    read: list[int] = []
    target: Any = model.followed["target"].model.pool
    prefill = target.prefill
    session = model.chat(seed=1, max_tokens=20)
    try:
        target.prefill = lambda texts: (read.extend(len(tokens) for _, tokens in texts), prefill(texts))[1]
        for text in ASKED[:5]:
            before = session.n_tokens
            read.clear()
            reply = session.send(text)
            new = len(reply.prompt) - before
            reply.read()
            # The last token of the answer before was drawn and not read yet.
            assert sum(read) == new - 1 + (before > 0)
    finally:
        target.prefill = prefill


def test_transcripts_read_well() -> None:
    messages = [
        Message(role="system", content="Be kind."),
        Message(role="user", content="Hi"),
        Message(role="assistant", content="<think>\nHm.\nWell.\n</think>\n\nHello", finish_reason="eos"),
        Message(role="user", content="More"),
        Message(role="assistant", content="So", finish_reason="length"),
    ]
    assert to_markdown(messages) == (
        "## System\n\nBe kind.\n\n## You\n\nHi\n\n## Assistant\n\nHello\n\n## You\n\nMore\n\n## Assistant\n\nSo …\n"
    )
    assert "> Hm.\n> Well.\n\nHello" in to_markdown(messages, thoughts=True)
    assert [Message.from_json(message) for message in json.loads(to_json(messages))["messages"]] == messages


def test_bad_input_changes_nothing(load: Callable[..., TextModel]) -> None:
    model = load(speculation="off")
    session = model.chat(seed=1, max_tokens=8)
    session.send("Hello!").read()
    before = session.to_json()
    for error, bad in (
        (PromptError, lambda: session.send("  ")),
        (SettingsError, lambda: session.send("x", temperature=-1)),
        (SettingsError, lambda: session.send("x", nonsense=1)),
        (SettingsError, lambda: session.set(top_p=7)),
        (SettingsError, lambda: session.set(nonsense=7)),
        (PromptError, lambda: session.send("\ud800")),
        (PromptError, lambda: session.edit("\ud800")),
        (PromptError, lambda: session.set_system("\ud800")),
        (PromptTooLong, lambda: (session.set_system("word " * 300), session.send("x"))),
    ):
        with pytest.raises(error):
            bad()  # type: ignore[no-untyped-call]
        if error is not PromptTooLong:
            assert session.to_json() == before
    with pytest.raises(SettingsError):
        model.chat().retry()
    with pytest.raises(SettingsError):
        model.chat().undo()
    with pytest.raises(SettingsError):
        model.chat(max_tokens=0).send("x")
    with pytest.raises(PromptError):
        model.chat(messages=[{"role": "king", "content": "x"}])
