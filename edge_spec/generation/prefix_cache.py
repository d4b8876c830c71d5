"""The prefix cache: the cells, the copies in memory and the files that still serve a text to come."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary, ref

from edge_spec.errors import BudgetExceeded, EdgeSpecError, PoolFull, StateError
from edge_spec.generation.suspended_caches import CachesOnDisk, SuspendedCaches
from edge_spec.memory import Ledger
from edge_spec.speculation.cache_state import restated
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.pool import TILE, Pool
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.speculation.target import Target
from edge_spec.speculation.text import common_prefix

__all__ = ["TEXTS", "CachedPrompt", "PrefixCache", "Taken"]

TEXTS = ("texts", "caches")
"""The ledger's line of what texts take beyond the plan."""

_STEPS = (1, 2, 4, 8, 16, 32)
"""A pool grows by the largest of these parts of it that fits, and is not made smaller by less than the last one. All
that is held is copied each time: twice as many cells at a time make that rare."""

_SPARE = 2
"""While memory is not scarce a pool keeps so many times the cells that texts hold: the next texts need them again."""

_DRAFT_STEP = 4
"""A pool of a drafter's model grows by this part of it at least."""

_WORTH_SHARING = 8
"""Shorter beginnings are read again: a tile that two texts share is copied anyway. Nor is waited for so few tokens."""

_WORTH_COPYING = 32
"""Shorter beginnings of an earlier prompt are read again: that takes no longer than copying caches."""

_COPY_FROM = 8
"""An earlier prompt of which less than this part is shared is not copied for it."""

_MAX_PROMPTS = 64
"""So many earlier prompts are kept."""

_TOKEN_BYTES = 64
"""An upper bound on the bytes that an engine saves for a token besides its keys and values."""

_COPIES = 3
"""Copies of a target's saved cells in memory while they are read back: engines copy them once or twice."""


class CachedPrompt:
    """The owner of a text that belongs to no conversation: later prompts may begin like it.

    A cell serves them only where reading their prompt would compute the same bits, see ``Capabilities.reuse_step``; so
    nothing of a reply depends on what came before.

    Attributes:
        n_read: how many of its first tokens were read as a prompt.
        profile: the name of the numerics profile that computed its cells; empty before.
    """

    n_read = 0
    profile = ""

    def usable(self, shared: int, step: int) -> int:
        """Return how many of ``shared`` first tokens have cells that a fresh prompt would compute bit for bit."""
        if step > 1:
            shared = min(shared, self.n_read)
        return shared // step * step if step else 0


class Taken(NamedTuple):
    """A slot that a text may be written in now, or why there is none.

    Attributes:
        slot: the slot; None if there is none.
        is_resumed: whether its cells hold the beginning of the text, so that only the rest is read.
        lacks: ``cells`` while others need them, ``prompt`` while another slot is reading what both begin with.
    """

    slot: Slot | None
    is_resumed: bool = False
    lacks: Literal["", "cells", "prompt"] = ""


class _Match(NamedTuple):
    """Where the beginning of a text is: so many of its tokens now, and so many soon."""

    source: Slot | CachedPrompt | None
    n: int
    n_soon: int


