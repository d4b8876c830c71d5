"""Laws of saved conversations: they continue as if they had never been away, and damaged files are refused."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_world import chat_model, chat_table
from conversations import ASKED, converse

import edge_spec
from edge_spec import TextModel
from edge_spec.chat import ChatSession
from edge_spec.chat.saving import to_json, to_markdown
from edge_spec.errors import StateError
from edge_spec.models import resolve_family

pytestmark = pytest.mark.long


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_a_loaded_session_continues_as_if_it_had_never_been_away(
    load: Callable[..., TextModel], engine: str, tmp_path: Path
) -> None:
    model = load(speculation="sequence", engine=engine, n_ctx=1024)
    whole = converse(model, 6)
    for cut in (1, 3, 5):
        notices: list[str] = []
        session = model.chat("You are a friend.", seed=4, max_tokens=40)
        for turn in range(cut):
            session.send(ASKED[turn]).read()
        session.save(tmp_path / "talk")
        session.close()
        model.generate("Something else.", seed=1, max_tokens=5).read()
        again = ChatSession.load(model, tmp_path / "talk", on_notice=notices.append)
        for turn in range(cut, 6):
            again.send(ASKED[turn]).read()
        assert list(again.messages) == whole
        assert not notices


def saved(model: TextModel, path: Path) -> ChatSession:
    session = model.chat("Be kind.", seed=2, max_tokens=12, logit_bias={5: -1.5}, stop=["zzz"])
    session.send("Hello!").read()
    session.send("And now?").read()
    session.save(path)
    return session


def test_a_file_holds_messages_settings_and_window(load: Callable[..., TextModel], tmp_path: Path) -> None:
    model = load(speculation="ngram")
    session = saved(model, tmp_path / "a")
    again = ChatSession.load(model, tmp_path / "a")
    assert again.to_json() == session.to_json()
    assert again.options == session.options


def test_damaged_files_are_refused_or_read_again(load: Callable[..., TextModel], tmp_path: Path) -> None:
    model = load(speculation="sequence")
    session = saved(model, tmp_path / "good")
    raw = (tmp_path / "good").read_bytes()
    outcomes = set()
    for place in range(0, len(raw), max(1, len(raw) // 150)):
        notices: list[str] = []
        (tmp_path / "bad").write_bytes(raw[:place] + bytes([raw[place] ^ 0x41]) + raw[place + 1 :])
        try:
            again = ChatSession.load(model, tmp_path / "bad", on_notice=notices.append)
        except StateError:
            outcomes.add("refused")
            continue
        assert again.messages == session.messages
        outcomes.add("read again" if notices else "whole")
    for length in (0, 1, 100, len(raw) // 2, len(raw) - 1):
        (tmp_path / "bad").write_bytes(raw[:length])
        with pytest.raises(StateError):
            ChatSession.load(model, tmp_path / "bad")
    assert {"refused", "read again"} <= outcomes


@pytest.mark.parametrize(
    "change",
    [
        {"version": 99},
        {"format": "x"},
        {"messages": 5},
        {"messages": [{"role": "user"}]},
        {"tokens": [1 << 40]},
        {"tokens": "abc"},
        {"turns": [[1, 2]]},
        {"options": {"temperature": -1}},
        {"options": {"nonsense": 1}},
        {"profile": 3},
        {"cached": [-5]},
        {"head": 10**9},
        {"turns": [{"n_messages": 1, "start": 10**9, "kept": 0, "rest": [], "seen_from": 0}]},
        {"seen_from": "x"},
        {"seen_from": -1},
    ],
)
def test_files_that_say_something_impossible_are_refused(
    load: Callable[..., TextModel], tmp_path: Path, change: dict[str, Any]
) -> None:
    model = load(speculation="ngram")
    saved(model, tmp_path / "good")
    with zipfile.ZipFile(tmp_path / "good") as archive, zipfile.ZipFile(tmp_path / "bad", "w") as bad:
        for name in archive.namelist():
            content = archive.read(name)
            if name == "conversation.json":
                content = json.dumps(json.loads(content) | change).encode()
            bad.writestr(name, content)
    with pytest.raises(StateError):
        ChatSession.load(model, tmp_path / "bad")


def test_another_model_or_profile_reads_the_text_again(load: Callable[..., TextModel], tmp_path: Path) -> None:
    session = saved(load(speculation="ngram"), tmp_path / "a")
    for other in (load(speculation="ngram", n_ctx=300), load(speculation="ngram", engine="onnx")):
        notices: list[str] = []
        again = ChatSession.load(other, tmp_path / "a", on_notice=notices.append)
        assert again.messages == session.messages
        assert ["other settings" in notice for notice in notices] == [True]
        reply = again.send("Go on.")
        assert reply.identity == "rounding"
        reply.close()
    notices = []
    with pytest.raises(StateError):
        ChatSession.load(chat_model(chat_table(), n_ctx=500), tmp_path / "a", on_notice=notices.append)


def test_a_conversation_goes_on_with_another_model_and_loses_no_message(
    load: Callable[..., TextModel], tmp_path: Path
) -> None:
    session = saved(load(), tmp_path / "a")
    notices: list[str] = []
    with edge_spec.load(resolve_family("demo").draft or "", speculation="off", engine="llama", n_ctx=256) as other:
        again = ChatSession.load(other, tmp_path / "a", on_notice=notices.append)
        assert again.messages == session.messages
        # Its numbers of tokens are those of a vocabulary that this model may not have.
        assert {**again.options, "logit_bias": session.options["logit_bias"]} == session.options
        assert not again.options.get("logit_bias")
        again.send("Go on.").read()
        again.save(tmp_path / "a")
    (notice,) = notices
    assert "another model" in notice and "without its `logit_bias`" in notice and "a save replaces" in notice
    once_more = ChatSession.load(load(), tmp_path / "a", on_notice=notices.append)
    assert once_more.messages == again.messages
    assert len(notices) == 2 and "logit_bias" not in notices[1]


def test_a_file_that_is_no_conversation_is_never_replaced(load: Callable[..., TextModel], tmp_path: Path) -> None:
    session = saved(load(speculation="ngram"), tmp_path / "a")
    text = tmp_path / "notes.txt"
    text.write_text("What I have to do.", "utf-8")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("mine", "text")
    for path in (text, tmp_path / "other.zip"):
        before = path.read_bytes()
        with pytest.raises(StateError, match="there already, and not a conversation"):
            session.save(path)
        assert path.read_bytes() == before
    (tmp_path / "empty").touch()
    session.save(tmp_path / "empty")
    session.save(tmp_path / "a")


def test_a_failed_save_leaves_the_old_file(
    load: Callable[..., TextModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(archive: zipfile.ZipFile, name: str, content: str) -> None:
        raise OSError("no space left on device")

    session = saved(load(speculation="off"), tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    with pytest.raises(OSError):
        session.save(tmp_path / "no such folder" / "a")
    monkeypatch.setattr("zipfile.ZipFile.writestr", full_disk)
    with pytest.raises(OSError, match="no space left"):
        session.save(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_transcript_is_called_one(load: Callable[..., TextModel], tmp_path: Path) -> None:
    model = load(speculation="off")
    for system in ("Be kind.", None):
        session = model.chat(system, seed=2, max_tokens=4)
        session.send("Hello!").read()
        for name, text in (("a.md", to_markdown(session.messages)), ("a.json", to_json(session.messages))):
            (tmp_path / name).write_text(text, "utf-8")
            with pytest.raises(StateError, match=rf"{re.escape(name)} is a transcript for people to read"):
                ChatSession.load(model, tmp_path / name)
        session.close()
    (tmp_path / "other.md").write_text("# Hello\n", "utf-8")
    with pytest.raises(StateError, match="damaged, or not a conversation"):
        ChatSession.load(model, tmp_path / "other.md")
