"""Which conversation, or other text, lies in which cells of the target, and which waits outside."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Literal, TypeAlias

from edge_spec.errors import BudgetExceeded, Closed, EdgeSpecError, PoolFull, StateError, UnfinishedReply
from edge_spec.generation.session_cache import SessionCache, SuspendedCaches
from edge_spec.generation.worker import Worker
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.pool import TILE, Pool
from edge_spec.speculation.target import Target

__all__ = ["TEXTS", "Entered", "KeptTexts"]

TEXTS = ("texts", "caches")
"""The ledger's line of what texts take beyond the plan."""

_STEPS = (1, 2, 4, 8, 16, 32)
"""A pool grows by the largest of these parts of it that fits, and is not made smaller by less than the last one. All
that is held is copied each time: twice as many cells at a time make that rare."""

_SPARE = 2
"""While memory is not scarce a pool keeps so many times the cells that texts hold: the next texts need them again."""

_DRAFT_STEP = 4
"""A pool of a drafter's model grows by this part of it at least."""

Entered: TypeAlias = tuple[Speculator, bool] | Literal[False] | None
"""A text that may be written now, and whether its cells have the tokens that it begins with; False while others need
the cells, None while the twin with whose cells it begins has not read them yet."""


class KeptTexts:
    """The texts of a target and who they belong to.

    A text that nobody writes stays in its cells until others need them; then the one that was used least recently is
    suspended: copied into the session cache, from which it is resumed. An engine that holds one text suspends it
    whenever another one comes. Everything but ``copied``, ``settle``, ``suspend`` and ``release`` is for the
    worker, or for whoever has paused it.

    Attributes:
        cache: caches of suspended texts.
        n_evicted: cells that texts had and others needed, since the model was opened.
    """

    def __init__(self, target: Target, worker: Worker[Any], cache: SessionCache) -> None:
        self.cache = cache
        self.n_evicted = 0
        self._target = target
        self._worker = worker
        # Texts that nobody writes, by owner, the one used last at the end; those of no owner are not here.
        self._idle: weakref.WeakKeyDictionary[object, Speculator] = weakref.WeakKeyDictionary()
        self._written: dict[int, Speculator] = {}
        # Cells that the pool had when the model was opened: those of the plan.
        self._n_planned = target.pool.n_cells
        # The same of the pools of drafters' models.
        self._draft_planned: weakref.WeakKeyDictionary[Pool, int] = weakref.WeakKeyDictionary()

    @property
    def pool(self) -> Pool:
        """The target."""
        return self._target.pool

    # --- texts that are written

    def enter(
        self,
        owner: object,
        n_tokens: int,
        *,
        source: object | None = None,
        twin: Speculator | None = None,
        n: int = 0,
    ) -> Entered:
        """Let a text be written: with the cells that its owner has, or empty.

        Args:
            owner: a conversation, or whoever else the text belongs to.
            n_tokens: of the whole text; cells for as many, and for a draft, are given to it.
            source, twin: for a new owner, the one with whose first ``n`` tokens the text begins, and which keeps its
                own; or a text that is being written and begins so.
        """
        text = self._idle.pop(owner, None) if source is None else None
        has_text = text is not None and bool(text.text)
        if text is None:
            forked = twin if source is None else self._idle.get(source)
            if forked is not None and forked is twin and forked.model.n_past < n:
                return None
            text = self._fork(forked, n) if forked is not None else None
            has_text = text is not None
        if text is not None and not self._has_room(text):
            self._idle[owner] = text
            return False
        if text is None:
            text = self._empty()
            if text is None or not self._has_room(text):
                return False
            has_text = self._restored(text, owner if source is None else source, keep=source is not None)
        n_ctx, max_rows = self.pool.n_ctx, self.pool.capabilities.max_rows
        # Cells of prompts that are still being read are taken only then.
        unread = sum(max(0, len(each.text) - each.model.n_past) for each in self._written.values())
        self._written[id(text)] = text
        n_more = min(n_tokens, n_ctx) - text.model.n_past + max_rows
        if not self._frees(text, n_more + unread):
            self.leave(owner if has_text else None, text)
            return False
        self.gives_draft_cells(min(n_tokens, n_ctx) + max_rows, text)
        return text, has_text

    def leave(self, owner: object | None, text: Speculator) -> None:
        """A text is not written any more; it is kept for its owner, if there is one."""
        self._written.pop(id(text), None)
        if owner is not None:
            self._idle[owner] = text

    def preempt(self, owner: object, text: Speculator) -> None:
        """A text has to wait although it is being written: others have its cells until it enters again."""
        self.leave(owner, text)
        self._suspend(owner)

    def sit_at(self, text: Speculator, owner: object | None, *, is_begun: bool) -> None:
        """Let the drafter draft for a text that is written. What its models know of another one is kept."""
        seat = self._target.seat
        if self._target.drafts_for(text):
            self._target.seat = text
            return
        former = next((each for each, kept in self._idle.items() if kept is seat), None)
        if former is not None and seat.drafter.followed:
            with suppress(EdgeSpecError, MemoryError):
                with self.cache.suspended(seat, target=False) as caches:
                    pass
                self.cache.put(former, caches)
        self._target.sit_at(text, is_begun=is_begun)
        if not is_begun:
            with self.cache.borrowed(owner) as known:
                if known is not None:
                    text.drafter.restore(known.states, known.text)

    def _fork(self, source: Speculator, n: int) -> Speculator | None:
        if self.pool.max_paths == 1:
            # A copy of the cells is restored instead.
            return None
        with suppress(PoolFull, MemoryError):
            if self._has_room(None, spare=source) and self._frees(source, TILE, spare=source):
                self._drop_others(source)
                return self._target.fork(source, n)
        return None

    def _drop_others(self, spare: Speculator) -> None:
        """Have room for a further text: of those of nobody a few stay, and there are no more than there may be."""
        target = self._target
        unowned = [each for each in self.unowned() if target.may_drop(each) and each is not spare]
        n_over = len(target.texts) + 1 - target.pool.max_paths
        for text in unowned[: max(0, n_over, len(unowned) - target.most_texts)]:
            target.drop(text)
        owners = [owner for owner, text in self._idle.items() if target.may_drop(text) and text is not spare]
        for owner in owners[: max(0, n_over - len(unowned))]:
            target.drop(self._suspend(owner))

    def _empty(self) -> Speculator | None:
        """Return an empty text that nobody has; None if there is none to be had."""
        text = next(self.unowned(), None) or self._target.add()
        if text is None and self._idle:
            text = self._suspend(next(iter(self._idle)))
        if text is not None:
            text.forget()
        return text

    def _restored(self, text: Speculator, owner: object, *, keep: bool) -> bool:
        """Move suspended caches into the models; False if there are none, or the models cannot take them."""
        try:
            with self.cache.borrowed(owner) as caches:
                if caches is None or "target" not in caches.states:
                    return False
                self._frees(text, len(caches.text))
                text.restore(caches.states, caches.text)
                return True
        except (BudgetExceeded, PoolFull, StateError):
            return False
        finally:
            if not keep:
                self.cache.drop(owner)

    # --- memory

    def _has_room(self, text: Speculator | None, *, spare: Speculator | None = None) -> bool:
        """Have memory for what one more text takes besides cells, which is to be written; whether there is."""
        if not self._target.text_bytes or (text is not None and text.model.n_past):
            return True
        while not self.claims(1):
            others = [each for each in self.unowned() if each.model.n_past and each is not spare and each is not text]
            owner = next((owner for owner, each in self._idle.items() if each.model.n_past and each is not spare), None)
            if others:
                self._evict(others[0])
            elif owner is not None:
                self._suspend(owner)
            else:
                return False
        return True

    def claims(self, n_more: int = 0) -> bool:
        """Claim what the texts take beyond the plan, and ``n_more`` that have no token yet; whether there is room.

        For what is only kept there is no more room than it may take.
        """
        is_needed = not any(each.model.n_past for each in self._idle.values())
        return self._claimed(self._beyond(self.pool.n_cells, n_more), is_needed=is_needed)

    def _beyond(self, n_cells: int, n_more: int = 0) -> int:
        """Return what the texts take beyond the plan with so many cells, and ``n_more`` that have no token yet."""
        n_texts = n_more + sum(each.model.n_past > 0 or id(each) in self._written for each in self._target.texts)
        drafts = self._target.draft_pools
        further = sum((each.n_cells - self._planned_of(each)) * each.cell_bytes for each in drafts)
        return (
            (n_cells - self._n_planned) * self.pool.cell_bytes + max(0, n_texts - 1) * self._target.text_bytes + further
        )

    def _planned_of(self, drafts: Pool) -> int:
        """Return the cells that a pool of a drafter's model had when it was opened."""
        return self._draft_planned.setdefault(drafts, drafts.n_cells)

    def _claimed(self, n_bytes: int, *, is_needed: bool = True) -> bool:
        """Claim so many bytes beyond the plan; whether they can be had. What is held stays claimed if not."""
        ledger = self.cache.ledger
        try:
            if is_needed or n_bytes <= self.cache.limit_bytes:
                ledger.set(*TEXTS, n_bytes)
                ledger.measure(*TEXTS, n_bytes)
                return True
        except BudgetExceeded:
            with suppress(BudgetExceeded):
                ledger.set(*TEXTS, self._beyond(self.pool.n_cells))
        return False

    # --- cells

    def _frees(self, text: Speculator, n: int, *, spare: Speculator | None = None) -> bool:
        """Have cells free for ``n`` more tokens of a text; whether there are."""
        while (lacking := self.pool.n_more(text.model, n) - self.pool.n_free) > 0:
            if not self.gives_cells(lacking, spare=spare):
                return False
        return True

    def gives_cells(self, n: int, *, spare: Speculator | None = None) -> bool:
        """Free ``n`` cells, or those of one text that nobody writes; whether there was anything to free.

        Texts of no owner go first; then there are more cells, as far as memory allows; then texts are suspended that
        were used least recently.
        """
        unowned = next((each for each in self.unowned() if each.model.n_past and each is not spare), None)
        owner = next((owner for owner, each in self._idle.items() if each is not spare), None)
        if unowned is not None:
            self._evict(unowned)
        elif not self._grow(n, is_needed=owner is None):
            if owner is None:
                return False
            self._suspend(owner)
        return True

    def unowned(self) -> Iterator[Speculator]:
        """Yield the texts that belong to nobody, the first text before others."""
        owned = {id(text) for text in self._idle.values()} | self._written.keys()
        return (text for text in self._target.texts if id(text) not in owned)

    def _grow(self, n: int, *, is_needed: bool) -> bool:
        """Have ``n`` more cells, if the budget has room for them; for what is only kept no more than it may take."""
        pool = self.pool
        most = self._n_planned + self._target.most_texts * pool.n_ctx
        # For what is only kept small steps are not worth it.
        steps = [max(n, pool.n_cells // part) for part in _STEPS]
        for step in (*steps, n) if is_needed else steps:
            n_cells = pool.n_cells + step + -step % TILE
            if n_cells <= most and self._resized(n_cells, is_needed=is_needed):
                return True
        return False

    def _resized(self, n_cells: int, *, is_needed: bool = True) -> bool:
        try:
            if self._claimed(self._beyond(n_cells), is_needed=is_needed):
                self.pool.resize(n_cells)
                return True
        except MemoryError:
            self._claimed(self._beyond(self.pool.n_cells))
        return False

    def gives_draft_cells(self, n: int, text: Speculator | None = None) -> None:
        """Have cells free for drafts of a text of so many tokens, or for ``n`` more tokens of those that are written.

        Drafters of texts that nobody writes give theirs; then there are more cells where several texts are written, as
        far as memory allows. Where cells lack nothing is drafted.
        """
        for pool in self._target.draft_pools:
            held = text.drafter.followed.values() if text is not None else ()
            needed = n - sum(each.model.n_past for each in held if each.model.pool is pool)
            if needed <= pool.n_free:
                continue
            for idle in [*self.unowned(), *self._idle.values()]:
                idle.drafter.restore({}, ())
                if needed <= pool.n_free:
                    break
            else:
                if len(self._written) > 1:
                    n_more = max(needed - pool.n_free, pool.n_cells // _DRAFT_STEP)
                    self._resize_drafts(pool, pool.n_cells + n_more + -n_more % TILE)

    def _resize_drafts(self, drafts: Pool, n_cells: int) -> None:
        self._planned_of(drafts)
        now = self._beyond(self.pool.n_cells)
        with suppress(MemoryError):
            if self._claimed(now + (n_cells - drafts.n_cells) * drafts.cell_bytes):
                drafts.resize(n_cells)
        self._claimed(self._beyond(self.pool.n_cells))

    def shrink(self, *, is_scarce: bool = False) -> None:
        """Give back what no text holds, as far as there is more than planned: all of it where memory is scarce."""
        pool = self.pool
        if self._beyond(pool.n_cells):
            n_times = 1 if is_scarce else _SPARE
            for text in self.unowned():
                self._empty_out(text)
            for drafts in self._target.draft_pools:
                n_cells = max(self._planned_of(drafts), (drafts.n_cells - drafts.n_free) * n_times)
                if n_cells < drafts.n_cells:
                    self._resize_drafts(drafts, n_cells)
            n_cells = max(self._n_planned, (pool.n_cells - pool.n_free) * n_times)
            if pool.n_cells - n_cells >= pool.n_cells // _STEPS[-1]:
                self._resized(n_cells)
            else:
                self._claimed(self._beyond(pool.n_cells))

    def changed_target(self) -> None:
        """There is another target, with as many cells as planned."""
        self._n_planned = self.pool.n_cells
        self.cache.ledger.release(*TEXTS)
        while not self.claims() and self._idle:
            self._suspend(next(iter(self._idle)))

    # --- texts that nobody writes

    def idle(self, owner: object | None) -> Speculator | None:
        """Return the text of an owner, if it lies in cells and nobody writes it."""
        return self._idle.get(owner) if owner is not None else None

    def texts(self) -> list[tuple[object, Sequence[int]]]:
        """Return the owners whose cells or caches there are, and their texts."""
        suspended = [each for each in self.cache.texts() if each[0] not in self._idle]
        return [*suspended, *((owner, text.text) for owner, text in self._idle.items())]

    @contextmanager
    def copied(self, owner: object) -> Iterator[SuspendedCaches | None]:
        """The caches of a text, wherever they are, while the context lasts; None if there are none. Pauses the
        worker to copy them.

        Raises:
            BudgetExceeded: the memory has no room for copies.
        """
        with ExitStack() as copies:
            with self._worker.pause():
                text = self._idle.get(owner)
                caches = copies.enter_context(self.cache.borrowed(owner))
                if text is not None:
                    caches = self._with_drafters(owner, copies.enter_context(self.cache.suspended(text)))
            yield caches

    def settle(self) -> None:
        """Wait until replies that nobody refers to any more have ended."""
        with suppress(Closed, UnfinishedReply), self._worker.pause():
            pass

    def suspend(self, owner: object, caches: SuspendedCaches) -> None:
        """Keep the caches of a text that come from a file, until it is written on. Pauses the worker."""
        with self._worker.pause():
            self.cache.put(owner, caches)

    def to_disk(self, uses_disk: bool) -> bool:
        """Keep what is suspended on the disk from now on, and give back cells beyond those planned; or in memory again.

        Returns:
            Whether any memory was given back.
        """
        has_moved = self.cache.to_disk(uses_disk)
        if not uses_disk or not (before := self._beyond(self.pool.n_cells)):
            return has_moved
        for owner in list(self._idle):
            self._suspend(owner)
        self.shrink(is_scarce=True)
        return has_moved or self._beyond(self.pool.n_cells) < before

    def release(self, owner: object) -> None:
        """Nothing need be kept of an owner any more."""
        self._idle.pop(owner, None)
        self.cache.drop(owner)

    def _suspend(self, owner: object) -> Speculator:
        """Copy a text into the session cache; returns its place, which is free."""
        text = self._idle.pop(owner)
        # What cannot be suspended is read again later.
        with suppress(EdgeSpecError, MemoryError):
            with self.cache.suspended(text) as caches:
                kept = self._with_drafters(owner, caches)
            self.cache.put(owner, kept)
        self._evict(text)
        return text

    def _evict(self, text: Speculator) -> None:
        self.n_evicted += text.model.n_past
        self._empty_out(text)

    def _empty_out(self, text: Speculator) -> None:
        """Give the cells of a text back, and those of what drafts for it."""
        text.forget()
        if self._target.draft_pools:
            text.drafter.restore({}, ())

    def _with_drafters(self, owner: object, caches: SuspendedCaches) -> SuspendedCaches:
        """Add what the drafter's models knew of the text when they were last at it, where that is kept."""
        with self.cache.borrowed(owner) as kept:
            states = kept.states if kept is not None else {}
        return SuspendedCaches(states={**states, **caches.states}, text=caches.text)
