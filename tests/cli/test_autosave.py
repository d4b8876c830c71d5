"""Laws of what a conversation leaves on disk: no message is ever in no file, and nothing else is written over."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from played_conversation import Played, Script, errors

import edge_spec
from edge_spec.chat import ChatSession
from edge_spec.chat.exclusive import exclusive
from edge_spec.cli.chat import begin
from edge_spec.cli.terminal.autosave import Autosave, conversations_in
from edge_spec.cli.terminal.conversation import Conversation
from edge_spec.cli.terminal.conversation_loop import converse
from edge_spec.cli.terminal.display import PlainDisplay
from edge_spec.errors import BudgetExceeded, StateError
from edge_spec.model import TextModel
from edge_spec.models.beside import beside

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def model(probe_cache: Path) -> Iterator[TextModel]:
    with edge_spec.load("demo", speculation="sequence", n_ctx=512, n_threads=1, cache_dir=probe_cache) as loaded:
        yield loaded


Play = Callable[..., Played]


@pytest.fixture(scope="module")
def play(model: TextModel) -> Play:
    return lambda *lines, **more: Played(model, *lines, **more)


# --- files


def test_transcripts_and_sessions_are_what_their_names_say(play: Play, tmp_path: Path) -> None:
    md, js, chat = (str(tmp_path / name) for name in ("a.md", "a b.json", "talk.chat"))
    first = play("Hello", f"/save {md}", f"/save '{js}'", f"/save {chat}", f"/save {md}", f"/save {chat}")
    assert not errors(first)
    assert Path(md).read_text("utf-8").startswith("## You\n\nHello\n")
    assert [m["content"] for m in json.loads(Path(js).read_text("utf-8"))["messages"]] == first.contents
    again = play("left behind", f"/load {chat}", path=tmp_path / "session.chat")
    assert again.contents == first.contents
    assert play(f"/load {tmp_path / 'session.chat'}").contents[0] == "left behind"
    assert (again.conversation.autosave.path, again.conversation.session.n_turns) == (Path(chat), 1)


def test_nothing_else_is_written_over(play: Play, tmp_path: Path) -> None:
    other = tmp_path / "thesis.md"
    other.write_text("# My thesis\n", "utf-8")
    played = play("Hello", f"/save {other}")
    assert len(errors(played)) == 1
    assert other.read_text("utf-8") == "# My thesis\n"
    assert "/save!" in played.said
    assert not errors(play("Hello", f"/save! {other}"))
    assert other.read_text("utf-8").startswith("## You")


def test_every_turn_is_on_the_disk_before_the_next_one(model: TextModel, tmp_path: Path) -> None:
    path = tmp_path / "talk.chat"
    seen: list[int] = []

    class Looking(Script):
        def read(self, draft: str = "", status: str = "") -> str | None:
            seen.append(len(ChatSession.load(model, path).messages) if path.exists() else 0)
            return super().read(draft, status)

    display = PlainDisplay(io.StringIO(), io.StringIO())
    autosave = Autosave(path, on_notice=display.notice)
    reader = Looking("Hello", "More", "/undo", "/stats")
    session = model.chat(seed=3, max_tokens=5)
    converse(Conversation(session, reader=reader, display=display, autosave=autosave))
    assert seen == [0, 2, 4, 2, 2]


def test_who_only_looks_into_a_file_leaves_it_as_it_is(play: Play, tmp_path: Path) -> None:
    path = tmp_path / "talk.chat"
    play("Hello", path=path)
    before = path.stat().st_mtime_ns, path.read_bytes()
    again = play(f"/load {path}", "/stats", "/quit", path=path)
    assert again.conversation.session.n_turns == 1
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before
    assert play(f"/load {path}", "More", path=path).conversation.session.n_turns == 2
    assert path.read_bytes() != before[1]


def test_every_conversation_without_a_name_is_kept(play: Play, tmp_path: Path) -> None:
    folder = tmp_path / "conversations"
    first = play("Hello", folder=folder)
    # Nothing was said here, so nothing is kept.
    play("/stats", f"/load {first.path}", folder=folder)
    second = play("Tell me", "more", folder=folder)
    assert sorted(folder.iterdir()) == sorted(path for path in (first.path, second.path) if path is not None)
    for before in (first, second):
        assert play(f"/load {before.path}").contents == before.contents
    assert conversations_in(tmp_path / "conversations")[0] == second.path


def test_a_conversation_continues_where_nothing_can_be_saved(play: Play, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    file = tmp_path / "file"
    for place in ({"path": file / "talk.chat"}, {"folder": file / "conversations"}):
        played = play("Hello", "More", **place)
        assert len(played.contents) == 4
        assert played.said.count("could not be saved") == 1
        assert played.code == 1


# --- nothing is lost


def test_where_caches_have_no_room_the_text_is_saved(
    play: Play, model: TextModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = ChatSession.save

    def has_little_room(session: ChatSession, path: Any, *, caches: bool = True) -> None:
        if caches:
            raise OSError(27, "File too large")
        save(session, path, caches=False)

    monkeypatch.setattr(ChatSession, "save", has_little_room)
    path = tmp_path / "little.chat"
    played = play("Hello", path=path)
    assert f"saved in {path} without caches (File too large): the text will be read again" in played.said
    assert "could not be saved" not in played.said
    assert questions(model, path) == ["Hello"]


def questions(model: TextModel, path: Path) -> list[str]:
    return [message.content for message in ChatSession.load(model, path).messages if message.role == "user"]


def test_saving_a_session_leaves_it_where_it_is(play: Play, model: TextModel, tmp_path: Path) -> None:
    path = tmp_path / "a.chat"
    played = play("one", "/save", "two", f"/save {tmp_path}/../{tmp_path.name}/a.chat", "three", path=path)
    assert not errors(played)
    assert played.said.count(f"saved in {path}") == 2
    assert played.path == path
    assert list(tmp_path.iterdir()) == [path]
    assert questions(model, path) == ["one", "two", "three"]


def test_saving_a_session_elsewhere_writes_a_copy(play: Play, model: TextModel, tmp_path: Path) -> None:
    path, copy = tmp_path / "a.chat", tmp_path / "copy.chat"
    played = play("one", f"/save {copy}", "two", path=path)
    assert f"in {copy}; the session stays in {path}" in played.said
    assert questions(model, path) == ["one", "two"]
    assert questions(model, copy) == ["one"]
    # The copy may be written again, now that there is more.
    assert not errors(play(f"/load {path}", f"/save {copy}"))
    assert questions(model, copy) == ["one", "two"]


@pytest.mark.parametrize("name", ["other.chat", "other.md", "other.json"])
def test_another_conversation_is_not_written_over(play: Play, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    play("precious", f"/save {path}")
    before = path.read_bytes()
    played = play("Hello", f"/save {path}")
    assert ["holds another conversation; /save! overwrites it" in error for error in errors(played)] == [True]
    assert path.read_bytes() == before
    assert not errors(play("Hello", f"/save! {path}", "/retry", f"/save {path}"))
    assert path.read_bytes() != before


def test_a_session_that_is_cleared_is_kept_in_another_file(play: Play, model: TextModel, tmp_path: Path) -> None:
    path = tmp_path / "a.chat"
    played = play("one", "/clear", "two", "/clear", "/clear", "three", path=path)
    assert f"kept in {tmp_path / 'a-2.chat'}" in played.said
    assert {file.name: questions(model, file) for file in tmp_path.iterdir()} == {
        "a-2.chat": ["one"],
        "a-3.chat": ["two"],
        "a.chat": ["three"],
    }


def test_conversations_without_a_name_never_replace_each_other(play: Play, model: TextModel, tmp_path: Path) -> None:
    other = tmp_path / "other.chat"
    play("other", f"/save {other}")
    played = play("one", "/clear", "two", f"/load {other}", "three", folder=tmp_path / "data")
    found = sorted(questions(model, path) for path in (tmp_path / "data").iterdir())
    assert found == [["one"], ["other", "three"], ["two"]]
    assert questions(model, other) == ["other"]
    assert played.path is not None and questions(model, played.path) == ["other", "three"]


class Talker:
    """A conversation in a terminal of its own, as another process would hold it."""

    def __init__(self, model: TextModel, notices: list[str], path: Path | None = None, **more: Any) -> None:
        self.session = model.chat(seed=3, max_tokens=4)
        self.autosave = Autosave(path, on_notice=notices.append, **more)
        self.asked: list[str] = []

    def say(self, text: str) -> None:
        self.session.send(text).read()
        self.asked.append(text)
        self.autosave.save(self.session)


@pytest.mark.parametrize("has_name", [True, False])
def test_chats_that_write_in_turn_lose_nothing(model: TextModel, tmp_path: Path, has_name: bool) -> None:
    notices: list[str] = []
    place: dict[str, Any] = {"path": tmp_path / "a.chat"} if has_name else {"folder": tmp_path / "data"}
    talkers = [Talker(model, notices, **place) for _ in range(3)]
    for turn in range(2):
        for number, talker in enumerate(talkers):
            talker.say(f"{number}, {turn}")
    paths = [talker.autosave.path for talker in talkers]
    assert len(set(paths)) == 3
    for talker in talkers:
        assert talker.autosave.path is not None
        assert questions(model, talker.autosave.path) == talker.asked
    # Said once, and only of files that the user named.
    assert [f"{tmp_path / 'a.chat'}; this conversation continues in" in notice for notice in notices] == (
        [True, True] if has_name else []
    )


def test_a_file_that_was_removed_is_written_again(model: TextModel, tmp_path: Path) -> None:
    path = tmp_path / "a.chat"
    talker = Talker(model, [], path)
    talker.say("one")
    path.unlink()
    talker.say("two")
    assert talker.autosave.path == path
    assert questions(model, path) == ["one", "two"]


def written_meanwhile(monkeypatch: pytest.MonkeyPatch, other: Talker) -> None:
    """Let another chat say one more thing while a conversation is being loaded."""
    load = ChatSession.load.__func__  # type: ignore[attr-defined]

    def slow(kind: type[ChatSession], *args: Any, **more: Any) -> ChatSession:
        session: ChatSession = load(kind, *args, **more)
        monkeypatch.undo()
        other.say("last")
        return session

    monkeypatch.setattr(ChatSession, "load", classmethod(slow))


def test_what_is_written_while_a_chat_begins_is_not_written_over(
    model: TextModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, notices = tmp_path / "a.chat", list[str]()
    first = Talker(model, [], path)
    first.say("first")
    written_meanwhile(monkeypatch, first)
    values = {"session": str(path), "system": None, "resume": False}
    display = PlainDisplay(io.StringIO(), io.StringIO())
    session, autosave = begin(model, values, {"max_tokens": 4}, None, display)
    session.send("second").read()
    autosave.save(session)
    assert questions(model, path) == ["first", "last"]
    assert autosave.path == tmp_path / "a-2.chat"
    assert questions(model, tmp_path / "a-2.chat") == ["first", "second"]
    assert not notices


def test_what_is_written_while_a_conversation_is_loaded_is_not_written_over(
    play: Play, model: TextModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.chat"
    first = Talker(model, [], path)
    first.say("first")
    written_meanwhile(monkeypatch, first)
    played = play("here", f"/load {path}", "second", path=tmp_path / "b.chat")
    assert questions(model, path) == ["first", "last"]
    assert f"another program has written {path}" in played.said
    assert questions(model, tmp_path / "a-2.chat") == ["first", "second"]


def test_a_chat_that_loses_its_model_is_saved_and_over(tmp_path: Path, probe_cache: Path) -> None:
    path, reader = tmp_path / "a.chat", Script("one", f"/load {tmp_path / 'b.chat'}", "two")
    display = PlainDisplay(io.StringIO(), notes := io.StringIO())
    autosave = Autosave(path, on_notice=display.notice)
    given: dict[str, Any] = {"speculation": "off", "n_ctx": 256, "n_threads": 1, "cache_dir": probe_cache}
    with edge_spec.load("demo", **given) as lost:

        def model_for(path: Path) -> TextModel:
            lost.close()
            raise BudgetExceeded("the model", needed_bytes=2, allowed_bytes=1, hint="close something")

        session = lost.chat(seed=3, max_tokens=5)
        converse(Conversation(session, reader=reader, display=display, autosave=autosave, model_for=model_for))
    assert "close something" in notes.getvalue()
    assert len(reader.drafts) == 2
    with edge_spec.load("demo", **given) as model:
        assert questions(model, path) == ["one"]


def test_a_conversation_that_loads_its_own_file_stays_in_it(play: Play, model: TextModel, tmp_path: Path) -> None:
    path = tmp_path / "a.chat"
    played = play("one", "/set seed 5", f"/load {path}", "two", path=path)
    assert not errors(played)
    assert list(tmp_path.iterdir()) == [path]
    assert questions(model, path) == ["one", "two"]


@pytest.mark.parametrize("letter", ["x", "\N{LATIN SMALL LETTER E WITH ACUTE}"])
@pytest.mark.parametrize("n_bytes", [239, 240, 241, 250, 255])
def test_every_name_that_a_file_can_have_keeps_a_conversation(
    play: Play, model: TextModel, tmp_path: Path, letter: str, n_bytes: int
) -> None:
    n_letters, n_more = divmod(n_bytes - len(".chat"), len(letter.encode()))
    path = tmp_path / (letter * n_letters + "x" * n_more + ".chat")
    copy, transcript = path.with_name(f"c{path.name[1:]}"), path.with_suffix(".json")
    played = play("one", f"/save {copy}", f"/save {transcript}", "/clear", "two", path=path)
    assert (played.code, errors(played)) == (0, [])
    assert questions(model, path) == ["two"]
    assert questions(model, copy) == ["one"]
    assert json.loads(transcript.read_text("utf-8"))["messages"][0]["content"] == "one"
    # The one before made room for it.
    before, *rest = {*tmp_path.iterdir()} - {path, copy, transcript}
    assert not rest
    assert before.name.endswith("-2.chat")
    assert questions(model, before) == ["one"]


def test_names_that_no_file_can_have_are_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edge_spec", "chat", "demo", "--session", str(tmp_path / f"{'x' * 251}.chat")]
    done = subprocess.run(command, input=b"hi\n", capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.endswith("File name too long; choose another file")


def test_what_cannot_be_saved_is_kept_under_another_name(
    model: TextModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may refuse the name alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    notices: list[str] = []
    talker = Talker(model, notices, tmp_path / f"{'x' * 300}.chat")
    talker.say("one")
    talker.autosave.save(talker.session, at_the_end=True)
    assert "File name too long" in notices[0]
    (kept,) = tmp_path.glob("*/*.chat")
    assert questions(model, kept) == ["one"]


def test_hidden_names_tell_files_apart_and_not_their_spellings(tmp_path: Path) -> None:
    one, other = tmp_path / ("x" * 200 + "1"), tmp_path / ("x" * 200 + "2")
    assert beside(one, ".lock") != beside(other, ".lock") != beside(one.with_name("a" * 201), ".lock")
    # On some file systems these are one file.
    spellings = ("\N{LATIN CAPITAL LETTER E WITH ACUTE}", "\N{LATIN SMALL LETTER E WITH ACUTE}", "e\u0301")
    assert len({beside(tmp_path / name, ".lock") for name in spellings}) == 1


def test_a_lock_does_not_go_through_a_link(tmp_path: Path) -> None:
    beside(tmp_path / "a.chat", ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"a\.chat"), exclusive(tmp_path / "a.chat"):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_processes_that_save_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each looks whether the file is as it was, then replaces it: no other may come in between."""
    path = tmp_path / "counter"
    path.write_text("0")
    code = f"""
from pathlib import Path
from edge_spec.chat.exclusive import exclusive, stamp_of
path = Path({str(path)!r})
for _ in range(200):
    with exclusive(path):
        before = stamp_of(path)
        new = path.with_name(f"{{path.name}}.{{__import__('os').getpid()}}")
        new.write_text(str(int(path.read_text()) + 1))
        assert stamp_of(path) == before
        new.replace(path)
"""
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [process.wait(60) for process in running] == [0] * 4
    assert path.read_text() == "800"
    assert list(tmp_path.iterdir()) == [path]


