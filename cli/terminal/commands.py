"""The commands of a conversation: a table of names, arguments, help and functions."""

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
from edge_spec.cli.terminal.files import is_same, path_of
from edge_spec.cli.terminal.memory import memory_lines
from edge_spec.cli.terminal.status import counted, statistics_lines
from edge_spec.cli.wording import in_options
from edge_spec.errors import SettingsError

if TYPE_CHECKING:
    from edge_spec.cli.terminal.conversation_loop import ConversationLoop

__all__ = ["COMMANDS", "Command", "find"]


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command.

    Attributes:
        name: without its slash; a ``!`` at the end makes it another command.
        argument: what may follow it, for the help.
        help: what it does.
        run: does it; gets the loop and the argument.
    """

    name: str
    argument: str = ""
    help: str
    run: Callable[[ConversationLoop, str], None]


def find(name: str) -> Command:
    """The command of a name.

    Raises:
        SettingsError: there is none.
    """
    name = _ALIASES.get(name.lower(), name.lower())
    if name in COMMANDS:
        return COMMANDS[name]
    near = get_close_matches(name, COMMANDS, n=1) or [known for known in COMMANDS if name and known.startswith(name)]
    hint = f"did you mean /{near[0]}?" if near else "/help lists them;"
    raise SettingsError(f"there is no command /{name[:40]}", hint=f"{hint} //{name[:40]} sends it as text")


def _help(loop: ConversationLoop, argument: str) -> None:
    chosen = [find(argument.removeprefix("/"))] if argument else list(COMMANDS.values())
    loop.display.show(f"/{f'{each.name} {each.argument}':22}{each.help}" for each in chosen)
    if not argument:
        loop.display.show(
            [
                "",
                'Enter sends; Alt-Enter, or a backslash at the end, begins a new line; so does Enter after """.',
                "Ctrl-C stops an answer, Ctrl-X Ctrl-E opens an editor, Ctrl-D leaves. //text sends /text.",
            ]
        )


def _stats(loop: ConversationLoop, argument: str) -> None:
    loop.display.show(statistics_lines(loop.session, loop.last_reply))


def _memory(loop: ConversationLoop, argument: str) -> None:
    loop.display.show(memory_lines(loop.session.model))


def _undo(loop: ConversationLoop, argument: str) -> None:
    question = loop.session.undo()[0].content
    loop.display.notice(f"taken back: {_short(question)}")


def _retry(loop: ConversationLoop, argument: str) -> None:
    loop.answer(loop.session.retry())


def _continue(loop: ConversationLoop, argument: str) -> None:
    loop.answer(loop.session.continue_answer())


def _edit(loop: ConversationLoop, argument: str) -> None:
    question = loop.last_question()
    if argument:
        loop.answer(loop.session.edit(argument))
    elif loop.reader.can_edit:
        loop.edit_next(question)
    else:
        raise SettingsError("/edit needs the new text here", hint="/edit TEXT")


def _edit_outside(loop: ConversationLoop, argument: str) -> None:
    question = loop.last_question()
    try:
        text = click.edit(question, extension=".md")
    except click.ClickException as error:
        raise SettingsError(f"no editor: {error.format_message()}", hint="set EDITOR, or use /edit") from None
    if text is None or text.strip() == question.strip():
        loop.display.notice("nothing was changed")
    else:
        loop.answer(loop.session.edit(text.rstrip("\n")))


def _save(loop: ConversationLoop, argument: str, *, force: bool = False) -> None:
    own = loop.autosave.path if loop.autosave.is_named else None
    path = path_of(argument) if argument else own
    if path is None:
        raise SettingsError("/save needs a file", hint="/save cats.md to read it, /save cats.chat to /load it")
    with _about(path):
        if own is not None and is_same(path, own):
            loop.autosave.write(loop.session, caches=True)
            loop.display.notice(f"saved in {loop.autosave.path}")
            return
        kind = loop.copies.save(loop.session, path, thoughts=loop.display.thoughts != "hide", force=force)
    stays = f"; the session stays in {own}" if own is not None else ""
    loop.display.notice(f"saved {kind} in {path}{stays}")


def _save_over(loop: ConversationLoop, argument: str) -> None:
    _save(loop, argument, force=True)


def _load(loop: ConversationLoop, argument: str) -> None:
    if not argument:
        raise SettingsError("/load needs a file", hint="/load cats.chat")
    path = path_of(argument)
    with _about(path):
        session = ChatSession.load(
            loop.session.model, path, on_notice=lambda sentence: loop.display.notice(in_options(sentence))
        )
    loop.autosave.save(loop.session, at_the_end=True)
    loop.take(session)
    where = ""
    if loop.autosave.is_named:
        loop.autosave.continue_in(path, session)
        where = "; it is saved there from now on"
    else:
        loop.autosave.start_new(session)
    loop.display.notice(f"{counted(session.n_turns, 'question')} from {path}{where}")


def _system(loop: ConversationLoop, argument: str) -> None:
    if argument:
        loop.session.set_system(None if argument == "-" else argument)
    loop.display.notice(f"system message: {loop.session.system or 'none'}")


def _set(loop: ConversationLoop, argument: str) -> None:
    if argument:
        loop.display.notice(settings.change(loop.session, loop.display, argument))
    else:
        loop.display.show(settings.settings_lines(loop.session, loop.display))


def _clear(loop: ConversationLoop, argument: str) -> None:
    loop.autosave.save(loop.session, at_the_end=True)
    has_turns = loop.session.n_turns > 0
    loop.session.clear()
    loop.forget_reply()
    with _about(loop.autosave.path or Path()):
        before = loop.autosave.start_new(loop.session) if has_turns else None
    kept = f"; the one before is kept in {before}" if before is not None else ""
    loop.display.notice(f"a new conversation with the same system message and settings{kept}")


def _quit(loop: ConversationLoop, argument: str) -> None:
    loop.leave()


@contextmanager
def _about(path: Path) -> Iterator[None]:
    """A file that cannot be read or written is no reason to end a loop."""
    try:
        yield
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}", hint="try another file") from None


_ALIASES = {"exit": "quit", "q": "quit", "?": "help"}


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
        Command(name="retry", help="Answer the last question again.", run=_retry),
        Command(name="continue", help="Continue an answer that was stopped.", run=_continue),
        Command(name="edit", argument="[TEXT]", help="Change the last question.", run=_edit),
        Command(name="edit!", help="The same in your editor.", run=_edit_outside),
        Command(name="save", argument="[FILE]", help="Save: .md and .json are transcripts, else to /load.", run=_save),
        Command(name="save!", argument="FILE", help="The same, over a file of another kind.", run=_save_over),
        Command(name="load", argument="FILE", help="Continue a saved conversation.", run=_load),
        Command(name="system", argument="[TEXT]", help="Show or change the system message; - for none.", run=_system),
        Command(name="set", argument="[NAME VALUE]", help="Show or change settings.", run=_set),
        Command(name="clear", help="Start a new conversation.", run=_clear),
        Command(name="quit", help="Leave; /exit does, too.", run=_quit),
    )
}
