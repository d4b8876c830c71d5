"""A conversation on a display: its state, its streamed answers, and changes by commands."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Protocol

from edge_spec.chat import ChatSession
from edge_spec.chat.chat_model import ChatModel
from edge_spec.cli.interrupt import hears_interrupts, silent_keys
from edge_spec.cli.terminal.autosave import Autosave
from edge_spec.cli.terminal.display import Display
from edge_spec.cli.terminal.files import Copies
from edge_spec.cli.terminal.status import status_line
from edge_spec.errors import SettingsError
from edge_spec.generation.reply import Reply

__all__ = ["Conversation", "Reader", "show_answer"]

_UNFINISHED = {
    "cancelled": "stopped; /continue resumes",
    "length": "stopped at the token limit; /continue resumes",
    "context": "stopped, the context is full; /undo or /clear makes room",
    "memory": "stopped, there is no memory left; close other programs, then /continue",
}


class Reader(Protocol):
    """A source of messages.

    Attributes:
        is_interactive: a person types, and can try again.
        can_edit: a line can begin with a text to be changed.
    """

    is_interactive: bool
    can_edit: bool

    def read(self, draft: str = "", status: str = "") -> str | None:
        """Return the next message; None at the end. Raises KeyboardInterrupt for Ctrl-C where nothing was typed."""


class Conversation:
    """A conversation between a reader and a model, on a display.

    Args:
        on_answer: called after every answer.
        model_for: returns the model to go on with a saved conversation, which may be opened anew for that; if None it
            is the one that is open.

    Attributes:
        copies: what ``/save`` has written.
        last_reply: the latest answer, for its statistics.
        draft: text in the next line, of a message to replace; None if there is none.
        last_text: the last line that was read and is no command.
        is_over: the current turn is the last one.
    """

    def __init__(
        self,
        session: ChatSession,
        *,
        reader: Reader,
        display: Display,
        autosave: Autosave,
        on_answer: Callable[[Reply], object] = lambda reply: None,
        model_for: Callable[[Path], ChatModel] | None = None,
    ) -> None:
        self.reader = reader
        self.display = display
        self.autosave = autosave
        self.copies = Copies()
        self.last_reply: Reply | None = None
        self.draft: str | None = None
        self.is_over = False
        self.last_text = ""
        self._on_answer = on_answer
        self._model_for = model_for
        self._use(session)

    def answer(self, reply: Reply) -> None:
        """Show an answer while it is being written.

        Raises:
            KeyboardInterrupt: it was stopped, and no person is there to continue.
        """
        self.last_reply = reply
        try:
            with silent_keys() if self.reader.is_interactive else nullcontext():
                show_answer(reply, self.display, self.status)
        finally:
            # The reader may be gone before it began: keep what has been written.
            reply.close()
            self.autosave.save(self.session)
        self._on_answer(reply)
        if reply.finish_reason == "cancelled" and not self.reader.is_interactive:
            raise KeyboardInterrupt
        if self.display.thoughts == "hide" and reply.is_all_thought:
            self.display.notice("all of the answer is thought, which is not shown; see it with /set thoughts show")
        if reply.finish_reason in _UNFINISHED:
            self.display.notice(_UNFINISHED[reply.finish_reason])
        elif not reply.text:
            self.display.notice("the answer is empty")

    def last_question(self) -> str:
        """Return the last question.

        Raises:
            SettingsError: there is none.
        """
        asked = [message.content for message in self.session.messages if message.role == "user"]
        if not asked:
            raise SettingsError("nothing has been said yet", hint="there is nothing to edit")
        return asked[-1]

    def model_for(self, path: Path) -> ChatModel:
        """Return the model to go on with a saved conversation; without one, the turn is the last.

        Raises:
            OSError, EdgeSpecError: the file cannot be read, or the model not be opened.
        """
        try:
            return self._model_for(path) if self._model_for is not None else self.session.model
        finally:
            self.is_over = self.session.model.worker.is_closed

    def take(self, session: ChatSession) -> None:
        """Continue with another conversation."""
        self.session.close()
        self._use(session)
        self.last_reply, self.is_over = None, False

    def _use(self, session: ChatSession) -> None:
        self.session = session
        # Notices come with replies, in the thread that shows them.
        session.on_notice = lambda sentence: None

    def status(self, reply: Reply | None) -> str:
        """Return the status line.

        Args:
            reply: the answer that it is about; None before the first one.
        """
        if reply is not None and reply.finish_reason is None:
            n_used = min(len(reply.prompt) + len(reply.token_ids), self.session.model.n_ctx)
        else:
            n_used = self.session.n_seen
        return status_line(self.session.model, reply, n_used)


_REFRESH_S = 0.1

Event = tuple[bool, str] | BaseException | None


def show_answer(reply: Reply, display: Display, status: Callable[[Reply], str]) -> None:
    """Write a reply in another thread and show it; Ctrl-C stops it and keeps what has been written.

    Python runs signal handlers only in the main thread, and only between two of its own instructions. So the main
    thread waits here, and the library computes in the other one.

    Raises:
        EdgeSpecError: the reply failed; what was written has been shown.
    """
    # Its put() is reentrant: a signal handler may call it in the middle of another put().
    events: SimpleQueue[Event | str] = SimpleQueue()

    def body() -> None:
        try:
            for part in reply.parts():
                events.put(part)
            events.put(None)
        except BaseException as error:
            events.put(error)

    thread = threading.Thread(target=body, daemon=True)
    seen: set[str] = set()
    draw_at = 0.0
    error: BaseException | None = None
    display.begin()
    try:
        with hears_interrupts(lambda: events.put("interrupted")):
            thread.start()
            while True:
                event = _next(events)
                for notice in tuple(reply.notices):
                    # The context can fill up repeatedly; say so once.
                    if notice not in seen:
                        seen.add(notice)
                        display.notice(notice)
                if event is None or isinstance(event, BaseException):
                    error = event
                    break
                if event == "interrupted":
                    reply.cancel()
                elif isinstance(event, tuple):
                    display.write(event[1], thought=event[0])
                begun = monotonic()
                if begun >= draw_at:
                    display.refresh(status(reply))
                    # Drawing takes time from the model: at most a tenth of it.
                    draw_at = monotonic() + max(_REFRESH_S, 9 * (monotonic() - begun))
    finally:
        # Also if the display fails: the model must not keep writing.
        reply.cancel()
        if thread.ident is not None:
            thread.join()
    display.end()
    if error is not None:
        raise error


def _next(events: SimpleQueue[Event | str]) -> Event | str:
    try:
        # Windows handles signals only when a wait ends.
        return events.get(timeout=_REFRESH_S)
    except Empty:
        return ""