def test_the_conversation_that_was_written_last_is_resumed(play: Play, tmp_path: Path) -> None:
    assert conversations_in(tmp_path) == []
    old = tmp_path / "old.chat"
    play("Hello", f"/save {old}")
    assert conversations_in(tmp_path) == [old]
    newer = play("More", folder=tmp_path).path
    assert conversations_in(tmp_path) == [newer, old]


def test_other_conversations_are_named_where_the_last_one_is_damaged(model: TextModel, tmp_path: Path) -> None:
    conversations = tmp_path / "conversations"
    conversations.mkdir()
    for age, name in enumerate(("new", "ill", "older", "old", "oldest", "first")):
        path = conversations / f"{name}.chat"
        Talker(model, [], path).say(name)
        if name in ("new", "ill"):
            path.write_bytes(path.read_bytes()[:-40])
        os.utime(path, (1e9 - age, 1e9 - age))
    values = {"session": None, "system": None, "resume": True}
    display = PlainDisplay(io.StringIO(), io.StringIO())
    with pytest.raises(StateError, match=r"new\.chat is damaged") as refused:
        begin(model, values, {}, tmp_path, display)
    named = ", ".join(str(conversations / f"{name}.chat") for name in ("older", "old", "oldest"))
    assert refused.value.hint == f"continue another one with --session: {named}, ..."
    for name in ("older", "old", "oldest", "first"):
        (conversations / f"{name}.chat").unlink()
    with pytest.raises(StateError, match="load another file"):
        begin(model, values, {}, tmp_path, display)
