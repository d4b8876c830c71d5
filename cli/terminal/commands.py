"""The commands of a conversation: a table of names, arguments, help and functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import click

from edge_spec.cli.terminal import settings
from edge_spec.cli.terminal.conversation import Conversation
from edge_spec.cli.terminal.files import is_same, path_of
from edge_spec.cli.terminal.status import came_back, choice_lines, memory_lines, statistics_lines
from edge_spec.errors import SettingsError

__all__ = ["COMMANDS", "Command", "find"]


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command.

    Attributes:
        name: without its slash; a ``!`` at the end makes it another command.
        argument: its argument, for the help.
        help: what it does.
        run: does it; gets the conversation and the argument.
    """

    name: str
    argument: str = ""
    help: str
    run: Callable[[Conversation, str], None]


def find(name: str) -> Command:
    """Return the command with a name.

    Raises:
        SettingsError: there is none.
    """
    name = _ALIASES.get(name.lower(), name.lower())
    if name in COMMANDS:
        return COMMANDS[name]
    near = get_close_matches(name, COMMANDS, n=1) or [known for known in COMMANDS if name and known.startswith(name)]
    hint = f"did you mean /{near[0]}?" if near else "/help lists them;"
    raise SettingsError(f"there is no command /{name[:40]}", hint=f"{hint} //{name[:40]} sends it as text")


def _help(conversation: Conversation, argument: str) -> None:
    chosen = [find(argument.removeprefix("/"))] if argument else list(COMMANDS.values())
    conversation.display.show(f"/{f'{each.name} {each.argument}':22}{each.help}" for each in chosen)
    if not argument:
        conversation.display.show(
            [
                "",
                'Enter sends; Alt-Enter, or a backslash at the end, begins a new line; so does Enter after """.',
                "Ctrl-C stops an answer, Ctrl-X Ctrl-E opens an editor, Ctrl-D leaves. //text sends /text.",
            ]
        )


def _stats(conversation: Conversation, argument: str) -> None:
    conversation.display.show(statistics_lines(conversation.session, conversation.last_reply))


def _why(conversation: Conversation, argument: str) -> None:
    conversation.display.show(choice_lines(conversation.session.model))


def _undo(conversation: Conversation, argument: str) -> None:
    question = conversation.session.undo()[0].content
    conversation.display.notice(f"taken back: {_short(question)}")


def _edit(conversation: Conversation, argument: str) -> None:
    question = conversation.last_question()
    if argument:
        conversation.answer(conversation.session.edit(argument))
    elif conversation.reader.can_edit:
        conversation.draft = question
    else:
        raise SettingsError("/edit needs the new text here", hint="/edit TEXT")


def _edit_outside(conversation: Conversation, argument: str) -> None:
    question = conversation.last_question()
    try:
        text = click.edit(question, extension=".md")
    except click.ClickException as error:
        raise SettingsError(f"no editor: {error.format_message()}", hint="set EDITOR, or use /edit") from None
    if text is None or text.strip() == question.strip():
        conversation.display.notice("nothing was changed")
    else:
        conversation.answer(conversation.session.edit(text.rstrip("\n")))


def _save(conversation: Conversation, argument: str, *, force: bool = False) -> None:
    own = conversation.autosave.path if conversation.autosave.is_named else None
    path = path_of(argument) if argument else own
    if path is None:
        raise SettingsError("/save needs a file", hint="/save cats.md to read it, /save cats.chat to /load it")
    with _about(path):
        if own is not None and is_same(path, own):
            conversation.autosave.write(conversation.session, caches=True)
            conversation.display.notice(f"saved in {conversation.autosave.path}")
            return
        kind = conversation.copies.save(
            conversation.session, path, thoughts=conversation.display.thoughts != "hide", force=force
        )
    stays = f"; the session stays in {own}" if own is not None else ""
    conversation.display.notice(f"saved {kind} in {path}{stays}")


def _load(conversation: Conversation, argument: str) -> None:
    if not argument:
        raise SettingsError("/load needs a file", hint="/load cats.chat")
    path = path_of(argument)
    autosave = conversation.autosave
    # Save first: it may be the file to load.
    autosave.save(conversation.session, at_the_end=True)
    with _about(path):
        session = autosave.load(conversation.model_for(path), path, here=autosave.is_named)
    conversation.take(session)
    where = "; it is saved there from now on" if autosave.is_named else ""
    conversation.display.notice(f"{came_back(session, path)}{where}")


def _system(conversation: Conversation, argument: str) -> None:
    if argument:
        conversation.session.set_system(None if argument == "-" else argument)
    conversation.display.notice(f"system message: {conversation.session.system or 'none'}")


def _set(conversation: Conversation, argument: str) -> None:
    if argument:
        conversation.display.notice(settings.change(conversation.session, conversation.display, argument))
    else:
        conversation.display.show(settings.settings_lines(conversation.session, conversation.display))


def _clear(conversation: Conversation, argument: str) -> None:
    conversation.autosave.save(conversation.session, at_the_end=True)
    has_turns = conversation.session.n_turns > 0
    conversation.session.clear()
    conversation.last_reply = None
    with _about(conversation.autosave.path or Path()):
        before = conversation.autosave.start_new(conversation.session) if has_turns else None
    kept = f"; the one before is kept in {before}" if before is not None else ""
    conversation.display.notice(f"a new conversation with the same system message and settings{kept}")


def _quit(conversation: Conversation, argument: str) -> None:
    conversation.is_over = True


@contextmanager
def _about(path: Path) -> Iterator[None]:
    """Turn errors of a file into errors that do not end the conversation."""
    try:
        yield
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}", hint="try another file") from None


_ALIASES = {"exit": "quit", "q": "quit", "?": "help"}


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"


COMMANDS = {
    name: Command(name=name, argument=argument, help=text, run=run)
    for name, argument, text, run in (
        ("help", "[COMMAND]", "List the commands.", _help),
        ("stats", "", "What speculation did for the last answer.", _stats),
        ("why", "", "What auto chose to draft with, and what it measured.", _why),
        ("memory", "", "Memory held and free.", lambda at, _: at.display.show(memory_lines(at.session.model))),
        ("undo", "", "Take the last question and its answer back.", _undo),
        ("retry", "", "Answer the last question again.", lambda at, _: at.answer(at.session.retry())),
        ("continue", "", "Continue an answer that was stopped.", lambda at, _: at.answer(at.session.continue_answer())),
        ("edit", "[TEXT]", "Change the last question.", _edit),
        ("edit!", "", "The same in your editor.", _edit_outside),
        ("save", "[FILE]", "Save: .md and .json are transcripts, else to /load.", _save),
        ("save!", "FILE", "The same, over a file of another kind.", partial(_save, force=True)),
        ("load", "FILE", "Continue a saved conversation.", _load),
        ("system", "[TEXT]", "Show or change the system message; - for none.", _system),
        ("set", "[NAME VALUE]", "Show or change settings.", _set),
        ("clear", "", "Start a new conversation.", _clear),
        ("quit", "", "Leave; /exit does, too.", _quit),
    )
}
