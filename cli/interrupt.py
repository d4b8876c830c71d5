"""Ctrl-C that works while a library computes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillWorking
from types import FrameType
from typing import TypeVar

__all__ = ["interruptible"]

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

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        threading.Thread(target=body, daemon=True).start()
        while True:
            try:
                # Windows handles signals only when a wait ends.
                return outcome.result(timeout=0.2)
            except StillWorking:
                if outcome.done():
                    raise
    finally:
        signal.signal(signal.SIGINT, previous)
