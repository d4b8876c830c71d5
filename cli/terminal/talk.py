"""The loop of a talk: read, answer or obey, save."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Protocol

from edge_spec.chat import ChatReply, ChatSession
from edge_spec.cli.terminal.answer import show_answer
from edge_spec.cli.terminal.autosave import Autosave
from edge_spec.cli.terminal.commands import find
from edge_spec.cli.terminal.display import Display
from edge_spec.cli.terminal.interrupts import hears_interrupts, silent_keys
from edge_spec.cli.terminal.status import status_line
from edge_spec.errors import EdgeSpecError, SettingsError

__all__ = ["Reader", "Talk"]

_UNFINISHED = {
    "cancelled": "stopped; /continue goes on",
    "length": "stopped at the most tokens; /continue goes on",
    "context": "stopped, the context is full; /undo or /clear makes room",
    "memory": "stopped, there is no memory left; close other programs, then /continue",
}


class Reader(Protocol):
    """Where messages come from.

    Attributes:
        is_interactive: a person sits there, who can try again.
        can_edit: a line can begin with a text to be changed.
    """

    is_interactive: bool
    can_edit: bool

    def read(self, draft: str = "", status: str = "") -> str | None:
        """The next message; None at the end. Raises KeyboardInterrupt for Ctrl-C where nothing was typed."""


class Talk:
    """A conversation between whoever ``reader`` reads and a model, on a display.

    Args:
        on_answer: called after every answer.

    Attributes:
        last_reply: the latest answer, for its statistics.
    """

    def __init__(
        self,
        session: ChatSession,
        *,
        reader: Reader,
        display: Display,
        autosave: Autosave,
        on_answer: Callable[[ChatReply], object] = lambda reply: None,
    ) -> None:
        self.reader = reader
        self.display = display
        self.autosave = autosave
        self.last_reply: ChatReply | None = None
        self._on_answer = on_answer
        self._draft: str | None = None
        self._is_over = False
        self._hear(session)

    def run(self) -> None:
        """Talk until one side leaves.

        Raises:
            EdgeSpecError, OSError: without a person who could try again. KeyboardInterrupt: likewise.
        """
        # A person leaves in other ways; to stop a script is to end it.
        ignored = hears_interrupts(lambda: None) if self.reader.is_interactive else nullcontext()
        with ignored:
            try:
                while not self._is_over:
                    self._turn()
            finally:
                self.autosave.save(self.session, at_the_end=True)

    def answer(self, reply: ChatReply) -> None:
        """Show an answer while it is being written.

        Raises:
            KeyboardInterrupt: it was stopped, and nobody is there to go on.
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

    def last_question(self) -> str:
        """What was asked last.

        Raises:
            SettingsError: nothing was.
        """
        asked = [message.content for message in self.session.messages if message.role == "user"]
        if not asked:
            raise SettingsError("nothing has been said yet", hint="there is nothing to edit")
        return asked[-1]

    def edit_next(self, question: str) -> None:
        """The next line begins with ``question`` and takes its place."""
        self._draft = question

    def take(self, session: ChatSession) -> None:
        """Go on with another conversation."""
        self.session.close()
        self._hear(session)
        self.forget_reply()

    def forget_reply(self) -> None:
        """There is no latest answer any more."""
        self.last_reply = None

    def leave(self) -> None:
        """This turn is the last one."""
        self._is_over = True

    def _hear(self, session: ChatSession) -> None:
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
            self.display.error(str(error) or "out of memory; a smaller --ctx or a smaller model needs less")

    def _do(self, text: str, draft: str | None) -> None:
        if not text.strip():
            return
        # What was said with a slash in front comes back with it.
        is_edited = draft is not None and draft.startswith("/")
        if text.startswith("/") and not text.startswith("//") and not is_edited:
            name, _, argument = text[1:].partition(" ")
            self._obey(name, argument.strip())
            return
        if text.startswith("//") and not is_edited:
            text = text[1:]
        self.answer(self.session.send(text) if draft is None else self.session.edit(text))

    def _obey(self, name: str, argument: str) -> None:
        find(name.strip()).run(self, argument)
        self.autosave.save(self.session)

    def _status(self, reply: ChatReply | None) -> str:
        if reply is not None and reply.finish_reason is None:
            n_used = min(len(reply.prompt) + len(reply.token_ids), self.session.model.n_ctx)
        else:
            n_used = self.session.n_seen
        return status_line(self.session.model, reply, n_used)
