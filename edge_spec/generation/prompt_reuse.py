"""Prompts that begin like earlier texts: what the models have in their caches of those is not read again.

For replies that belong to no conversation: clients without a state send all of it each time. A cell is kept only where
reading the prompt again would compute the same bits, see ``Capabilities.reuse_step``; so nothing of the reply depends
on what came before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

from edge_spec.generation.context import Context, Notice
from edge_spec.generation.kept_texts import Entered, KeptTexts
from edge_spec.sampling import Sampler
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.text import common_prefix

__all__ = ["EarlierTexts", "ReusingContext"]

_MAX_TEXTS = 64
_WORTH_KEEPING = 32
"""Shorter beginnings are read again: that takes no longer than copying caches."""

_COPY_FROM = 8
"""A text of which less than this part is shared is not copied for it."""


class EarlierText:
    """The text of an earlier reply, under which its caches are suspended.

    Attributes:
        n_read: how many of its first tokens were read as a prompt.
        profile: the name of the numerics profile that computed its cells; empty before.
    """

    n_read = 0
    profile = ""


class EarlierTexts:
    """The texts of replies without a conversation; the session cache decides how many keep their caches."""

    def __init__(self) -> None:
        self._texts: OrderedDict[EarlierText, None] = OrderedDict()

    def enter(
        self, kept: KeptTexts, prompt: Sequence[int], twin: Speculator | None, n: int
    ) -> tuple[EarlierText, Speculator, int] | Literal[False] | None:
        """Let a prompt be written with the cells of the text that begins most like it.

        Args:
            twin: a text that is being written and begins with the same ``n`` tokens.

        Returns:
            Whose text it is now, the text, and how many tokens of the prompt need not be read; or what ``Entered`` is
            else.
        """
        pool, best, shared, length = kept.pool, None, 0, 0
        for owner, text in kept.texts():
            if isinstance(owner, EarlierText) and owner.profile == pool.profile.name:
                usable = _usable(owner, common_prefix(text, prompt[:-1]), pool.capabilities.reuse_step)
                if usable > shared:
                    best, shared, length = owner, usable, len(text)
        owner, source = EarlierText(), None
        if n > shared:
            best, shared = None, n
        elif best is None or shared < max(_WORTH_KEEPING, length // _COPY_FROM):
            shared, twin = 0, None
        elif shared * 2 >= length:
            # The prompt continues that text, or replaces no more than its last half.
            owner = best
        else:
            owner.n_read, owner.profile, source = best.n_read, best.profile, best
        entered = kept.enter(owner, len(prompt), source=source, twin=twin if best is None else None, n=shared)
        if not entered:
            return entered
        self._texts[owner] = None
        self._texts.move_to_end(owner)
        while len(self._texts) > _MAX_TEXTS:
            kept.release(self._texts.popitem(last=False)[0])
        return owner, entered[0], shared * entered[1]


class ReusingContext(Context):
    """The context of a reply of its own, whose prompt need not be read where an earlier text began like it."""

    def __init__(self, texts: EarlierTexts) -> None:
        self._texts = texts
        self._text = EarlierText()
        self._shared = 0

    def enter(self, kept: KeptTexts, owner: object, text: Sequence[int], twin: Speculator | None, n: int) -> Entered:
        entered = self._texts.enter(kept, text, twin, n)
        if not entered:
            return entered
        self._text, speculator, self._shared = entered
        self.session = self._text
        return speculator, self._shared > 0

    def begin(
        self, speculator: Speculator, text: Sequence[int], sampler: Sampler, *, resumed: bool, notice: Notice
    ) -> None:
        self.require_room(len(text), speculator.model.n_ctx)
        step = speculator.model.capabilities.reuse_step
        if self._shared and step > 1:
            # Beyond whole chunks others would begin elsewhere than in a fresh prompt.
            speculator.replace(min(self._shared, speculator.model.n_past // step * step), ())
            while speculator.model.n_past % step:
                # It went back further than it had to, into the middle of a chunk.
                speculator.replace(speculator.model.n_past // step * step, ())
        speculator.begin(text, sampler, reuse=self._shared > 0)
        self.n_reused = min(speculator.model.n_past, len(text))
        self._text.n_read, self._text.profile = len(text) - 1, speculator.model.profile.name


def _usable(text: EarlierText, shared: int, step: int) -> int:
    """Return how many of ``shared`` first tokens have cells that a fresh prompt would compute bit for bit."""
    if step > 1:
        shared = min(shared, text.n_read)
    return shared // step * step if step else 0
