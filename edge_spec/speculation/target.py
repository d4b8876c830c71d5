"""A target, the texts that lie in its cells, and what drafts for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.pool import Path, Pool

__all__ = ["Target"]


class Target:
    """All texts of a target.

    Each text is a path through the target's cells, and one decode can advance as many as there can be.

    Each text has a drafter. Where further texts have none with models, since these know one text each, the first one
    sits with the text that is written.

    Args:
        seat: the first text, with the drafter.
        drafter_beside: makes a drafter for a further text, by its path.

    Attributes:
        pool: the target.
        texts: the texts, whether somebody writes them or not.
        seat: the text that is written alone, or was.
        draft_pools: the cells of the drafters' models.
    """

    def __init__(self, seat: Speculator, drafter_beside: Callable[[Path], Drafter] = lambda path: NoDrafter()) -> None:
        self._drafter_beside = drafter_beside
        self.pool, self.seat = seat.model.pool, seat
        self.texts = [seat]
        self.draft_pools = _pools_of(seat.drafter)

    @property
    def drafter(self) -> Drafter:
        """Guesses what the target will write in the text of ``seat``."""
        return self.seat.drafter

    @property
    def text_bytes(self) -> int:
        """What a text takes besides cells, in the target and in the drafters' models, see ``Pool.text_bytes``."""
        return sum(pool.text_bytes for pool in (self.pool, *self.draft_pools))

    @property
    def most_texts(self) -> int:
        """How many texts one decode can advance; 1 where rows of several would not be those of a single text."""
        capabilities = self.pool.capabilities
        return min(capabilities.max_rows, self.pool.max_paths) if capabilities.widths else 1

    def add(self) -> Speculator | None:
        """Return a further text, empty and without a drafter; None where the target holds no more."""
        return self._added(self.pool.path()) if len(self.texts) < self.pool.max_paths else None

    def fork(self, source: Speculator, n: int) -> Speculator:
        """Return a further text that begins with the first ``n`` tokens of another one, and shares their cells."""
        forked = self._added(source.model.fork(min(n, source.model.n_past)))
        forked.holds(source.text[:n])
        return forked

    def drop(self, text: Speculator) -> None:
        """Close a text other than ``seat``, which has the drafter."""
        self.texts.remove(text)
        text.drafter.close()
        text.model.close()

    def _added(self, path: Path) -> Speculator:
        text = Speculator(path, self._drafter_beside(path))
        self.texts.append(text)
        return text

    def drafts_for(self, text: Speculator) -> bool:
        """Return whether a text has all that drafts, without that of ``seat``."""
        return text is self.seat or text.drafter.followed.keys() == self.drafter.followed.keys()

    def sit_at(self, text: Speculator, *, is_begun: bool) -> None:
        """Let the drafter draft for another text, which has none of its own, see ``drafts_for``.

        Args:
            is_begun: it is being written; if not, ``Speculator.begin`` comes next.
        """
        former, drafter = self.seat, self.drafter
        self.seat = text
        former.draft_with(text.drafter)
        if is_begun:
            text.draft_with(drafter)
        else:
            text.drafter = drafter

    def read(self, pieces: Sequence[tuple[Speculator, Sequence[int]]]) -> None:
        """Commit the next tokens of several texts, see ``Speculator.unread``."""
        self.pool.prefill([(text.model, tokens) for text, tokens in pieces])

    def change_drafter(
        self, drafter: Drafter | None, drafter_beside: Callable[[Path], Drafter] = lambda path: NoDrafter()
    ) -> None:
        """Close all drafters and continue with others, or with none.

        Args:
            drafter_beside: makes a drafter for each of the other texts.
        """
        self._close_drafters()
        self._drafter_beside = drafter_beside
        self.draft_pools = _pools_of(drafter) if drafter is not None else []
        for text in self.texts:
            text.draft_with(drafter or NoDrafter() if text is self.seat else drafter_beside(text.model))

    @property
    def held_bytes(self) -> int:
        """Memory that tables of the drafters take."""
        return sum(text.drafter.held_bytes for text in self.texts)

    def change_pool(self, pool: Pool) -> None:
        """Continue all texts with another target. What their cells lack is read when they are written on.

        The old target is not closed.
        """
        self.pool = pool
        for text in self.texts:
            text.change_target(pool.path())

    def forget(self) -> None:
        """Empty all texts and their cells."""
        for text in self.texts:
            text.forget()

    def cancel(self) -> None:
        """Make what the target or the drafter computes, in another thread, raise ``Cancelled``."""
        for pool in (self.pool, *self.draft_pools):
            pool.cancel()

    def resume(self) -> None:
        """Forget a ``cancel`` that nothing has answered yet."""
        for pool in (self.pool, *self.draft_pools):
            pool.resume()

    def close(self) -> None:
        """Free the target and the drafters."""
        self._close_drafters()
        self.pool.close()

    def _close_drafters(self) -> None:
        for text in self.texts:
            text.drafter.close()


def _pools_of(drafter: Drafter) -> list[Pool]:
    """Return the pools of a drafter's models."""
    return list({id(each.model.pool): each.model.pool for each in drafter.followed.values()}.values())
