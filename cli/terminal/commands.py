"""The commands of a talk: a table of names, arguments, help and functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edge_spec.chat import ChatSession
from edge_spec.cli.terminal import settings
from edge_spec.cli.terminal.files import path_of, save_as
from edge_spec.cli.terminal.memory import memory_lines
from edge_spec.cli.terminal.status import counted, statistics_lines
from edge_spec.errors import SettingsError

if TYPE_CHECKING:
    from edge_spec.cli.terminal.talk import Talk

__all__ = ["COMMANDS", "Command", "find"]


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command.

    Attributes:
        name: without its slash; a ``!`` at the end makes it another command.
        argument: what may follow it, for the help.
        help: what it does.
        run: does it; gets the talk and the argument.
    """

    name: str
    argument: str = ""
    help: str
    run: Callable[[Talk, str], None]


def find(name: str) -> Command:
    """The command of a name.

    Raises:
        SettingsError: there is none.
    """
    name = name.lower()
    if name in COMMANDS:
        return COMMANDS[name]
    near = get_close_matches(name, COMMANDS, n=1) or [known for known in COMMANDS if name and known.startswith(name)]
    hint = f"did you mean /{near[0]}?" if near else "/help lists them;"
    raise SettingsError(f"there is no command /{name[:40]}", hint=f"{hint} //{name[:40]} says it as text")


def _help(talk: Talk, argument: str) -> None:
    chosen = [find(argument.removeprefix("/"))] if argument else list(COMMANDS.values())
    talk.display.show(f"/{f'{each.name} {each.argument}':22}{each.help}" for each in chosen)
    if not argument:
        talk.display.show(
            [
                "",
                'Enter sends; Alt-Enter, or a backslash at the end, begins a new line; so does Enter after """.',
                "Ctrl-C stops an answer, Ctrl-X Ctrl-E opens an editor, Ctrl-D leaves. //text says /text.",
            ]
        )


def _stats(talk: Talk, argument: str) -> None:
    talk.display.show(statistics_lines(talk.session, talk.last_reply))


def _memory(talk: Talk, argument: str) -> None:
    talk.display.show(memory_lines(talk.session.model))


def _undo(talk: Talk, argument: str) -> None:
    question = talk.session.undo()[0].content
    talk.display.notice(f"taken back: {_short(question)}")


def _retry(talk: Talk, argument: str) -> None:
    talk.answer(talk.session.retry())


def _continue(talk: Talk, argument: str) -> None:
    talk.answer(talk.session.continue_answer())


def _edit(talk: Talk, argument: str) -> None:
    question = talk.last_question()
    if argument:
        talk.answer(talk.session.edit(argument))
    elif talk.reader.can_edit:
        talk.edit_next(question)
    else:
        raise SettingsError("/edit needs the new text here", hint="/edit TEXT")


def _edit_outside(talk: Talk, argument: str) -> None:
    question = talk.last_question()
    try:
        text = click.edit(question, extension=".md")
    except click.ClickException as error:
        raise SettingsError(f"no editor: {error.format_message()}", hint="set EDITOR, or use /edit") from None
    if text is None or text.strip() == question.strip():
        talk.display.notice("nothing was changed")
    else:
        talk.answer(talk.session.edit(text.rstrip("\n")))


def _save(talk: Talk, argument: str, *, force: bool = False) -> None:
    path = path_of(argument) if argument else talk.autosave.path if talk.autosave.is_own else None
    if path is None:
        raise SettingsError("/save needs a file", hint="/save talk.md for reading, /save talk.chat to go on later")
    with _about(path):
        kind = save_as(talk.session, path, thoughts=talk.display.thoughts != "hide", force=force)
    talk.display.notice(f"saved {kind} in {path}")


def _save_over(talk: Talk, argument: str) -> None:
    _save(talk, argument, force=True)


def _load(talk: Talk, argument: str) -> None:
    if not argument:
        raise SettingsError("/load needs a file", hint="/load talk.chat")
    path = path_of(argument)
    with _about(path):
        session = ChatSession.load(talk.session.model, path, on_notice=talk.display.notice)
    talk.take(session)
    if talk.autosave.is_own:
        talk.autosave.go_on_in(path, session)
    where = "; it is saved there from now on" if talk.autosave.is_own else ""
    talk.display.notice(f"{counted(session.n_turns, 'question')} from {path}{where}")


def _system(talk: Talk, argument: str) -> None:
    if argument:
        talk.session.set_system(None if argument == "-" else argument)
    talk.display.notice(f"system message: {talk.session.system or 'none'}")


def _set(talk: Talk, argument: str) -> None:
    if argument:
        talk.display.notice(settings.change(talk.session, talk.display, argument))
    else:
        talk.display.show(settings.settings_lines(talk.session, talk.display))


def _clear(talk: Talk, argument: str) -> None:
    talk.session.clear()
    talk.forget_reply()
    talk.display.notice("a new conversation; the system message and the settings stay")


def _quit(talk: Talk, argument: str) -> None:
    talk.leave()


@contextmanager
def _about(path: Path) -> Iterator[None]:
    """A file that cannot be read or written is no reason to end a talk."""
    try:
        yield
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}", hint="try another file") from None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"


COMMANDS = {
    command.name: command
    for command in (
        Command(name="help", argument="[COMMAND]", help="List the commands.", run=_help),
        Command(name="stats", help="What speculation did for the last answer.", run=_stats),
        Command(name="memory", help="Memory held and free.", run=_memory),
        Command(name="undo", help="Take the last question and its answer back.", run=_undo),
        Command(name="retry", help="Answer the last question anew.", run=_retry),
        Command(name="continue", help="Go on with an answer that was stopped.", run=_continue),
        Command(name="edit", argument="[TEXT]", help="Say the last thing differently.", run=_edit),
        Command(name="edit!", help="The same in your editor.", run=_edit_outside),
        Command(name="save", argument="FILE", help="Save: .md and .json transcripts, else to /load.", run=_save),
        Command(name="save!", argument="FILE", help="The same, over a file of another kind.", run=_save_over),
        Command(name="load", argument="FILE", help="Go on with a saved conversation.", run=_load),
        Command(name="system", argument="[TEXT]", help="Show or change the system message; - for none.", run=_system),
        Command(name="set", argument="[NAME VALUE]", help="Show or change settings of the answers.", run=_set),
        Command(name="clear", help="Begin a new conversation.", run=_clear),
        Command(name="quit", help="Leave.", run=_quit),
    )
}
