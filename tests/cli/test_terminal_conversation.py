"""Laws of a conversation: every command, on injected input and display; bad input is one sentence, and it continues."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from played_conversation import Played, Script, errors

import edge_spec
from edge_spec.cli.terminal import settings
from edge_spec.cli.terminal.autosave import Autosave
from edge_spec.cli.terminal.commands import COMMANDS
from edge_spec.cli.terminal.conversation import Conversation
from edge_spec.cli.terminal.conversation_loop import converse
from edge_spec.cli.terminal.display import PlainDisplay
from edge_spec.cli.terminal.status import choice_lines
from edge_spec.errors import EdgeSpecError
from edge_spec.model import TextModel

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def model(probe_cache: Path) -> Iterator[TextModel]:
    with edge_spec.load("demo", speculation="sequence", n_ctx=512, n_threads=1, cache_dir=probe_cache) as loaded:
        yield loaded


Play = Callable[..., Played]


@pytest.fixture(scope="module")
def play(model: TextModel) -> Play:
    return lambda *lines, **more: Played(model, *lines, **more)


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
    options = played.conversation.session.options
    assert (options["temperature"], options["top_k"], options["max_tokens"]) == (0, 7, 5)
    assert options["stop"] == ["The end", "x"]
    assert options["logit_bias"] == {5: float("-inf"), 6: 1.5}
    assert played.conversation.display.thoughts == "dim"
    assert "temperature" not in play("/set temperature 0", "/set temperature default").conversation.session.options


@pytest.mark.parametrize("name", settings.names())
def test_every_setting_has_an_example_that_changes_it(play: Play, name: str) -> None:
    (said,) = errors(play(f"/set {name}"))
    found = re.search(r"such as (/set .+); or default", said)
    assert found is not None
    plain, changed = (each.conversation for each in (play(), play(found[1])))
    lines, before = (settings.settings_lines(each.session, each.display) for each in (changed, plain))
    assert [line[2:].split()[0] for line, old in zip(lines, before, strict=True) if line != old] == [name]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("/hlp", "did you mean /help?"),
        ("/", "/help lists them"),
        ("/etc/passwd is a file", "sends it as text"),
        ("/set temprature 1", "did you mean temperature?"),
        ("/set temperature", "needs a value"),
        ("/set temperature hot", "is not a valid temperature"),
        ("/set temperature -1", "at least 0"),
        ("/set max_tokens 0", "at least 1"),
        ("/set logit_bias 5", "17=-2.5"),
        ('/set stop "', "is not a valid stop"),
        ("/set thoughts loud", "show, dim, hide"),
        ("/undo", "nothing has been said"),
        ("/retry", "nothing has been said"),
        ("/continue", "no unfinished answer"),
        ("/edit", "nothing has been said"),
        ("/edit!", "nothing has been said"),
        ("/save", "/save cats.md"),
        ("/save .", "directory"),
        ("/save no/such/folder/x", "No such file"),
        ("/save ~nobody-of-this-name/x", "cannot be"),
        ("/save a\0b", "cannot be"),
        ("/load", "/load cats.chat"),
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
    assert played.conversation.session.options == {"seed": 3, "max_tokens": 12}
    assert list(tmp_path.iterdir()) == []


def test_a_script_ends_at_its_first_mistake(model: TextModel) -> None:
    display = PlainDisplay(io.StringIO(), io.StringIO())
    autosave = Autosave(None, on_notice=display.notice)
    reader = Script("/hlp", "Hello", is_interactive=False)
    with pytest.raises(EdgeSpecError, match="hlp"):
        converse(Conversation(model.chat(), reader=reader, display=display, autosave=autosave))


def test_help_names_every_command_and_fits_the_screen(play: Play) -> None:
    said = play("/help").said
    assert [line.split()[0] for line in said.splitlines()[: len(COMMANDS)]] == [f"/{name}" for name in COMMANDS]
    assert max(map(len, said.splitlines())) <= 100


def test_stats_tell_what_speculation_did(play: Play, model: TextModel) -> None:
    played = play("Tell me a story", "/stats", "/memory")
    found = played.conversation.last_reply
    assert found is not None
    for part in (f"{found.statistics.rounds}, ", model.profile.name, model.identity, "seed 3", "MiB"):
        assert part in played.said
    bars = [line for line in played.said.splitlines() if " per round  #" in line]
    assert sum(int(line.split()[-1]) for line in bars) == found.statistics.rounds


def test_why_names_the_choices_of_auto_and_what_a_round_of_each_takes(play: Play, probe_cache: Path) -> None:
    assert "does not choose" in play("Hello", "/why").said
    with edge_spec.load("demo", n_ctx=512, n_threads=1, cache_dir=probe_cache) as model:
        reply = model.generate("Tell me a story.", seed=3, max_tokens=40, ignore_eos=True)
        reply.read()
        said = "\n".join(choice_lines(model))
        assert set(model.choices) == {"off", "ngram", "sequence", "hierarchy"}
        assert sum(choice.rounds for choice in model.choices.values()) == reply.statistics.rounds
        assert f"{model.choices['off'].rounds} round" in said
        assert "tokens/s" in said


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_stranger_can_recompute_the_last_decision_of_auto(probe_cache: Path, temperature: float) -> None:
    """From what ``/why`` prints alone, by the formula of docs/choosing.md."""
    with edge_spec.load("demo", n_ctx=512, n_threads=1, cache_dir=probe_cache) as model:
        for seed in range(6):
            model.generate("A dog, a dog, a dog", seed=seed, max_tokens=60, temperature=temperature, raw=True).read()
            said = {line[:14].strip(): line[14:] for line in choice_lines(model)}
            if "last draft" in said:
                break
        numbers = {name: [float(each) for each in re.findall(r"-?[0-9]+\.[0-9]+", text)] for name, text in said.items()}
    (rate,), decodes, (own, token), chances, drafting = (
        numbers[name] for name in ("R", "c, ms", "o, ms", "p", "drafting, ms")
    )
    n_verified, n_drafted = map(int, re.findall(r"[0-9]+", said["last draft"]))
    assert n_drafted >= len(chances) == len(decodes) - 1 and n_verified <= len(chances)
    gains = []
    for n, decode in enumerate(decodes):
        further = sum(chances[:n])
        milliseconds = decode + own + token * further + drafting[0]
        gains.append(1 + further - rate * milliseconds / 1e3)
    assert gains == pytest.approx(numbers["gain"], abs=0.01)
    least = "as a trial" in said["last draft"] and said["last draft"][:5] != "ngram"
    assert gains[n_verified] == pytest.approx(max(gains[int(least) :]), abs=0.01)


def test_system_and_clear(play: Play) -> None:
    played = play("/system Be brief.", "Hello", "/clear", "/system")
    assert played.contents == ["Be brief."]
    assert play("/system -", system="You are a cat.").conversation.session.system is None


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


# --- small things


def test_settings_can_be_typed_as_they_are_shown(play: Play) -> None:
    texts = ["\n", "a\tb", "\\n", "it's", ":"]
    first = play("/set dry_breakers " + " ".join(shlex.quote(t.replace("\\", "\\\\")) for t in texts), "/set")
    shown = [line[22:] for line in first.said.splitlines() if line[2:].startswith("dry_breakers")]
    assert len(shown) == 1
    again = play(f"/set dry_breakers {shown[0]}")
    assert list(again.conversation.session.options["dry_breakers"]) == texts
    assert list(first.conversation.session.options["dry_breakers"]) == texts


def test_names_of_the_command_line_are_known_here(play: Play) -> None:
    options = play("/set temp 0.5", "/set --top-k=7", "/set n 5").conversation.session.options
    assert (options["temperature"], options["top_k"], options["max_tokens"]) == (0.5, 7, 5)


def test_who_wants_to_leave_learns_how(play: Play) -> None:
    for word in ("exit", " Quit "):
        played = play(word, "Hello", "/exit", "never said")
        assert "/quit or Ctrl-D leaves" in played.said
        assert played.contents[0] == "Hello" and len(played.contents) == 2
    assert play("exit", "exit").contents[0] == "exit"


def test_a_script_may_say_exit(model: TextModel) -> None:
    display = PlainDisplay(io.StringIO(), io.StringIO())
    autosave = Autosave(None, on_notice=display.notice)
    reader = Script("exit", is_interactive=False)
    conversation = Conversation(model.chat(max_tokens=4), reader=reader, display=display, autosave=autosave)
    converse(conversation)
    assert conversation.session.messages[0].content == "exit"


def test_an_empty_answer_is_said_to_be_empty(play: Play) -> None:
    played = play("/set grammar root ::= ", "Hello")
    assert "note: the answer is empty" in played.said


def test_an_empty_answer_tells_what_the_model_no_longer_sees(play: Play) -> None:
    played = play("/set grammar root ::= ", "A long story. " * 200)
    assert re.search(r"note: the context is full: the model no longer sees the oldest \d+ tokens", played.said)
    assert "note: the answer is empty" in played.said
