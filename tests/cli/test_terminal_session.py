"""A chat on an emulated terminal and through pipes: what a person sees, and what is left when it is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import edge_spec
from edge_spec.chat import ChatSession

if TYPE_CHECKING:
    from pseudo_terminal import PseudoTerminal

COMMAND = [sys.executable, "-c", "from edge_spec.cli import main; main()", "chat", "demo"]
SAME = ["--threads", "1", "--ctx", "512", "--seed", "3"]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.name != "posix", reason="needs pseudo-terminals"),
    pytest.mark.filterwarnings("ignore:.*forkpty.*:DeprecationWarning"),
]

Open = Callable[..., "PseudoTerminal"]


@pytest.fixture(scope="module")
def endless(probe_cache: Path) -> list[str]:
    """Options under which no answer ends of itself."""
    with edge_spec.load("demo", speculation="off", n_ctx=256, n_threads=1, cache_dir=probe_cache) as model:
        ends = [token for token in range(model.n_vocab) if model.prompts.ends(token)]
    return ["-n", "100000", *(part for token in ends for part in ("--logit-bias", f"{token}=-inf"))]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def open_chat(surroundings: dict[str, str], home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Starts the chat on a terminal, with a home of its own."""
    from pseudo_terminal import PseudoTerminal, quiet

    opened: list[PseudoTerminal] = []
    monkeypatch.chdir(home)

    def open_it(*arguments: str, columns: int = 80, rows: int = 24, **more: str) -> PseudoTerminal:
        environment = {**quiet(surroundings, str(home)), **more}
        opened.append(PseudoTerminal([*COMMAND, *SAME, *arguments], environment, columns=columns, rows=rows))
        return opened[-1]

    yield open_it
    for terminal in opened:
        terminal.process.close(force=True)


def test_a_chat_as_a_person_sees_it(open_chat: Open, home: Path) -> None:
    chat = open_chat("-n", "24", "--session", "talk.chat")
    greeting = chat.prompt()
    assert "edge-spec " in greeting and ": demo, " in greeting and "/help lists the commands" in greeting
    # How large it is stands there once.
    assert len(re.findall(r"\d+(?:\.\d+)?M\b", greeting)) == 1
    answer = chat.say("Tell me a story about a dog.")
    assert len(answer.split()) > 10
    chat.wait(lambda text: "tokens/s" in text and "/512 tokens" in text)
    assert "tokens/s" not in answer
    assert "per round" in chat.say("/stats")
    assert chat.say("/set temperature 0") == "temperature 0.0"
    another = chat.say("/retry")
    assert another != answer and len(another.split()) > 10
    # Only noise tells one attempt from another, and there is none now.
    assert chat.say("/retry") == another
    assert "taken back: Tell me" in chat.say("/undo")
    assert "did you mean /help?" in chat.say("/hlp")
    assert "out of" not in chat.say("/set top_p 7") and chat.is_asking
    chat.say("Hello")
    assert "saved a transcript in Markdown" in chat.say("/save talk.md")
    said = chat.text
    chat.type("/quit\r")
    assert chat.end() == 0
    assert (home / "talk.md").read_text("utf-8").startswith("## You\n\nHello\n")
    # The whole conversation is above, each line once.
    assert said.count("> Tell me a story about a dog.") == said.count("> /stats") == 1

    again = open_chat("--session", "talk.chat", "-n", "24")
    assert "1 question from talk.chat; the last: Hello" in again.prompt()
    more = again.say("And then?")
    assert "read again" not in more
    again.type("\x04")
    assert again.end() == 0
    with edge_spec.load("demo", n_ctx=512, n_threads=1, cache_dir=None) as model:
        session = ChatSession.load(model, home / "talk.chat")
        assert [m.content for m in session.messages if m.role == "user"] == ["Hello", "And then?"]
        assert " ".join(session.messages[-1].answer.split()) in " ".join(more.split())


def test_ctrl_c_stops_an_answer_and_not_the_program(open_chat: Open, endless: list[str]) -> None:
    chat = open_chat(*endless, rows=12)
    chat.prompt()
    chat.type("Tell me a long story.\r")
    chat.writing()
    chat.type("\x03" * 5)
    chat.wait("stopped; /continue resumes")
    chat.prompt()
    n = len(chat.text.rstrip())
    chat.type("/continue\r")
    chat.writing()
    chat.type("\x03")
    chat.wait(lambda text: text.count("stopped; /continue resumes") == 2)
    assert len(chat.text.rstrip()) > n
    chat.prompt()
    chat.type("\x03")
    chat.wait("Ctrl-D or /quit leaves")
    chat.prompt()
    chat.type("\x04")
    assert chat.end() == 0


