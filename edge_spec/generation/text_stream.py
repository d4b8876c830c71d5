"""From tokens to text as it streams: UTF-8 never torn, stop strings never shown."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from edge_spec.errors import SettingsError

__all__ = ["TextStream", "overlap", "stops_of"]


def stops_of(stop: object) -> tuple[str, ...]:
    """Stop strings as they are given: one, several or none.

    Raises:
        SettingsError: one is empty, or no text.
    """
    found = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, Iterable) else (stop,) if stop else ()
    if not all(isinstance(text, str) and text for text in found):
        raise SettingsError(
            "must be texts that are not empty", argument="stop", hint="give texts of at least one character"
        )
    return found


class TextStream:
    """Turns the bytes of tokens into text, holding back what may still become something else.

    Held back are bytes that are not a whole character yet, and text that may be the beginning of a stop string.
    Bytes that can be no character become U+FFFD. A text that ends within a character ends before it: what continues the
    text shows it.

    Args:
        stop: strings that end the text; what precedes the first one to be completed is kept, it and all after
            it are not.

    Attributes:
        stopped_by: the one that came first.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped_by: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string came."""
        return self.stopped_by is not None

    def push(self, piece: bytes) -> str:
        """Add a token's bytes; returns the text that is certain now."""
        return self._release(self._decoder.decode(piece))

    def finish(self) -> str:
        """No more tokens come; returns the text that was held back."""
        text, self._held = self._held, ""
        return text

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        if not self._stop:
            return text
        self._held += text
        ends = [(self._held.find(stop), stop) for stop in self._stop if stop in self._held]
        if ends:
            place, self.stopped_by = min(ends)
            text, self._held = self._held[:place], ""
            return text
        n = max((overlap(self._held, stop) for stop in self._stop), default=0)
        text = self._held[: len(self._held) - n]
        self._held = self._held[len(self._held) - n :]
        return text


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``stop``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)
