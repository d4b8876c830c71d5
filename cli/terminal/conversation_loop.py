"""The loop of a conversation: read, answer or run a command, save."""

from __future__ import annotations

from click.exceptions import Exit

from edge_spec.cli.interrupt import hears_interrupts, keeps_what_is_drawn, leaves_in_order, raise_interrupt
from edge_spec.cli.terminal.commands import find
from edge_spec.cli.terminal.conversation import Conversation
from edge_spec.cli.wording import described
from edge_spec.errors import EdgeSpecError, SettingsError

__all__ = ["converse"]

_LEAVING = ("exit", "quit")


def converse(conversation: Conversation) -> None:
    """Read messages and commands until one side leaves.

    Raises:
        EdgeSpecError, OSError: where no person could try again. KeyboardInterrupt: likewise.
        SystemExit: on SIGTERM or SIGHUP. Exit: the last save failed.
    """
    # At a terminal Ctrl-C does not end the chat, as /quit and Ctrl-D do; without one, it ends the program.
    listener = (lambda: None) if conversation.reader.is_interactive else raise_interrupt
    with leaves_in_order(), hears_interrupts(listener), keeps_what_is_drawn():
        try:
            while not conversation.is_over:
                _turn(conversation)
        finally:
            conversation.autosave.save(conversation.session, at_the_end=True)
    if conversation.autosave.failure:
        raise Exit(1)


def _turn(conversation: Conversation) -> None:
    draft, conversation.draft = conversation.draft, None
    try:
        text = conversation.reader.read(draft or "", conversation.status(conversation.last_reply))
        if text is None:
            conversation.is_over = True
        else:
            _do(conversation, text, draft)
    except KeyboardInterrupt:
        if not conversation.reader.is_interactive:
            raise
        conversation.display.notice("Ctrl-D or /quit leaves")
    except (EdgeSpecError, MemoryError) as error:
        if not conversation.reader.is_interactive:
            raise
        said = described(error) if isinstance(error, EdgeSpecError) else str(error)
        conversation.display.error(said or "out of memory; a smaller --ctx or a smaller model needs less")


def _do(conversation: Conversation, text: str, draft: str | None) -> None:
    if not text.strip():
        return
    # A draft that begins with a slash is an earlier message, not a command: its edited text is sent as it is.
    is_edited = draft is not None and draft.startswith("/")
    if text.startswith("/") and not text.startswith("//") and not is_edited:
        name, _, argument = text[1:].partition(" ")
        _run(conversation, name.strip(), argument.strip())
        return
    is_repeated, conversation.last_text = text == conversation.last_text, text
    if conversation.reader.is_interactive and text.strip().lower() in _LEAVING and not is_repeated:
        conversation.display.notice(f"/quit or Ctrl-D leaves; to send {text.strip()!r} as a message, type it again")
        return
    if text.startswith("//") and not is_edited:
        text = text[1:]
    conversation.answer(conversation.session.send(text) if draft is None else conversation.session.edit(text))


def _run(conversation: Conversation, name: str, argument: str) -> None:
    try:
        find(name).run(conversation, argument)
    except SettingsError as error:
        # Drop ``error.argument``: it would be shown as a command-line flag, but the user typed a name after /set.
        raise SettingsError(error.message, hint=error.hint) from error
    conversation.autosave.save(conversation.session)