def test_a_killed_chat_loses_the_turn_in_flight_and_no_more(open_chat: Open, endless: list[str], home: Path) -> None:
    chat = open_chat("-n", "8")
    chat.say("Hello")
    chat.type("\x04")
    assert chat.end() == 0
    chat = open_chat("--resume", *endless)
    assert "1 question from" in chat.prompt()
    chat.type("/set max_tokens default\r")
    chat.wait("reset to its default")
    chat.prompt()
    chat.type("Tell me a long story.\r")
    chat.writing()
    os.kill(chat.process.pid, signal.SIGKILL)
    assert chat.end() == -signal.SIGKILL
    chat = open_chat()
    assert "--resume continues" in chat.prompt()
    (path,) = (home / "data" / "edge-spec" / "conversations").iterdir()
    assert "1 question" in chat.say(f"/load {path}")
    chat.type("\x04")
    assert chat.end() == 0


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"NO_COLOR": "1"}], ids=["dumb", "no color"])
def test_plain_terminals_get_plain_text(open_chat: Open, variables: dict[str, str]) -> None:
    chat = open_chat("-n", "16", **variables)
    chat.prompt()
    chat.type("Hello\r")
    chat.wait(lambda text: text.count("\n>") >= 2 and chat.is_asking)
    chat.type("/stats\r")
    chat.wait("identity")
    chat.prompt()
    chat.type("\x04")
    assert chat.end() == 0
    codes = re.findall(rb"\x1b\[([0-9;]*)m", chat.raw)
    assert not [code for code in codes if re.search(rb"(^|;)[349][0-9]", code)]
    if variables.get("TERM") == "dumb":
        assert set(re.findall(rb"\x1b.{7}", chat.raw)) == set()


def test_windows_of_any_size_and_texts_of_any_kind(open_chat: Open) -> None:
    chat = open_chat("-n", "8", columns=20, rows=6)
    chat.prompt()
    chat.type("\x1b[200~" + "long words " * 900 + "\n你好 👩‍👩‍👧 e\u0301\x1b[201~")
    chat.read(0.3)
    chat.resize(9, 3)
    chat.type("\r")
    chat.wait(lambda text: chat.is_asking)
    chat.resize(100, 30)
    chat.type("Hello\r")
    chat.wait("tokens/s")
    chat.prompt()
    chat.type("\x04")
    assert chat.end() == 0


def test_a_home_is_not_needed_to_talk(open_chat: Open, tmp_path: Path) -> None:
    chat = open_chat("-n", "8", XDG_DATA_HOME="/dev/null", HOME="/dev/null", TMPDIR=str(tmp_path))
    assert "the history cannot be kept" in chat.prompt()
    assert "could not be saved" in chat.say("Hello")
    chat.type("/quit\r")
    chat.wait("the conversation is in")
    assert chat.end() == 1


def test_the_last_question_is_edited_in_the_line_and_outside(open_chat: Open, home: Path) -> None:
    chat = open_chat("-n", "8", "--session", "talk.chat", EDITOR="sed -i s/you/I/")
    chat.say("How are they?")
    chat.type("/edit\r")
    chat.wait(lambda text: chat.screen.display[chat.screen.cursor.y].startswith("> How are they?"))
    chat.type("\x7f" * 5 + "you?\r")
    chat.prompt()
    chat.type("/edit!\r")
    chat.wait(lambda text: chat.is_asking and "/edit!" in text)
    chat.type("\x04")
    assert chat.end() == 0
    with edge_spec.load("demo", n_ctx=512, n_threads=1, cache_dir=None) as model:
        assert ChatSession.load(model, home / "talk.chat").messages[0].content == "How are I?"


def test_no_history_leaves_nothing_behind(open_chat: Open, home: Path) -> None:
    chat = open_chat("--no-history", "-n", "8")
    chat.say("A secret")
    chat.type("/quit\r")
    assert chat.end() == 0
    assert not [path for path in (home / "data").rglob("*") if path.is_file()]


