"""Laws of a talk: every command, on injected input and display; bad input is one sentence and the talk goes on."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import edge_spec
from edge_spec.chat import ChatSession
from edge_spec.cli.terminal.autosave import Autosave
from edge_spec.cli.terminal.plain_display import PlainDisplay
from edge_spec.cli.terminal.talk import Talk
from edge_spec.errors import EdgeSpecError
from edge_spec.model import TextModel


class Script:
    """Says what it was given, line by line, and remembers what stood in the line already."""

    def __init__(self, *lines: str, is_interactive: bool = True) -> None:
        self.is_interactive = self.can_edit = is_interactive
        self.drafts: list[str] = []
        self.status = ""
        self._lines = list(lines)

    def read(self, draft: str = "", status: str = "") -> str | None:
        self.drafts.append(draft)
        self.status = status
        return self._lines.pop(0) if self._lines else None


@pytest.fixture(scope="module")
def model(probe_cache: Path) -> Iterator[TextModel]:
    with edge_spec.load(speculation="sequence", n_ctx=512, n_threads=1, cache_dir=probe_cache) as loaded:
        yield loaded


class Played:
    """A talk that has been played: its session, and what was shown."""

    def __init__(
        self, model: TextModel, *lines: str, path: Path | None = None, is_own: bool = True, **options: Any
    ) -> None:
        self.out, self.notes = io.StringIO(), io.StringIO()
        self.reader = Script(*lines)
        display = PlainDisplay(self.out, self.notes)
        autosave = Autosave(path, is_own=is_own, on_notice=display.notice)
        session = model.chat(**{"seed": 3, "max_tokens": 12, **options})
        self.talk = Talk(session, reader=self.reader, display=display, autosave=autosave)
        self.talk.run()
        self.said = self.notes.getvalue()

    @property
    def contents(self) -> list[str]:
        return [message.content for message in self.talk.session.messages]


Play = Callable[..., Played]


@pytest.fixture(scope="module")
def play(model: TextModel) -> Play:
    return lambda *lines, **more: Played(model, *lines, **more)


def errors(played: Played) -> list[str]:
    return [line for line in played.said.splitlines() if line.startswith("edge-spec: error: ")]


def test_answers_are_shown_as_they_are(play: Play, model: TextModel) -> None:
    played = play("Hello", "", "   ", "Tell me more", "/quit", "never said")
    question, answer, second, another = played.contents
    assert (question, second) == ("Hello", "Tell me more")
    assert played.out.getvalue() == f"{answer.rstrip()}\n\n{another.rstrip()}\n"
    assert "tokens/s" in played.reader.status
    assert model.mode in played.reader.status


def test_undo_retry_edit_and_continue_do_what_the_session_does(play: Play, model: TextModel) -> None:
    played = play("Hello", "/undo", "Tell me a story", "/retry", "/continue", "/edit Tell me a joke")
    session = model.chat(seed=3, max_tokens=12)
    session.send("Hello").read()
    session.undo()
    session.send("Tell me a story").read()
    session.retry().read()
    session.continue_answer().read()
    session.edit("Tell me a joke").read()
    assert played.contents == [message.content for message in session.messages]
    assert "taken back: Hello" in played.said
    assert not errors(played)


def test_edit_opens_the_last_question_in_the_line(play: Play) -> None:
    played = play("Hello", "/edit", "Hello there")
    assert played.reader.drafts == ["", "", "Hello", ""]
    assert played.contents[0] == "Hello there"
    assert len(played.contents) == 2
    # What is left empty changes nothing, and a command is one still.
    for line in ("", "/stats"):
        assert play("Hello", "/edit", line).contents[0] == "Hello"


def test_a_slash_is_said_with_two(play: Play) -> None:
    assert play("//etc is a path").contents[0] == "/etc is a path"


def test_settings_are_shown_changed_and_checked(play: Play) -> None:
    played = play(
        "/set",
        "/set temperature 0",
        "/set top-k=7",
        '/set stop "The end" x',
        "/set logit_bias 5=-inf,6=1.5",
        "/set max_tokens 5",
        "/set thoughts dim",
    )
    assert not errors(played)
    options = played.talk.session.options
    assert (options["temperature"], options["top_k"], options["max_tokens"]) == (0, 7, 5)
    assert options["stop"] == ["The end", "x"]
    assert options["logit_bias"] == {5: float("-inf"), 6: 1.5}
    assert played.talk.display.thoughts == "dim"
    assert "temperature" not in play("/set temperature 0", "/set temperature default").talk.session.options


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("/hlp", "did you mean /help?"),
        ("/", "/help lists them"),
        ("/etc/passwd is a file", "says it as text"),
        ("/set temprature 1", "did you mean temperature?"),
        ("/set temperature", "needs a value"),
        ("/set temperature hot", "is no value"),
        ("/set temperature -1", "0 or more"),
        ("/set max_tokens 0", "1 or more"),
        ("/set logit_bias 5", "17=-2.5"),
        ('/set stop "', "is no value"),
        ("/set thoughts loud", "show, dim, hide"),
        ("/undo", "nothing has been said"),
        ("/retry", "nothing has been said"),
        ("/continue", "no unfinished answer"),
        ("/edit", "nothing has been said"),
        ("/edit!", "nothing has been said"),
        ("/save", "/save talk.md"),
        ("/save .", "directory"),
        ("/save no/such/folder/x", "No such file"),
        ("/save ~nobody-of-this-name/x", "cannot be"),
        ("/save a\0b", "cannot be"),
        ("/load", "/load talk.chat"),
        ("/load no-such-file", "No such file"),
        ("/load .", "directory"),
        ("/help nothing", "/help lists them"),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(
    play: Play, line: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    played = play(line, "/set seed 3")
    (error,) = errors(played)
    assert hint in error
    assert played.contents == []
    assert played.talk.session.options == {"seed": 3, "max_tokens": 12}
    assert list(tmp_path.iterdir()) == []


def test_a_script_ends_at_its_first_mistake(model: TextModel) -> None:
    display = PlainDisplay(io.StringIO(), io.StringIO())
    autosave = Autosave(None, is_own=False, on_notice=display.notice)
    reader = Script("/hlp", "Hello", is_interactive=False)
    with pytest.raises(EdgeSpecError, match="hlp"):
        Talk(model.chat(), reader=reader, display=display, autosave=autosave).run()


def test_help_names_every_command_and_fits_the_screen(play: Play) -> None:
    said = play("/help").said
    for name in (
        "stats",
        "undo",
        "retry",
        "continue",
        "edit",
        "save",
        "load",
        "system",
        "set",
        "clear",
        "quit",
        "memory",
        "help",
    ):
        assert f"/{name} " in said
    assert max(map(len, said.splitlines())) <= 100


def test_stats_tell_what_speculation_did(play: Play, model: TextModel) -> None:
    played = play("Tell me a story", "/stats", "/memory")
    found = played.talk.last_reply
    assert found is not None
    for part in (f"{found.statistics.rounds}, ", model.profile.name, model.identity, "seed 3", "MiB"):
        assert part in played.said
    bars = [line for line in played.said.splitlines() if " per round  #" in line]
    assert sum(int(line.split()[-1]) for line in bars) == found.statistics.rounds


def test_system_and_clear(play: Play) -> None:
    played = play("/system Be brief.", "Hello", "/clear", "/system")
    assert played.contents == ["Be brief."]
    assert play("/system -", system="You are a cat.").talk.session.system is None


# --- files


def test_transcripts_and_sessions_are_what_their_names_say(play: Play, tmp_path: Path) -> None:
    md, js, chat = (str(tmp_path / name) for name in ("a.md", "a b.json", "talk.chat"))
    first = play("Hello", f"/save {md}", f"/save '{js}'", f"/save {chat}", f"/save {md}", f"/save {chat}")
    assert not errors(first)
    assert Path(md).read_text("utf-8").startswith("## You\n\nHello\n")
    assert [m["content"] for m in json.loads(Path(js).read_text("utf-8"))["messages"]] == first.contents
    again = play("to be forgotten", f"/load {chat}")
    assert again.contents == first.contents
    assert (again.talk.autosave.path, again.talk.session.n_turns) == (Path(chat), 1)


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
    autosave = Autosave(path, is_own=True, on_notice=display.notice)
    reader = Looking("Hello", "More", "/undo", "/stats")
    Talk(model.chat(seed=3, max_tokens=5), reader=reader, display=display, autosave=autosave).run()
    assert seen == [0, 2, 4, 2, 2]


def test_who_only_looks_into_a_file_leaves_it_as_it_is(play: Play, tmp_path: Path) -> None:
    path = tmp_path / "talk.chat"
    play("Hello", path=path)
    before = path.stat().st_mtime_ns, path.read_bytes()
    again = play(f"/load {path}", "/stats", "/quit", path=path)
    assert again.talk.session.n_turns == 1
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before
    assert play(f"/load {path}", "More", path=path).talk.session.n_turns == 2
    assert path.read_bytes() != before[1]


def test_the_talk_before_the_last_one_is_kept(play: Play, tmp_path: Path) -> None:
    path = tmp_path / "data" / "last.chat"
    first = play("Hello", path=path, is_own=False)
    # Who only looks in loses nothing.
    play("/stats", path=path, is_own=False)
    second = play("Tell me", "more", path=path, is_own=False)
    load = [f"/load {path}", f"/load {path.with_name('previous.chat')}"]
    assert play(load[0]).contents == second.contents
    assert play(load[1]).contents == first.contents


def test_a_talk_goes_on_where_nothing_can_be_saved(play: Play, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for is_own in (True, False):
        played = play("Hello", "More", path=tmp_path / "file" / "talk.chat", is_own=is_own)
        assert len(played.contents) == 4
        assert played.said.count("could not be saved") == 1


# --- thoughts


@pytest.mark.parametrize(("thoughts", "shown"), [("hide", "yes\n"), ("show", "<think>\nhm\n</think>\n\nyes\n")])
def test_thoughts_are_set_apart(thoughts: str, shown: str) -> None:
    out = io.StringIO()
    display = PlainDisplay(out, io.StringIO(), thoughts=thoughts)
    display.begin()
    for thought, text in ((True, "h"), (True, "m"), (False, "yes")):
        display.write(text, thought=thought)
    display.end()
    assert out.getvalue() == shown


def test_a_terminal_obeys_no_model() -> None:
    out = io.StringIO()
    display = PlainDisplay(out, io.StringIO(), is_terminal=True)
    display.begin()
    display.write("a\x1b]0;title\x07\x9b2J\rb\tc\nd\udc80", thought=False)
    display.end()
    assert out.getvalue() == "a�]0;title��2J�b\tc\nd�\n"


def test_two_talks_in_one_file_lose_nothing(tmp_path: Path, probe_cache: Path) -> None:
    with edge_spec.load("demo", engine="llama", n_ctx=256, n_threads=1, cache_dir=probe_cache) as model:
        notices: list[str] = []
        path = tmp_path / "talk.chat"
        saves = [Autosave(path, is_own=True, on_notice=notices.append) for _ in range(2)]
        talks = [model.chat(seed=seed, max_tokens=4) for seed in (1, 2)]
        for _ in range(2):
            for talk, save in zip(talks, saves, strict=True):
                talk.send("Hello!").read()
                save.save(talk)
        assert [save.path for save in saves] == [path, tmp_path / "talk-2.chat"]
        assert ["talk-2.chat" in notice for notice in notices] == [True]
        for talk, save in zip(talks, saves, strict=True):
            assert save.path is not None
            assert ChatSession.load(model, save.path).messages == talk.messages