class PrefixCache:
    """The slots of a target, and which conversation or prompt owns the text of each.

    An idle slot, whose text nobody writes, keeps its cells until others need them. Then the one that was used least
    recently is suspended: copied into memory or files, and restored into another slot later. An engine that holds one
    text suspends it whenever another one comes. Copies are dropped, the oldest first, where they get too large, and
    with their owners.

    ``take`` gives a slot with the longest beginning of a text, ``put`` keeps a slot as idle, and ``spill`` frees cells:
    it *evicts* slots without an owner and *suspends* those with one. ``release`` forgets what an owner has, in cells
    and copies. ``release``, ``to_disk`` and ``n_bytes`` may be used by any thread, everything else by the worker, or by
    a thread that has paused it.

    Args:
        ledger: where room for copies, and for cells beyond the plan, is claimed; what it does not allow is not kept.
        limit_bytes: the most memory that all copies may take together.
        folder: where copies on disk lie; the system's own folder for temporary files by default.

    Attributes:
        target: the target.
        n_evicted: cells that texts had and others needed, since the model was opened.
    """

    def __init__(
        self, target: Target, ledger: Ledger, *, limit_bytes: int = 256 << 20, folder: Path | None = None
    ) -> None:
        self.target = target
        self.ledger = ledger
        self.limit_bytes = limit_bytes
        self.n_evicted = 0
        self._folder = folder
        self._uses_disk = False
        self._lock = threading.RLock()
        self._written = set[Slot]()
        # Idle slots by owner, the one used last at the end; those of no owner are not here.
        self._idle: WeakKeyDictionary[object, Slot] = WeakKeyDictionary()
        # Copies by owner, the latest at the end.
        self._copies: WeakKeyDictionary[object, SuspendedCaches | CachesOnDisk] = WeakKeyDictionary()
        # The only references to these owners.
        self._prompts = dict[CachedPrompt, None]()
        # Of slots without an owner, for which group of replies they were written.
        self._groups: WeakKeyDictionary[Slot, ref[object]] = WeakKeyDictionary()
        # Cells that pools had when they were opened: those of the plan.
        self._planned: WeakKeyDictionary[Pool, int] = WeakKeyDictionary()
        self._planned_of(self.pool)
        # Lengths of texts for which their drafters have cells.
        self._drafted: WeakKeyDictionary[Slot, int] = WeakKeyDictionary()
        # Of slots whose target is closed.
        self._saved: list[tuple[Slot, CachesOnDisk]] = []

    @property
    def pool(self) -> Pool:
        """The target's cells."""
        return self.target.pool

    @property
    def n_bytes(self) -> int:
        """Memory that all copies take."""
        with self._lock:
            return sum(caches.n_bytes for _, caches in self._in_memory())

    @property
    def n_past(self) -> int:
        """Number of committed tokens of the texts that are being written."""
        return sum(slot.model.n_past for slot in self._written)

    def __contains__(self, owner: object) -> bool:
        return owner in self._idle or owner in self._copies

    def idle(self, owner: object | None) -> Slot | None:
        """Return the idle slot of an owner, if it has one."""
        return self._idle.get(owner) if owner is not None else None

    # --- take

    def take(
        self,
        owner: object,
        tokens: Sequence[int],
        beside: Iterable[tuple[Slot, bool]] | None = None,
        group: object | None = None,
    ) -> Taken:
        """Take a slot to write ``tokens`` in, whose cells hold the longest beginning of them that there is.

        The owner's own slot or copies come first. A ``CachedPrompt`` has none: it continues or copies the earlier
        prompt that matches best. The slot gets cells for all tokens, and for a draft.

        Args:
            owner: a conversation, or what else owns the text.
            beside: slots that are being written and may be shared, and whether they are reading their prompts; None if
                only what is the owner's own serves.
            group: of replies that were asked for together; slots of those that have ended may be shared, too.
        """
        source, n = owner, len(tokens)
        is_earlier = beside is not None and isinstance(owner, CachedPrompt)
        if beside is not None and (is_earlier or owner not in self):
            found = self._longest(owner, tokens, beside, group)
            if found.n_soon - found.n >= _WORTH_SHARING:
                return Taken(None, lacks="prompt")
            source, n = found.source or owner, found.n
            if isinstance(source, CachedPrompt) and source is not owner:
                source = self._adopt(owner, source, n)
        is_own = source is owner
        slot = self._idle.get(owner) if is_own else self._fork(source, n)
        is_new = slot is None
        slot = slot or self._empty_slot()
        if slot is None or not self._claim_slot(slot):
            return Taken(None, lacks="cells")
        if is_new or is_own:
            self._restore(slot, source)
        if is_own:
            self.release(owner)
        is_resumed = bool(slot.text)
        if is_earlier:
            is_resumed = is_resumed and n > 0
            self._trim(slot, n)
        n_ctx, max_rows = self.pool.n_ctx, self.pool.capabilities.max_rows
        # Cells of prompts that are still being read are taken only then.
        unread = sum(max(0, len(each.text) - each.model.n_past) for each in self._written)
        n_tokens = min(len(tokens), n_ctx) + max_rows
        self._written.add(slot)
        try:
            if self._free_cells(slot, n_tokens - slot.model.n_past + unread):
                return Taken(slot, is_resumed)
            self.put(slot, owner if is_resumed else None)
        except BaseException:
            self.put(slot)
            raise
        return Taken(None, lacks="cells")

    def _longest(
        self, owner: object, tokens: Sequence[int], beside: Iterable[tuple[Slot, bool]], group: object | None
    ) -> _Match:
        """Return the longest match of some tokens; ``n_soon`` is that of the match that will be the longest."""
        found = [_Match(None, 0, 0)]
        if isinstance(owner, CachedPrompt):
            found += self._matches_of_prompts(tokens)
        found += self._matches_of_slots(tokens, beside, group)
        # A text that waits for a few tokens is written after the others, in decodes of its own at the end.
        return max(found, key=lambda each: each.n)._replace(n_soon=max(each.n_soon for each in found))

    def _matches_of_prompts(self, tokens: Sequence[int]) -> Iterator[_Match]:
        """Yield the earlier prompts that begin like some tokens, as far as reading these would give the same cells."""
        for prompt in self._prompts:
            text = self._text_of(prompt) if prompt.profile == self.pool.profile.name else ()
            n = prompt.usable(common_prefix(text, tokens[:-1]), self.pool.capabilities.reuse_step)
            if n >= max(_WORTH_COPYING, len(text) // _COPY_FROM):
                yield _Match(prompt, n, n)

    def _matches_of_slots(
        self, tokens: Sequence[int], beside: Iterable[tuple[Slot, bool]], group: object | None
    ) -> Iterator[_Match]:
        """Yield the slots that can be forked, if a cell has the same bits however it was computed.

        These are the ones of texts that are written, and of texts of the same group that have ended.
        """
        if self.pool.capabilities.reuse_step != 1 or self.pool.max_paths == 1:
            return
        own = ref(group) if group is not None else None
        ended = ((slot, False) for slot in self._unowned() if own is not None and self._groups.get(slot) == own)
        for slot, is_reading in (*ended, *beside):
            n_past = slot.model.n_past
            # A slot that is reading its prompt will have read all of it soon.
            n = common_prefix(slot.text if is_reading else slot.text[:n_past], tokens[:-1])
            if n >= _WORTH_SHARING:
                n_now = min(n, n_past)
                yield _Match(slot, n_now, n) if n_now >= _WORTH_SHARING else _Match(None, 0, n)

    def _text_of(self, owner: object) -> Sequence[int]:
        """Return the tokens of which an owner has cells or copies."""
        kept = self._idle.get(owner) or self._copies.get(owner)
        return kept.text if kept is not None else ()

    def _adopt(self, owner: object, earlier: CachedPrompt, n: int) -> object:
        """Return the source of a prompt whose first ``n`` tokens are those of an earlier one.

        Where it continues that one, or replaces no more than its last half, it becomes its text.
        """
        assert isinstance(owner, CachedPrompt)
        owner.n_read, owner.profile = earlier.n_read, earlier.profile
        if n * 2 < len(self._text_of(earlier)):
            return earlier
        with self._lock:
            if (slot := self._idle.get(earlier)) is not None:
                self._idle[owner] = slot
            if (caches := self._copies.get(earlier)) is not None:
                self._copies[owner] = caches
            self.release(earlier)
        return owner

    def _fork(self, source: object, n: int) -> Slot | None:
        """Return a slot that shares the cells of the first ``n`` tokens of another one; None if there can be none."""
        slot = source if isinstance(source, Slot) else self._idle.get(source)
        # Where there is one path, a copy is restored instead.
        if slot is not None and self.pool.max_paths > 1:
            with suppress(PoolFull, MemoryError):
                if self._claim_slot(None, slot) and self._free_cells(slot, TILE, slot):
                    self._drop_others(slot)
                    return self.target.fork(slot, n)
        return None

    def _drop_others(self, spare: Slot) -> None:
        """Make room for a further slot; of those without an owner a few stay."""
        target = self.target
        others = [each for each in self._unwritten() if each[1] is not spare]
        n_over = len(target.slots) + 1 - target.pool.max_paths
        n_unowned = sum(owner is None for owner, _ in others)
        for owner, slot in others[: max(0, n_over, n_unowned - target.most_texts)]:
            if owner is not None:
                self.suspend(owner)
            target.drop(slot)

    def _empty_slot(self) -> Slot | None:
        """Return an empty slot without an owner; None if there is none to be had."""
        slot = next(self._unowned(), None) or self.target.add()
        if slot is None and self._idle:
            slot = self.suspend(next(iter(self._idle)))
        if slot is not None:
            slot.forget()
        return slot

    def _restore(self, slot: Slot, owner: object) -> None:
        """Restore an owner's copies into the target or its drafters, whichever lack them, as far as there is room."""
        with suppress(BudgetExceeded, PoolFull, StateError), self._borrowed(self._copies.get(owner)) as caches:
            if caches is None:
                return
            n = len(caches.text)
            self.reserve_draft_cells({**dict.fromkeys(self._written, 0), slot: n})
            if slot.text:
                slot.drafter.restore(caches.states, caches.text)
            elif "target" in caches.states:
                self._free_cells(slot, n)
                slot.restore(caches.states, caches.text)

    def _trim(self, slot: Slot, n: int) -> None:
        """Go back to whole chunks: beyond them others would begin elsewhere than in a fresh prompt."""
        step = self.pool.capabilities.reuse_step
        if n and step > 1:
            slot.replace(min(n, slot.model.n_past // step * step), ())
            while slot.model.n_past % step:
                # It went back further than it had to, into the middle of a chunk.
                slot.replace(slot.model.n_past // step * step, ())

    # --- put

    def put(self, slot: Slot, owner: object | None = None, group: object | None = None) -> None:
        """Keep a slot that nobody writes any more for its owner, or, while there is room, for a group of replies."""
        self._written.discard(slot)
        self._groups.pop(slot, None)
        if group is not None:
            self._groups[slot] = ref(group)
        if owner is None:
            return
        with self._lock:
            self._idle.pop(owner, None)
            self._idle[owner] = slot
            if isinstance(owner, CachedPrompt):
                self._prompts.pop(owner, None)
                self._prompts[owner] = None
                while len(self._prompts) > _MAX_PROMPTS:
                    self.release(next(iter(self._prompts)))

    def keep(self, owner: object, caches: SuspendedCaches) -> None:
        """Keep copies for an owner, if there is room for them at all."""
        with self._lock:
            self._copies.pop(owner, None)
            if self._uses_disk:
                # Without room on the disk the text is read again.
                with suppress(OSError):
                    self._copies[owner] = CachesOnDisk(caches, self._folder)
            elif caches.n_bytes <= self.limit_bytes:
                self._copies[owner] = caches
                while (self.n_bytes > self.limit_bytes or not self._record_copies()) and (held := self._in_memory()):
                    del self._copies[held[0][0]]
            self._record_copies()

    def release(self, owner: object) -> None:
        """Forget what is kept for an owner."""
        with self._lock:
            self._idle.pop(owner, None)
            self._copies.pop(owner, None)
            if isinstance(owner, CachedPrompt):
                self._prompts.pop(owner, None)
            self._record_copies()

    # --- spill

    def spill(self, n: int, spare: Slot | None = None) -> bool:
        """Free ``n`` cells, or those of one idle slot; return whether there was anything to free.

        Slots without an owner are evicted first; then the pool grows, as far as memory allows; then the slot that was
        used least recently is suspended.
        """
        owner, slot = self._next_to_evict(spare)
        if (slot is None or owner is not None) and self._grow(n, is_needed=slot is None):
            return True
        return self._suspend_or_evict(owner, slot)

    def suspend(self, owner: object) -> Slot:
        """Copy an owner's text out of its cells; return the slot, which is free for another owner."""
        slot = self._idle[owner]
        # What cannot be suspended is read again later.
        with suppress(EdgeSpecError, MemoryError):
            with self.copied(owner) as kept:
                assert kept is not None
            self.keep(owner, kept)
        self._idle.pop(owner, None)
        self._evict(slot)
        return slot

    def _unowned(self) -> Iterator[Slot]:
        """Yield the idle slots without an owner, the first slot before others."""
        owned = {*self._idle.values(), *self._written}
        return (slot for slot in self.target.slots if slot not in owned)

    def _unwritten(self) -> list[tuple[object | None, Slot]]:
        """Return the idle slots with their owners, in the order in which they lose their cells."""
        return [*((None, slot) for slot in self._unowned()), *self._idle.items()]

    def _next_to_evict(self, spare: Slot | None) -> tuple[object | None, Slot | None]:
        """Return the first idle slot that has cells, and its owner; None if there is none."""
        going = (each for each in self._unwritten() if each[1].model.n_past and each[1] is not spare)
        return next(going, (None, None))

    def _suspend_or_evict(self, owner: object | None, slot: Slot | None) -> bool:
        """Free the cells of a slot, with a copy for its owner if it has one; False if there is no slot."""
        if owner is not None:
            self.suspend(owner)
        elif slot is not None:
            self._evict(slot)
        return slot is not None

    def _evict(self, slot: Slot) -> None:
        self.n_evicted += slot.model.n_past
        self._clear(slot)

    def _clear(self, slot: Slot) -> None:
        """Give the cells of a slot back, and those of its drafter."""
        slot.forget()
        self._drafted.clear()
        slot.drafter.evict()

    def _evict_drafter(self, slot: Slot, owner: object | None) -> None:
        """Give back the cells of a slot's drafter, with copies for the owner if there is one."""
        if owner is not None:
            with suppress(EdgeSpecError, MemoryError):
                with self._copied(slot, target=False) as caches:
                    pass
                self.keep(owner, caches)
        self._drafted.clear()
        slot.drafter.evict()

    def _free_cells(self, slot: Slot, n: int, spare: Slot | None = None) -> bool:
        """Free cells for ``n`` more tokens of a slot; return whether there are enough."""
        while (lacking := self.pool.n_more(slot.model, n) - self.pool.n_free) > 0:
            if not self.spill(lacking, spare):
                return False
        return True

    def _claim_slot(self, slot: Slot | None, spare: Slot | None = None) -> bool:
        """Free memory for what one more slot takes besides cells; return whether there is enough."""
        if self.target.text_bytes and not (slot is not None and slot.model.n_past):
            while not self.claim(1):
                if not self._suspend_or_evict(*self._next_to_evict(spare)):
                    return False
        return True

    def reserve_draft_cells(self, lengths: Mapping[Slot, int]) -> None:
        """Have cells for what drafts for some texts, by how many tokens it is to hold of each.

        Drafters of texts that nobody writes give theirs; then there are more cells where several texts are written, as
        far as memory allows; then those of other texts that are written give theirs. Where cells lack nothing is
        drafted.
        """
        # To look takes long for a round of a small model, so a tile more is reserved than is needed now.
        if all(n <= self._drafted.get(slot, 0) for slot, n in lengths.items()):
            return
        self._drafted = WeakKeyDictionary({slot: n and n + TILE for slot, n in lengths.items()})
        wanted: dict[Pool, list[tuple[TextPath, int]]] = {}
        if self.target.draft_pools:
            for slot, n in self._drafted.items():
                for each in slot.drafter.followed.values():
                    wanted.setdefault(each.model.pool, []).append((each.model, n))
        for pool, paths in wanted.items():
            # With more paths than the pool holds at a time, nothing is drafted.
            if len(paths) > pool.max_paths or _n_lacking(pool, paths) <= 0:
                continue
            for owner, idle in self._unwritten():
                if _n_lacking(pool, paths) > 0 and _has_cells(idle, pool):
                    self._evict_drafter(idle, owner)
            lacking = _n_lacking(pool, paths)
            if lacking > 0 and len(self._written) > 1 and pool.max_paths > 1:
                n_more = max(lacking, pool.n_cells // _DRAFT_STEP)
                self._resize(pool, pool.n_cells + n_more + -n_more % TILE)
            for slot in self._written - lengths.keys():
                if _n_lacking(pool, paths) > 0 and _has_cells(slot, pool):
                    slot.drafter.evict()

    # --- memory

    def claim(self, n_more: int = 0) -> bool:
        """Claim what the texts take beyond the plan, and ``n_more`` that have no token yet; whether there is room.

        For what is only kept there is no more room than it may take.
        """
        is_needed = not any(each.model.n_past for each in self._idle.values())
        return self._claim(self._bytes_beyond_plan(n_more), is_needed=is_needed)

    def _bytes_beyond_plan(self, n_more: int = 0) -> int:
        """Return what the texts take beyond the plan, and ``n_more`` that have no token yet."""
        n_texts = n_more + sum(each.model.n_past > 0 or each in self._written for each in self.target.slots)
        pools = (self.pool, *self.target.draft_pools)
        further = sum((each.n_cells - self._planned_of(each)) * each.cell_bytes for each in pools)
        return further + max(0, n_texts - 1) * self.target.text_bytes

    def _planned_of(self, pool: Pool) -> int:
        """Return the cells that a pool had when it was opened."""
        return self._planned.setdefault(pool, pool.n_cells)

    def _claim(self, n_bytes: int, *, is_needed: bool = True) -> bool:
        """Claim so many bytes beyond the plan; return whether they are free. If not, what is held stays claimed."""
        try:
            if is_needed or n_bytes <= self.limit_bytes:
                self.ledger.set(*TEXTS, n_bytes)
                self.ledger.measure(*TEXTS, n_bytes)
                return True
        except BudgetExceeded:
            with suppress(BudgetExceeded):
                self.ledger.set(*TEXTS, self._bytes_beyond_plan())
        return False

    def _grow(self, n: int, *, is_needed: bool) -> bool:
        """Add ``n`` cells if the budget has room for them; return whether it has.

        Args:
            is_needed: no text can be suspended instead. Otherwise small steps do not pay, and copies have a limit.
        """
        pool = self.pool
        most = self._planned_of(pool) + self.target.most_texts * pool.n_ctx
        # For what is only kept small steps are not worth it.
        steps = [max(n, pool.n_cells // part) for part in _STEPS]
        for step in (*steps, n) if is_needed else steps:
            n_cells = pool.n_cells + step + -step % TILE
            if n_cells <= most and self._resize(pool, n_cells, is_needed=is_needed):
                return True
        return False

    def _resize(self, pool: Pool, n_cells: int, *, is_needed: bool = True) -> bool:
        """Resize a pool; return whether there is memory for it."""
        with suppress(MemoryError):
            further = (n_cells - pool.n_cells) * pool.cell_bytes
            if self._claim(self._bytes_beyond_plan() + further, is_needed=is_needed):
                pool.resize(n_cells)
                return True
        self._claim(self._bytes_beyond_plan())
        return False

    def shrink(self, *, is_scarce: bool = False) -> None:
        """Give back what no text holds, as far as there is more than planned: all of it where memory is scarce."""
        if self._bytes_beyond_plan():
            for slot in self._unowned():
                self._clear(slot)
            for pool in (*self.target.draft_pools, self.pool):
                n_held = (pool.n_cells - pool.n_free) * (1 if is_scarce else _SPARE)
                n_cells = max(self._planned_of(pool), n_held)
                if pool.n_cells - n_cells >= max(1, pool.n_cells // _STEPS[-1]):
                    self._resize(pool, n_cells)
            self._claim(self._bytes_beyond_plan())

    def to_disk(self, uses_disk: bool) -> bool:
        """Keep copies on the disk from now on, and give back cells beyond those planned; or keep them in memory again.

        Returns:
            Whether any memory was given back.
        """
        with self._lock:
            self._uses_disk = uses_disk
            moved = self._in_memory() if uses_disk else []
            for owner, caches in moved:
                self.keep(owner, caches)
        if not uses_disk or not (before := self._bytes_beyond_plan()):
            return bool(moved)
        for owner in list(self._idle):
            self.suspend(owner)
        self.shrink(is_scarce=True)
        return bool(moved) or self._bytes_beyond_plan() < before

    # --- another target

    def save_slots(self, n_ctx: int) -> None:
        """Save the cells of all texts that fit a context of ``n_ctx``: their target is about to be closed."""
        for slot in self.target.slots:
            if 0 < len(slot.text) < n_ctx:
                slot.settle()
                # Save to a file: two caches at once would not fit the memory.
                with suppress(EdgeSpecError, MemoryError, OSError), self._copied(slot, drafters=False) as caches:
                    self._saved.append((slot, CachesOnDisk(caches, self._folder)))

    def restore_slots(self) -> None:
        """Restore saved cells in a target with the same numerics; where that fails the text is read again.

        Texts that are being written come first: the target has no more cells than planned, and idle texts may have had
        further ones.
        """
        self._saved.sort(key=lambda saved: saved[0] not in self._written)
        while self._saved:
            slot, kept = self._saved.pop(0)
            model = slot.model
            try:
                n_texts = sum(each.model.n_past > 0 for each in self.target.slots)
                self.ledger.set(*TEXTS, n_texts * self.pool.text_bytes)
                with self._borrowed(kept, copies=_COPIES) as caches:
                    if caches is not None:
                        model.restore(restated(caches.states["target"], profile=model.profile.name))
            except (EdgeSpecError, MemoryError):
                model.rollback(0)

    def discard_saved(self) -> None:
        """Forget the cells that ``save_slots`` has saved."""
        self._saved.clear()

    def changed_target(self) -> None:
        """The target was opened again, with as many cells as planned."""
        self._planned[self.pool] = self.pool.n_cells
        self.ledger.release(*TEXTS)
        while not self.claim() and self._idle:
            self.suspend(next(iter(self._idle)))

    # --- copies

    @contextmanager
    def copied(self, owner: object) -> Iterator[SuspendedCaches | None]:
        """The caches of an owner's text, wherever they are, while the context lasts; None if there are none.

        Raises:
            BudgetExceeded: the memory has no room for copies.
        """
        with ExitStack() as copies:
            slot = self._idle.get(owner)
            caches = copies.enter_context(self._borrowed(self._copies.get(owner)))
            if slot is not None:
                # What its drafter's models knew of the text before others got their cells.
                known = caches.states if caches is not None else {}
                caches = copies.enter_context(self._copied(slot))
                caches = SuspendedCaches(states={**caches.states, **known}, text=caches.text)
            yield caches

    @contextmanager
    def _copied(self, slot: Slot, *, target: bool = True, drafters: bool = True) -> Iterator[SuspendedCaches]:
        """Copies of the models' caches: of the ``target``'s, and of those of the drafter.

        Raises:
            BudgetExceeded: there is no room for them. Cancelled, Closed: see ``Slot.save``.
        """
        n_tokens = len(slot.text)
        shares = {"KV cache": min(1.0, (n_tokens + 1) / slot.model.n_ctx), "recurrent state": 1.0}
        caches: Counter[str] = Counter()
        for line in self.ledger:
            if line.name in shares and (target if line.owner == "target" else drafters):
                caches[line.owner] += int(shares[line.name] * line.predicted_bytes)
        # All of them, and the largest up to twice more while its engine hands it out.
        expected = caches.total() + 2 * max(caches.values(), default=0) + _TOKEN_BYTES * n_tokens * len(caches)
        with self.ledger.lend("sessions", "copies to save", expected) as took:
            states = slot.save(target=target, drafters=drafters)
            sizes = [len(state) for state in states.values()]
            took(sum(sizes) + max(sizes, default=0))
            yield SuspendedCaches(states=states, text=tuple(slot.text))

    @contextmanager
    def _borrowed(
        self, kept: SuspendedCaches | CachesOnDisk | None, *, copies: int = 1
    ) -> Iterator[SuspendedCaches | None]:
        """Caches in memory while the context lasts, as often as ``copies`` says; None if the disk fails.

        Raises:
            BudgetExceeded: there is no memory for what lies on the disk.
        """
        if not isinstance(kept, CachesOnDisk):
            yield kept
            return
        with self.ledger.lend("sessions", "back from the disk", copies * kept.n_bytes) as took:
            caches = None
            with suppress(OSError):
                caches = kept.read()
            took(copies * kept.n_bytes)
            yield caches

    def _in_memory(self) -> list[tuple[object, SuspendedCaches]]:
        return [(owner, caches) for owner, caches in self._copies.items() if isinstance(caches, SuspendedCaches)]

    def _record_copies(self) -> bool:
        """Enter in the ledger what copies take; False if that is more than it allows."""
        try:
            self.ledger.set("sessions", "suspended", self.n_bytes)
        except BudgetExceeded:
            return False
        self.ledger.measure("sessions", "suspended", self.n_bytes)
        return True


def _n_lacking(pool: Pool, paths: Sequence[tuple[TextPath, int]]) -> int:
    """Return how many cells a pool lacks to hold so many tokens of each path."""
    return sum(pool.n_more(path, max(0, min(n, pool.n_ctx) - path.n_past)) for path, n in paths) - pool.n_free


def _has_cells(slot: Slot, pool: Pool) -> bool:
    """Return whether what drafts for a text has any cells of a pool."""
    return any(each.model.n_past and each.model.pool is pool for each in slot.drafter.followed.values())
