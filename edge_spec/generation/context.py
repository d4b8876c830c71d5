"""How the text of a reply gets into the models' context, and what happens when that is full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from edge_spec.errors import PromptTooLong
from edge_spec.sampling import Sampler
from edge_spec.speculation.loop import Speculator

__all__ = ["Alone", "Context"]

Notice = Callable[[str], object]


class Context(Protocol):
    """Brings the text of a reply into the models, and keeps it inside their context."""

    @property
    def session(self) -> object | None:
        """The conversation whose text it is, and whose caches are resumed for it; None for a reply of its own."""

    def require_room(self, n_tokens: int, n_ctx: int) -> None:
        """Refuse a text of ``n_tokens`` that leaves no room for a reply.

        Raises:
            PromptTooLong: it cannot be made to fit either.
        """

    def begin(
        self, speculator: Speculator, text: Sequence[int], sampler: Sampler, *, resumed: bool, notice: Notice
    ) -> None:
        """Let the models read ``text``, the prompt and what is written of the reply.

        Args:
            resumed: the models' caches hold the text of ``session``, as far as it goes.
            notice: tells the reader something.
        """

    def make_room(self, speculator: Speculator, notice: Notice) -> bool:
        """The context is full: take something out of it. False if nothing can go; the reply then ends."""

    def can_shrink(self, speculator: Speculator, n_ctx: int) -> bool:
        """Whether the reply could continue in a context of ``n_ctx`` tokens, if necessary after ``make_room``."""


class Alone:
    """The context of a reply that belongs to no conversation."""

    session = None

    def require_room(self, n_tokens: int, n_ctx: int) -> None:
        if n_tokens >= n_ctx:
            raise PromptTooLong(n_prompt=n_tokens, n_ctx=n_ctx)

    def begin(
        self, speculator: Speculator, text: Sequence[int], sampler: Sampler, *, resumed: bool, notice: Notice
    ) -> None:
        """Read the prompt. Nothing is reused: an equal prompt gets an equal reply, whatever came before."""
        self.require_room(len(text), speculator.model.n_ctx)
        speculator.begin(text, sampler, reuse=False)

    def make_room(self, speculator: Speculator, notice: Notice) -> bool:
        """The prompt stays whole."""
        return False

    def can_shrink(self, speculator: Speculator, n_ctx: int) -> bool:
        return len(speculator.text) < n_ctx