def test_answers_go_into_a_file_and_all_else_stays_on_the_terminal(open_chat: Open, home: Path) -> None:
    from pseudo_terminal import PseudoTerminal

    chat = open_chat("-n", "8")
    chat.process.close(force=True)
    environment = chat.process.env
    command = ["sh", "-c", 'exec "$@" > answers.txt', "sh", *COMMAND, *SAME, "-n", "8"]
    chat = PseudoTerminal(command, environment)
    chat.say("Hello")
    assert "per round" in chat.say("/stats")
    chat.type("\x04")
    assert chat.end() == 0
    answers = (home / "answers.txt").read_text("utf-8")
    assert answers.strip() and "per round" not in answers and "\x1b" not in answers and ">" not in answers


def test_statistics_stand_apart_from_the_text(surroundings: dict[str, str], home: Path) -> None:
    from pseudo_terminal import PseudoTerminal, quiet

    command = [*COMMAND[:-2], "run", "demo", *SAME, "-n", "8", "--stats", "-p", "Hello"]
    terminal = PseudoTerminal(command, quiet(surroundings, str(home)), columns=200)
    assert terminal.end() == 0
    lines = terminal.text.rstrip().split("\n")
    (summary,) = (place for place, line in enumerate(lines) if "tokens/s; speculation" in line)
    assert lines[summary - 1] == "" and lines[summary - 2] != ""


# --- pipes


@pytest.fixture
def pipe(surroundings: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    def run(*arguments: str, stdin: bytes = b"", **more: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*COMMAND, *SAME, "-n", "12", *arguments],
            input=stdin,
            stdout=more.get("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env={**surroundings, "XDG_DATA_HOME": str(tmp_path)},
            timeout=60,
        )

    return run


Pipe = Callable[..., "subprocess.CompletedProcess[bytes]"]


def test_a_pipe_gets_answers_and_nothing_else(pipe: Pipe, tmp_path: Path, probe_cache: Path) -> None:
    done = pipe("--session", "talk", stdin=b'Hello\n\nTell me more\n/stats\n"""a\nb"""\n')
    assert done.returncode == 0
    with edge_spec.load("demo", n_ctx=512, n_threads=1, cache_dir=probe_cache) as model:
        messages = ChatSession.load(model, tmp_path / "talk").messages
    assert [m.content for m in messages if m.role == "user"] == ["Hello", "Tell me more", "a\nb"]
    answers = [m.answer.rstrip("\n") + "\n" for m in messages if m.role == "assistant"]
    assert done.stdout.decode() == "\n".join(answers)
    assert b"per round" in done.stderr
    # A script leaves nothing among the conversations of a person.
    assert not (tmp_path / "edge-spec").exists()


@pytest.mark.parametrize(
    ("arguments", "stdin", "hint"),
    [
        ([], b"\xff\xfe\x00binary\n", b"UTF-8"),
        ([], b"/nonsense\n", b"there is no command"),
        ([], b"/set top_p 3\n", b"error: top_p is 3.0"),
        ([], b'"""open\n', b"close it"),
        (["--session", "."], b"Hello\n", b".: Is a directory; name a file in it"),
        (["--session", "junk"], b"Hello\n", b"conversation"),
        (["--system", "long " * 2000], b"Hello\n", b"shorten the prompt or raise --ctx"),
    ],
    ids=["binary", "unknown command", "setting", "open quotes", "directory", "junk", "long system"],
)
def test_a_mistake_is_one_line_and_a_code(
    pipe: Pipe, tmp_path: Path, arguments: list[str], stdin: bytes, hint: bytes
) -> None:
    (tmp_path / "junk").write_bytes(b"junk")
    done = pipe(*arguments, stdin=stdin)
    assert (done.returncode, done.stdout) == (1, b"")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(b"edge-spec: error: ") and hint in last
    assert (tmp_path / "junk").read_bytes() == b"junk"


def test_a_stopped_script_leaves_with_its_code(
    surroundings: dict[str, str], endless: list[str], tmp_path: Path
) -> None:
    with subprocess.Popen(
        [*COMMAND, *SAME, *endless],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=surroundings,
        cwd=tmp_path,
        bufsize=0,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"Tell me a long story.\n")
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in stderr
