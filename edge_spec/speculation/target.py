"""A target, the slots of the texts that lie in its cells, and what drafts for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.pool import Path, Pool

__all__ = ["Target"]


class Target:
    """The slots of a target.

    A slot holds one text: a path through the target's cells, and a drafter. One decode can advance ``most_texts``.

    Args:
        first: the first slot.
        new_drafter: makes the drafter of a further slot, by its path.

    Attributes:
        pool: the target.
        slots: all slots, whether their texts are being written or not.
        latest: the slot whose text was begun last.
        draft_pools: the cells of the drafters' models.
    """

    def __init__(self, first: Slot, new_drafter: Callable[[Path], Drafter] = lambda path: NoDrafter()) -> None:
        self._new_drafter = new_drafter
        self.pool, self.latest = first.model.pool, first
        self.slots = [first]
        self.draft_pools = _pools_of(first.drafter)

    @property
    def drafter(self) -> Drafter:
        """Guesses what the target will write in the slot ``latest``."""
        return self.latest.drafter

    @property
    def text_bytes(self) -> int:
        """What a text takes besides cells, in the target and in the drafters' models, see ``Pool.text_bytes``."""
        return sum(pool.text_bytes for pool in (self.pool, *self.draft_pools))

    @property
    def most_texts(self) -> int:
        """How many texts one decode can advance; 1 where rows of several would not be those of a single text."""
        capabilities = self.pool.capabilities
        return min(capabilities.max_rows, self.pool.max_paths) if capabilities.widths else 1

    def add(self) -> Slot | None:
        """Return a further slot, which is empty; None where the target holds no more."""
        return self._added(self.pool.path()) if len(self.slots) < self.pool.max_paths else None

    def fork(self, source: Slot, n: int) -> Slot:
        """Return a further slot that begins with the first ``n`` tokens of another one, and shares their cells."""
        forked = self._added(source.model.fork(min(n, source.model.n_past)))
        forked.holds(source.text[:n])
        return forked

    def drop(self, slot: Slot) -> None:
        """Close a slot that is not the only one."""
        self.slots.remove(slot)
        if slot is self.latest:
            self.latest = self.slots[0]
        slot.drafter.close()
        slot.model.close()

    def _added(self, path: Path) -> Slot:
        try:
            slot = Slot(path, self._new_drafter(path))
        except BaseException:
            path.close()
            raise
        self.slots.append(slot)
        return slot

    def read(self, pieces: Sequence[tuple[Slot, Sequence[int]]]) -> None:
        """Commit the next tokens of several texts, see ``Slot.unread``."""
        self.pool.prefill([(slot.model, tokens) for slot, tokens in pieces])

    def change_drafters(self, new_drafter: Callable[[Path], Drafter] = lambda path: NoDrafter()) -> None:
        """Close all drafters and continue with others, or with none.

        Args:
            new_drafter: makes the drafter of each text.
        """
        self._close_drafters()
        self._new_drafter = new_drafter
        for slot in self.slots:
            slot.draft_with(new_drafter(slot.model))
        self.draft_pools = _pools_of(self.drafter)

    @property
    def held_bytes(self) -> int:
        """Memory that tables of the drafters take."""
        return sum(slot.drafter.held_bytes for slot in self.slots)

    def change_pool(self, pool: Pool) -> None:
        """Continue all texts with another target. What their cells lack is read when they are written on.

        The old target is not closed.
        """
        self.pool = pool
        for slot in self.slots:
            slot.change_target(pool.path())

    def forget(self) -> None:
        """Empty all texts and their cells."""
        for slot in self.slots:
            slot.forget()

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
        for slot in self.slots:
            slot.drafter.close()


def _pools_of(drafter: Drafter) -> list[Pool]:
    """Return the pools of a drafter's models."""
    return list({id(each.model.pool): each.model.pool for each in drafter.followed.values()}.values())
