"""Ctrl-C during a conversation."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["hears_interrupts", "silent_keys"]


@contextmanager
def hears_interrupts(listener: Callable[[], object]) -> Iterator[None]:
    """Inside, Ctrl-C only calls ``listener``, which must be quick and reentrant."""

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        listener()

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def silent_keys() -> Iterator[None]:
    """Inside, typed keys are not echoed but kept for the next line. Ctrl-C and the like still work."""
    try:
        import sys
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
    silent = list(before)
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(keys, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(keys, termios.TCSANOW, before)
