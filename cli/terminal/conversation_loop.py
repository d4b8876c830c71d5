"""The loop of a conversation: read, answer or run a command, save."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Protocol

from edge_spec.chat import ChatSession
from edge_spec.cli.terminal.answer import show_answer
from edge_spec.cli.terminal.autosave import Autosave
from edge_spec.cli.terminal.commands import find
from edge_spec.cli.terminal.display import Display
from edge_spec.cli.terminal.files import Copies
from edge_spec.cli.terminal.interrupts import hears_interrupts, silent_keys
from edge_spec.cli.terminal.status import status_line
from edge_spec.cli.wording import in_options
from edge_spec.errors import EdgeSpecError, SettingsError
from edge_spec.generation.reply import Reply

__all__ = ["ConversationLoop", "Reader"]

_UNFINISHED = {
    "cancelled": "stopped; /continue resumes",
    "length": "stopped at the token limit; /continue resumes",
    "context": "stopped, the context is full; /undo or /clear makes room",
    "memory": "stopped, there is no memory left; close other programs, then /continue",
}
_LEAVING = ("exit", "quit")


class Reader(Protocol):
    """Where messages come from.

    Attributes:
        is_interactive: a person types, and can try again.
        can_edit: a line can begin with a text to be changed.
    """

    is_interactive: bool
    can_edit: bool

    def read(self, draft: str = "", status: str = "") -> str | None:
        """The next message; None at the end. Raises KeyboardInterrupt for Ctrl-C where nothing was typed."""


class ConversationLoop:
    """A conversation between a reader and a model, on a display.

    Args:
        on_answer: called after every answer.

    Attributes:
        copies: what ``/save`` has written.
        last_reply: the latest answer, for its statistics.
    """

    def __init__(
        self,
        session: ChatSession,
        *,
        reader: Reader,
        display: Display,
        autosave: Autosave,
        on_answer: Callable[[Reply], object] = lambda reply: None,
    ) -> None:
        self.reader = reader
        self.display = display
        self.autosave = autosave
        self.copies = Copies()
        self.last_reply: Reply | None = None
        self._on_answer = on_answer
        self._draft: str | None = None
        self._last_text = ""
        self._is_over = False
        self._use(session)

    def run(self) -> None:
        """Converse until one side leaves.

        Raises:
            EdgeSpecError, OSError: where no person could try again. KeyboardInterrupt: likewise.
        """
        # A person leaves in other ways; stopping a script ends it.
        ignored = hears_interrupts(lambda: None) if self.reader.is_interactive else nullcontext()
        with ignored:
            try:
                while not self._is_over:
                    self._turn()
            finally:
                self.autosave.save(self.session, at_the_end=True)

    def answer(self, reply: Reply) -> None:
        """Show an answer while it is being written.

        Raises:
            KeyboardInterrupt: it was stopped, and no person is there to continue.
        """
        self.last_reply = reply
        try:
            with silent_keys() if self.reader.is_interactive else nullcontext():
                show_answer(reply, self.display, self._status)
        finally:
            self.autosave.save(self.session)
        self._on_answer(reply)
        if reply.finish_reason == "cancelled" and not self.reader.is_interactive:
            raise KeyboardInterrupt
        if reply.finish_reason in _UNFINISHED:
            self.display.notice(_UNFINISHED[reply.finish_reason])
        elif not reply.text:
            self.display.notice("the answer is empty")

    def last_question(self) -> str:
        """The last question.

        Raises:
            SettingsError: there is none.
        """
        asked = [message.content for message in self.session.messages if message.role == "user"]
        if not asked:
            raise SettingsError("nothing has been said yet", hint="there is nothing to edit")
        return asked[-1]

    def edit_next(self, question: str) -> None:
        """The next line begins with ``question`` and replaces it."""
        self._draft = question

    def take(self, session: ChatSession) -> None:
        """Continue with another conversation."""
        self.session.close()
        self._use(session)
        self.forget_reply()

    def forget_reply(self) -> None:
        """There is no latest answer any more."""
        self.last_reply = None

    def leave(self) -> None:
        """This turn is the last one."""
        self._is_over = True

    def _use(self, session: ChatSession) -> None:
        self.session = session
        # Its notices come with its replies, in the thread that shows them.
        session.on_notice = lambda sentence: None

    def _turn(self) -> None:
        draft, self._draft = self._draft, None
        try:
            text = self.reader.read(draft or "", self._status(self.last_reply))
            if text is None:
                self.leave()
            else:
                self._do(text, draft)
        except KeyboardInterrupt:
            if not self.reader.is_interactive:
                raise
            self.display.notice("Ctrl-D or /quit leaves")
        except (EdgeSpecError, MemoryError) as error:
            if not self.reader.is_interactive:
                raise
            said = in_options(str(error))
            self.display.error(said or "out of memory; a smaller --ctx or a smaller model needs less")

    def _do(self, text: str, draft: str | None) -> None:
        if not text.strip():
            return
        # A message that was sent with a slash in front comes back with it.
        is_edited = draft is not None and draft.startswith("/")
        if text.startswith("/") and not text.startswith("//") and not is_edited:
            name, _, argument = text[1:].partition(" ")
            self._run(name, argument.strip())
            return
        if self.reader.is_interactive and text.strip().lower() in _LEAVING and text != self._last_text:
            self._last_text = text
            self.display.notice(f"/quit or Ctrl-D leaves; to send {text.strip()!r} as a message, type it again")
            return
        self._last_text = text
        if text.startswith("//") and not is_edited:
            text = text[1:]
        self.answer(self.session.send(text) if draft is None else self.session.edit(text))

    def _run(self, name: str, argument: str) -> None:
        try:
            find(name.strip()).run(self, argument)
        except SettingsError as error:
            # What was set here is not an option of the command line.
            raise SettingsError(error.message, hint=error.hint) from error
        self.autosave.save(self.session)

    def _status(self, reply: Reply | None) -> str:
        if reply is not None and reply.finish_reason is None:
            n_used = min(len(reply.prompt) + len(reply.token_ids), self.session.model.n_ctx)
        else:
            n_used = self.session.n_seen
        return status_line(self.session.model, reply, n_used)
