"""Ctrl-C: while a library computes, and during a conversation."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillWorking
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import TypeVar

__all__ = [
    "hears_interrupts",
    "interruptible",
    "keeps_what_is_drawn",
    "leaves_in_order",
    "raise_interrupt",
    "silent_keys",
]

T = TypeVar("T")


def interruptible(work: Callable[[], T], cancel: Callable[[], bool]) -> T:
    """Run ``work`` in another thread and return its result, while this thread waits for signals.

    Python runs signal handlers between two of its own instructions, so never while the main thread is inside
    a library. The first Ctrl-C calls ``cancel``, after which ``work`` must end soon. If ``cancel`` returns False,
    because there is nothing to cancel yet, or on a second Ctrl-C, the process ends at once.
    """
    outcome: Future[T] = Future()

    def body() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    asked = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked or not cancel():
            os._exit(130)
        asked = True

    with _handled(on_interrupt, signal.SIGINT):
        threading.Thread(target=body, daemon=True).start()
        while True:
            try:
                # Windows handles signals only when a wait ends.
                return outcome.result(timeout=0.2)
            except StillWorking:
                if outcome.done():
                    raise


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], object], *numbers: int) -> Iterator[None]:
    """Within the block these signals go to ``handler``."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def hears_interrupts(listener: Callable[[], object]) -> AbstractContextManager[None]:
    """Within the block Ctrl-C only calls ``listener``, which must be quick and reentrant."""
    return _handled(lambda number, frame: listener(), signal.SIGINT)


def leaves_in_order() -> AbstractContextManager[None]:
    """Within the block SIGTERM and the end of the terminal raise ``SystemExit``, so that the caller can save."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    return _handled(on_signal, signal.SIGTERM, *([signal.SIGHUP] if sys.platform != "win32" else []))


def raise_interrupt() -> None:
    """Raise ``KeyboardInterrupt``, as Python does by itself: a listener for ``hears_interrupts``."""
    raise KeyboardInterrupt


def silent_keys() -> AbstractContextManager[None]:
    """Within the block typed keys are not echoed but kept for the next line. Ctrl-C and the like still work."""
    return _terminal_flags(off="ECHO")


def keeps_what_is_drawn() -> AbstractContextManager[None]:
    """Within the block Ctrl-C discards nothing: by default a terminal drops output that it has not shown yet, and what
    was typed ahead (termios(3), NOFLSH)."""
    return _terminal_flags(on="NOFLSH")


@contextmanager
def _terminal_flags(*, on: str = "", off: str = "") -> Iterator[None]:
    """Set and clear a local flag of the terminal within the block; do nothing without a terminal."""
    try:
        import termios

        keys = sys.stdin.fileno()
        before = termios.tcgetattr(keys)
    except (ImportError, OSError, ValueError, AttributeError):
        # Not a terminal, or one of Windows.
        yield
        return
    except termios.error:
        yield
        return
    changed = list(before)
    changed[3] = (changed[3] | getattr(termios, on, 0)) & ~getattr(termios, off, 0)
    termios.tcsetattr(keys, termios.TCSANOW, changed)
    try:
        yield
    finally:
        termios.tcsetattr(keys, termios.TCSANOW, before)
