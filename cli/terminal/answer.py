"""Shows one answer while the model writes it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic

from edge_spec.cli.terminal.display import Display
from edge_spec.cli.terminal.interrupts import hears_interrupts
from edge_spec.generation.reply import Reply

__all__ = ["show_answer"]

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
                if event is None or isinstance(event, BaseException):
                    error = event
                    break
                if event == "interrupted":
                    reply.cancel()
                elif isinstance(event, tuple):
                    display.write(event[1], thought=event[0])
                for notice in tuple(reply.notices):
                    # The context can fill up repeatedly; that is said once.
                    if notice not in seen:
                        seen.add(notice)
                        display.notice(notice)
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
