"""An answer in a conversation, as it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from edge_spec.chat.messages import Thinking
from edge_spec.generation.lock import Turns, TurnTaking
from edge_spec.generation.session_cache import Holder

__all__ = ["ChatReply"]


class ChatReply(TurnTaking):
    """A ``Reply`` whose text becomes a message of its conversation, however it ends.

    Attributes:
        is_taken_down: it has ended, and the conversation holds it.

    Args:
        opening: what the prompt has written of the answer already, such as the mark that opens a thought.
    """

    def __init__(
        self,
        turns: Turns,
        *args: Any,
        holder: Holder,
        on_end: Callable[[ChatReply], None],
        on_notice: Callable[[str], object],
        opening: str = "",
        **more: Any,
    ) -> None:
        # Until it is whole, there is nothing to take down.
        self.is_taken_down = True
        self._on_notice = on_notice
        self._on_end = on_end
        self._opening = opening
        super().__init__(turns, *args, **more)
        self.holder = holder
        self.is_taken_down = False

    @property
    def content(self) -> str:
        """All of the answer so far, thoughts and what an earlier reply wrote of it included."""
        return self._opening + self.whole

    def parts(self) -> Iterator[tuple[bool, str]]:
        """Writes the reply like iterating does, as pairs: whether it is a thought of the model, and the text."""
        thinking = Thinking(self.content)
        for piece in self:
            yield from thinking.push(piece)
        yield from thinking.finish()

    def notice(self, sentence: str) -> None:
        super().notice(sentence)
        self._on_notice(sentence)

    def _take_down(self) -> None:
        if not self.is_taken_down:
            self._on_end(self)
            self.is_taken_down = True

    def __del__(self) -> None:
        # Whoever stops reading and drops a reply has cancelled it.
        if not self.is_taken_down:
            self._end("cancelled")
        super().__del__()
