"""Looks after memory while nobody asks for anything."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

from edge_spec.errors import EdgeSpecError

__all__ = ["EVERY_S", "IdleWatch"]

EVERY_S = 1.0
"""Between two looks. Replies look for themselves, before every round."""


class IdleWatch:
    """Calls a method every now and then, from a thread of its own, until its owner is gone or it is closed.

    A look that fails is not the last one: memory may be needed more then. What nobody foresaw is logged, once.

    Args:
        look: a method; whoever has it is not kept alive.
    """

    def __init__(self, look: Callable[[], object]) -> None:
        self._over = threading.Event()
        found = weakref.WeakMethod(look)
        self._thread = threading.Thread(
            target=_watch, args=(found, self._over, EVERY_S), name="edge-spec memory", daemon=True
        )
        # At the end of the program as well: a thread must not be inside a library that is being taken down.
        self._finish = weakref.finalize(look.__self__, _stop, self._over, self._thread)  # type: ignore[attr-defined]
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether it looks no more."""
        return not self._thread.is_alive()

    def close(self) -> None:
        """Look no more, and wait until a look that is under way has ended. Safe to call twice."""
        self._finish()


def _watch(look: weakref.WeakMethod[Callable[[], object]], over: threading.Event, every_s: float) -> None:
    was_logged = False
    while not over.wait(every_s):
        method = look()
        if method is None:
            return
        try:
            method()
        except (EdgeSpecError, MemoryError, OSError):
            # What could not be given back or taken now is tried again.
            pass
        except Exception as error:
            if not was_logged:
                was_logged = True
                kind = type(error).__name__
                logging.getLogger(__name__).warning("memory could not be looked after (%s: %s)", kind, error)
        del method


def _stop(over: threading.Event, thread: threading.Thread) -> None:
    over.set()
    # Its own look may have been the last to hold the owner.
    if thread is not threading.current_thread():
        thread.join()
