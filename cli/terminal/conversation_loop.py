"""The loop of a conversation: read, answer or run a command, save."""

from __future__ import annotations

from click.exceptions import Exit

from edge_spec.cli.interrupt import hears_interrupts, keeps_what_is_drawn, leaves_in_order, raise_interrupt
from edge_spec.cli.terminal.commands import find
from edge_spec.cli.terminal.conversation import Conversation
from edge_spec.cli.wording import described
from edge_spec.errors import EdgeSpecError, SettingsError

__all__ = ["ConversationLoop"]

_LEAVING = ("exit", "quit")


class ConversationLoop:
    """Reads messages and commands until one side leaves."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._reader, self._display, self._autosave = conversation.reader, conversation.display, conversation.autosave
        self._last_text = ""

    def run(self) -> None:
        """Converse until one side leaves.

        Raises:
            EdgeSpecError, OSError: where no person could try again. KeyboardInterrupt: likewise.
            SystemExit: on SIGTERM or SIGHUP. Exit: the last save failed.
        """
        conversation = self._conversation
        # At a terminal Ctrl-C does not end the chat, as /quit and Ctrl-D do; without one, it ends the program.
        listener = (lambda: None) if self._reader.is_interactive else raise_interrupt
        with leaves_in_order(), hears_interrupts(listener), keeps_what_is_drawn():
            try:
                while not conversation.is_over:
                    self._turn()
            finally:
                self._autosave.save(conversation.session, at_the_end=True)
        if self._autosave.failure:
            raise Exit(1)

    def _turn(self) -> None:
        conversation = self._conversation
        draft, conversation.draft = conversation.draft, None
        try:
            text = self._reader.read(draft or "", conversation.status(conversation.last_reply))
            if text is None:
                conversation.is_over = True
            else:
                self._do(text, draft)
        except KeyboardInterrupt:
            if not self._reader.is_interactive:
                raise
            self._display.notice("Ctrl-D or /quit leaves")
        except (EdgeSpecError, MemoryError) as error:
            if not self._reader.is_interactive:
                raise
            said = described(error) if isinstance(error, EdgeSpecError) else str(error)
            self._display.error(said or "out of memory; a smaller --ctx or a smaller model needs less")

    def _do(self, text: str, draft: str | None) -> None:
        if not text.strip():
            return
        # A draft that begins with a slash is an earlier message, not a command: its edited text is sent as it is.
        is_edited = draft is not None and draft.startswith("/")
        if text.startswith("/") and not text.startswith("//") and not is_edited:
            name, _, argument = text[1:].partition(" ")
            self._run(name, argument.strip())
            return
        if self._reader.is_interactive and text.strip().lower() in _LEAVING and text != self._last_text:
            self._last_text = text
            self._display.notice(f"/quit or Ctrl-D leaves; to send {text.strip()!r} as a message, type it again")
            return
        self._last_text = text
        if text.startswith("//") and not is_edited:
            text = text[1:]
        conversation = self._conversation
        conversation.answer(conversation.session.send(text) if draft is None else conversation.session.edit(text))

    def _run(self, name: str, argument: str) -> None:
        try:
            find(name.strip()).run(self._conversation, argument)
        except SettingsError as error:
            # Drop ``error.argument``: it would be shown as a command-line flag, but the user typed a name after /set.
            raise SettingsError(error.message, hint=error.hint) from error
        self._autosave.save(self._conversation.session)
