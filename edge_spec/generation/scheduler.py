"""The scheduler of a model: which texts a step advances, and what each of them brought."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from time import perf_counter

from edge_spec.errors import Cancelled, Closed, PoolFull
from edge_spec.generation.context import MemoryGuard
from edge_spec.generation.prefix_cache import PrefixCache
from edge_spec.generation.reader import Reader
from edge_spec.generation.sequence import Sequence as TextSequence
from edge_spec.generation.worker import Wait, Worker, Workload
from edge_spec.memory import Ledger
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.loop import Prepared, Slot, decode, learn, prepare
from edge_spec.speculation.pool import TILE
from edge_spec.speculation.round import Round
from edge_spec.speculation.target import Target
from edge_spec.tokens.tokenizer import Vocabulary

__all__ = ["Scheduler"]

_MOST_AHEAD = 256
"""A reply that nobody reads gets no further ahead of its reader than so many tokens."""

_PATIENCE_S = 2.0
"""A reply that nobody has read on for so long makes room for one that waits."""

_PIECE_DECODES = 2.0
"""Of prompts that are read while others are written, as much as takes so many decodes is read in a round, and more
where more texts wait for their prompts than are written: each has its part of the time."""

_LEAST_PIECE = 16

_DRAFT_CELLS = 2 * TILE
"""Cells that drafters have for each text before a round: for its tokens, and for a draft."""

_READ_AGAIN = (
    "what the model had computed of this text could not be kept, so it is read again: from here on it may "
    "differ from the same text alone; more memory or fewer texts at a time avoid that"
)


class Scheduler(Workload[TextSequence]):
    """What all replies of a model share, and the steps that advance them.

    A step gives every text that is written its next token, and reads a piece of one prompt or of several. The rows that
    a decode has left go to drafts. A text does not depend on its company.

    Steps are made by the worker while somebody waits for one of the texts; the others are advanced as well, at most
    some hundred tokens ahead of their readers.

    Args:
        looks_after_memory: whether memory is looked after while nobody waits.
        explained: returns the error that a reader sees, given the one that ended the reply.

    Attributes:
        target: the target, its texts, and the drafter.
        vocabulary: what tokens stand for.
        worker: the thread that makes the steps. Only it may use the scheduler, or whoever has paused it.
        prefix_cache: which cells and copies serve texts to come.
        guard: keeps replies inside the memory.
        rows: number of rows that the target has computed, by purpose: ``prompt``, ``text`` (its next token), ``draft``.
    """

    def __init__(
        self,
        target: Target,
        vocabulary: Vocabulary,
        prefix_cache: PrefixCache | None = None,
        guard: MemoryGuard | None = None,
        explained: Callable[[BaseException], BaseException] = lambda error: error,
    ) -> None:
        self.target = target
        self._explained = explained
        self.vocabulary = vocabulary
        self.worker = Worker(self, looks_after_memory=guard is not None)
        self.prefix_cache = prefix_cache or PrefixCache(target, Ledger())
        self.guard = guard or MemoryGuard()
        # Both in the order of arrival.
        self._waiting: list[TextSequence] = []
        self._live: list[TextSequence] = []
        self._arrivals = count()
        self._turns = 0
        self._pool = target.pool
        self.rows = Counter(prompt=0, text=0, draft=0)
        # Seconds of a decode of several texts, and of reading a token of a prompt.
        self._decode_s = self._token_s = 0.0

    @property
    def n_live(self) -> int:
        """How many replies are being written."""
        return len(self._live)

    @property
    def is_idle(self) -> bool:
        """Whether no reply is being written or waits."""
        return not (self._live or self._waiting)

    # --- for replies

    def end(self, sequence: TextSequence, reason: str, error: BaseException | None = None) -> None:
        """End a reply; tokens that its reader has not taken are dropped."""
        # A cancel that came between two decodes ends here, not in the next reply.
        self.target.resume()
        try:
            n_ahead = sequence.end(reason, error)
            slot = sequence.slot or self.prefix_cache.idle(sequence.context.session)
            if slot is not None and n_ahead:
                with suppress(Closed):
                    slot.replace(max(0, len(slot.text) - n_ahead), ())
        finally:
            self._retire(sequence)

    def drop(self, sequences: Sequence[TextSequence], reason: str, error: BaseException | None = None) -> None:
        """End replies that nobody reads on, and let their conversations keep them."""
        with ExitStack() as ends:
            for sequence in sequences:
                if not sequence.is_recorded:
                    ends.callback(sequence.record)
                    ends.callback(self.end, sequence, reason, error)

    def stop(self, sequence: TextSequence) -> None:
        """Interrupt what the models compute, if it is for this reply; from any thread."""
        if sequence.slot is not None and sequence in self._live:
            self.target.cancel()

    def close(self, then: Callable[[], object]) -> None:
        """End all replies, wait for the end of a step, and call ``then`` once; nothing is computed any more."""
        # A step that reads a long prompt ends soon.
        for sequence in [*self._live, *self._waiting]:
            sequence.claim.is_cancelled = True
            self.stop(sequence)

        def end_all() -> None:
            try:
                self.drop([*self._live, *self._waiting], "cancelled")
            finally:
                then()

        self.worker.close(end_all)

    def look_after_memory(self) -> bool:
        """Give memory back or take some again, see ``MemoryGuard``; return False if replies are being written."""
        if self.is_idle:
            self.prefix_cache.shrink()
            self.guard.between_replies()
        return self.is_idle

    def give_way(self) -> bool:
        """Free memory for other models by one step, see ``MemoryGuard``; return False if replies are being written."""
        return self.is_idle and self.guard.give_way()

    # --- a step

    def step(self, waits: Sequence[Wait[TextSequence]]) -> bool:
        """Advance all that can be advanced; whether there was any.

        A step is made whole: where something fails that is no error of one text, all that are written end with it.
        """
        wanted = [sequence for wait in waits for sequence in wait.sequences]
        try:
            return self._advance(wanted, [wait.reader for wait in waits])
        except BaseException as error:
            for sequence in list(self._live):
                with suppress(Exception):
                    self._abort(sequence, error)
            raise
        finally:
            # A step may take longer than anybody's patience: it begins when the reader can go on.
            for sequence in wanted:
                sequence.claim.waited()

    def _abort(self, sequence: TextSequence, error: BaseException) -> None:
        """End a reply whose text and cells may not agree any more."""
        slot = sequence.slot
        try:
            if slot is not None:
                slot.forget()
        finally:
            self._finish(sequence, error=error)

    def _join(self, wanted: Sequence[TextSequence]) -> None:
        for sequence in wanted:
            if sequence.slot is None and not sequence.is_over and sequence not in self._waiting:
                sequence.arrival = sequence.arrival or next(self._arrivals) + 1
                insort(self._waiting, sequence, key=_arrival)

    def _advance(self, wanted: Sequence[TextSequence], readers: Sequence[Reader]) -> bool:
        """Make a step; see ``step``."""
        self._join(wanted)
        is_dropped = self._drop_unwanted()
        self._follow_target()
        if self._waiting:
            self._admit(wanted, readers)
        live = [each for each in self._live if self._can_advance(each, wanted)]
        if not live:
            return is_dropped
        if not self.guard.before_round(live):
            for each in list(self._live):
                self._finish(each, reason="memory")
            return True
        if self._follow_target():
            live = [each for each in live if each in self._live]
        reading, writing = list[TextSequence](), list[TextSequence]()
        for each in live:
            (reading if each.is_reading else writing).append(each)
        try:
            if reading:
                self._advance_or_preempt(partial(self._read, n_writing=len(writing)), reading)
            self._advance_or_preempt(self._write, writing)
        except Cancelled:
            # Whoever was cancelled takes its end; for the others nothing has changed.
            self.target.resume()
        return True

    def _drop_unwanted(self) -> bool:
        """End replies that were cancelled, or whose time is up; return whether there was one."""
        over = [each for each in (*self._live, *self._waiting) if each.claim.has_to_stop]
        for sequence in over:
            try:
                self.drop([sequence], sequence.claim.reason)
            except Exception as error:
                sequence.fail(error)
        return bool(over)

    def _can_advance(self, sequence: TextSequence, wanted: Sequence[TextSequence]) -> bool:
        if sequence.is_over or sequence.claim.has_to_stop:
            return False
        if sequence in wanted:
            return True
        # What follows when a context is full is up to its own reader: where it stops must not depend on others.
        slot = _slot_of(sequence)
        return sequence.n_ahead < _MOST_AHEAD and len(slot.text) < slot.model.n_ctx

    def _follow_target(self) -> bool:
        """Preempt the youngest texts if another target holds fewer; return whether the target has changed."""
        if self.target.pool is self._pool:
            return False
        self._pool = self.target.pool
        self.prefix_cache.changed_target()
        for sequence in self._live[self.target.most_texts :]:
            self._preempt(sequence)
        while len(self._live) > 1 and not self.prefix_cache.claim():
            self._preempt(self._live[-1])
        for sequence in self._live:
            # A few tokens belong to the next decode.
            slot, most = _slot_of(sequence), self._pool.capabilities.max_rows
            sequence.is_reading = len(slot.text) <= slot.model.n_ctx and len(slot.unread(most)) == most
        return True

    # --- coming and going

    def _admit(self, wanted: Sequence[TextSequence], readers: Sequence[Reader]) -> None:
        """Let replies in that wait, in the order of arrival, as many as a decode advances and there are cells for."""
        for sequence in list(self._waiting):
            if sequence in wanted or not sequence.claim.is_left(readers, _PATIENCE_S):
                if len(self._live) >= self.target.most_texts and not self._preempt_unread(wanted, readers):
                    return
                while not (is_admitted := self._admit_one(sequence, wanted)):
                    if not self._preempt_unread(wanted, readers):
                        break
                if not is_admitted:
                    return

    def _preempt_unread(self, wanted: Sequence[TextSequence], readers: Sequence[Reader]) -> bool:
        """Preempt a reply that nobody is reading, for one that waits; return whether there was one."""
        left = [each for each in self._live if each not in wanted and each.claim.is_left(readers, _PATIENCE_S)]
        if left:
            self._preempt(left[-1])
        return bool(left)

    def _preempt(self, sequence: TextSequence, *, is_torn: bool = False) -> None:
        """Let a reply wait that is being written; it goes on where it was, with the same bits or read again.

        Args:
            is_torn: its cells may not hold what it says, since a cancel came in between.
        """
        slot = sequence.slot
        if slot is not None and is_torn:
            slot.forget()
            self.prefix_cache.put(slot)
            sequence.slot = None
        elif slot is not None:
            sequence.preempted = list(slot.text)
            self.prefix_cache.put(slot, sequence.owner)
            sequence.slot = None
            self.prefix_cache.suspend(sequence.owner)
        if sequence in self._live:
            self._live.remove(sequence)
        if sequence not in self._waiting:
            insort(self._waiting, sequence, key=_arrival)

    def _admit_one(self, sequence: TextSequence, wanted: Sequence[TextSequence]) -> bool:
        """Let a reply be written, end it, or let it wait for a prompt that another one reads; False if cells lack."""
        try:
            if sequence.preempted is None:
                if not self.guard.before_reply(sequence):
                    self._finish(sequence, reason="memory")
                    return True
                self._follow_target()
            tokens, beside = self._beginning_of(sequence, wanted)
            sequence.slot, resumed, lacks = self.prefix_cache.take(sequence.owner, tokens, beside, sequence.claim.group)
            if lacks == "cells" and not self._live:
                # All cells are there for it, and they are too few.
                raise PoolFull(n_free=self.target.pool.n_free, n_needed=len(tokens))
            if sequence.slot is None:
                return lacks == "prompt"
            slot = self.target.latest = sequence.slot
            insort(self._live, sequence, key=_arrival)
            self._waiting.remove(sequence)
            if sequence.preempted is None:
                sequence.context.begin(slot, sequence.tokens, sequence.sampler, resumed=resumed, notice=sequence.notice)
            else:
                # Cells that were moved have bits that reading does not give.
                if not resumed and not (sequence.context.shares and slot.model.capabilities.reuse_step == 1):
                    sequence.notice(_READ_AGAIN, departs=True)
                slot.begin(sequence.preempted, sequence.sampler, reuse=resumed)
                sequence.preempted = None
            sequence.has_begun = True
            n_unread = len(slot.unread(slot.model.n_ctx))
            # Where it does not fit something has to go first. A context that is just full is read: what is moved then
            # has the bits that it has in a text that never waited.
            sequence.is_reading = n_unread > 0 and len(slot.text) <= slot.model.n_ctx
            sequence.has_to_read(n_unread)
        except Cancelled:
            self.target.resume()
            self._preempt(sequence, is_torn=True)
        except Exception as error:
            self._finish(sequence, error=error)
        return True

    def _beginning_of(
        self, sequence: TextSequence, wanted: Sequence[TextSequence]
    ) -> tuple[Sequence[int], list[tuple[Slot, bool]] | None]:
        """Return the tokens that a slot is taken for, and the slots that may be shared; see ``PrefixCache.take``."""
        if sequence.preempted is not None:
            return sequence.preempted, None
        tokens, beside = sequence.tokens, None
        # Cells that were moved have bits that those of another text may not have.
        if sequence.context.may_share(len(tokens), self.target.pool.n_ctx):
            sharing = [each for each in self._live if each.context.shares]
            beside = [(_slot_of(each), each.is_reading and self._can_advance(each, wanted)) for each in sharing]
        return tokens, beside

    def _finish(self, sequence: TextSequence, *, reason: str | None = None, error: BaseException | None = None) -> None:
        """A reply has ended by itself."""
        sequence.finish(reason, self._explained(error) if error is not None else None)
        self._retire_safely(sequence)

    def _retire_safely(self, sequence: TextSequence) -> None:
        """``_retire`` in a step: what fails there is for the reader of this reply, and for no other."""
        try:
            self._retire(sequence)
        except Exception as error:
            # It has to be gone whatever failed.
            with suppress(Exception):
                self._retire(sequence)
            sequence.fail(error)

    def _retire(self, sequence: TextSequence) -> None:
        """Nothing more is written of a reply: its text is kept for whom it belongs to."""
        for group in (self._live, self._waiting):
            if sequence in group:
                group.remove(sequence)
        slot = sequence.slot
        if slot is None:
            self.prefix_cache.release(sequence)
            return
        self.prefix_cache.put(slot, sequence.context.session, sequence.claim.group)
        sequence.slot = None
        # A target that could not be opened again has nothing to drop.
        with suppress(Closed):
            slot.end_reply()

    # --- reading prompts

    def _read(self, reading: Sequence[TextSequence], *, n_writing: int) -> None:
        """Read a piece of one prompt, or of several together; a whole chunk of one where its bits depend on that."""
        capabilities = self.target.pool.capabilities
        most = chunk = capabilities.prefill_chunk or self.target.pool.n_ctx
        is_divided = capabilities.reuse_step == 1
        if is_divided and n_writing and self._token_s:
            n_decodes = _PIECE_DECODES * max(1.0, len(reading) / n_writing)
            most = min(chunk, max(_LEAST_PIECE, int(n_decodes * self._decode_s / self._token_s)))
        self._turns += 1
        # By turns who has come first, and who needs least: a short prompt does not wait for the end of a long one.
        ordered = reading if self._turns % 2 else sorted(reading, key=lambda each: len(_slot_of(each).unread(chunk)))
        pieces: dict[TextSequence, Sequence[int]] = {}
        for sequence in ordered:
            piece = _slot_of(sequence).unread(most - sum(map(len, pieces.values())))
            if piece and (not pieces or is_divided):
                pieces[sequence] = piece
        begun = perf_counter()
        try:
            self.target.read([(_slot_of(sequence), piece) for sequence, piece in pieces.items()])
            if not n_writing and len(reading) == 1 and not (slot := _slot_of(reading[0])).unread(1):
                self._reserve_draft_cells([slot])
                slot.drafter.read()
        except (Cancelled, PoolFull):
            raise
        except Exception as error:
            for sequence in pieces:
                self._finish(sequence, error=error)
            return
        spent, n = perf_counter() - begun, sum(map(len, pieces.values()))
        self.rows["prompt"] += n
        self._token_s += (spent / n - self._token_s) / 4 if self._token_s else spent / n
        for sequence, piece in pieces.items():
            sequence.has_read(len(piece), spent * len(piece) / n)
            # What a later round leaves uncommitted belongs to the next decode, whose rows are those of a reply.
            sequence.is_reading = bool(_slot_of(sequence).unread(1))

    # --- writing

    def _write(self, writing: Sequence[TextSequence]) -> None:
        """Write on, at most as many texts as a decode has rows."""
        ready = [each for each in writing if self._ensure_context(each)]
        if len(ready) > 1:
            # Cells for one may have been those of another.
            ready = [each for each in ready if each.slot is not None]
        if len(ready) > self.target.most_texts:
            first = self._turns % len(ready)
            ready = [*ready[first:], *ready[:first]][: self.target.most_texts]
            self._turns += len(ready)
        if ready:
            self._write_together(ready)

    def _ensure_context(self, sequence: TextSequence) -> bool:
        """Return whether a text can go on, with room made in a context that is full."""
        slot = sequence.slot
        if slot is None or len(slot.text) < slot.model.n_ctx:
            return slot is not None
        try:
            if self._shift_context(sequence):
                return True
            if sequence.slot is not None:
                self._finish(sequence, reason="context")
        except Cancelled:
            raise
        except Exception as error:
            self._finish(sequence, error=error)
        return False

    def _shift_context(self, sequence: TextSequence) -> bool:
        """Take something out of a full context; return whether that was possible."""
        slot = _slot_of(sequence)
        tokens = list(slot.text)
        try:
            return sequence.context.make_room(slot, sequence.notice)
        except Cancelled:
            sequence.preempted = tokens
            self._preempt(sequence, is_torn=True)
            raise
        except PoolFull as error:
            # What is moved must not be shared, and is copied.
            if not self._free_cells(error):
                raise
            return sequence.slot is not None and self._shift_context(sequence)

    def _write_together(self, batch: Sequence[TextSequence]) -> None:
        """Do a round of several texts, or of one: draft, decode, walk, keep and learn."""
        begun = perf_counter()
        slots = [_slot_of(sequence) for sequence in batch]
        try:
            self._reserve_draft_cells(slots)
            for slot, sequence in zip(slots, batch, strict=True):
                slot.room = sequence.n_left
            prepared = prepare(slots, [min(each.next_limit(), each.n_left - 1) for each in batch])
        except (Cancelled, PoolFull):
            raise
        except Exception as error:
            if len(batch) == 1:
                self._finish(batch[0], error=error)
                return
            # Whose drafter has failed is found out alone.
            for sequence in batch:
                self._write_together([sequence])
            return
        try:
            prepared, rows = self._decoded(slots, prepared)
        except (Cancelled, PoolFull):
            raise
        except Exception as error:
            for sequence in batch:
                self._finish(sequence, error=error)
            return
        n_drafted = sum(len(each.draft) for each in prepared)
        self.rows["draft"] += n_drafted
        self.rows["text"] += sum(len(each.tree) for each in prepared) - n_drafted
        written, failed = dict[TextSequence, Round](), dict[TextSequence, Exception]()
        for sequence, slot, own, its_rows in zip(batch, slots, prepared, rows, strict=True):
            try:
                written[sequence] = sequence.write(partial(slot.finish, own, its_rows), slot.drafter)
                sequence.sampler.commit(slot.text)
            except Exception as error:
                failed[sequence] = error
        if not failed:
            learned = learn(slots, list(written.values()))
            failed = {sequence: error for sequence, error in zip(batch, learned, strict=True) if error is not None}
        verify_s = sum(done.verify_s for done in written.values())
        measured_s = verify_s + sum(done.draft_s + done.sample_s for done in written.values())
        self._decode_s += (verify_s - self._decode_s) / 4 if self._decode_s else verify_s
        rest_s = (perf_counter() - begun - measured_s) / len(batch)
        for sequence, slot in zip(batch, slots, strict=True):
            if sequence in written:
                done = written[sequence]
                drafter = slot.drafter.last_name if done.drafted else ""
                sequence.wrote(done, drafter, rest_s, is_shared=len(batch) > 1)
            if sequence in failed:
                self._finish(sequence, error=failed[sequence])
            elif sequence.is_over:
                self._retire_safely(sequence)

    def _reserve_draft_cells(self, slots: Sequence[Slot]) -> None:
        """Have cells for what drafts for the texts of a round."""
        self.prefix_cache.reserve_draft_cells({slot: len(slot.text) + _DRAFT_CELLS for slot in slots})

    def _decoded(self, slots: Sequence[Slot], prepared: list[Prepared]) -> tuple[list[Prepared], list[Logits]]:
        """Decode what is prepared, without drafts where these lack cells that other texts of the decode have."""
        while True:
            try:
                return prepared, decode(slots, prepared)
            except PoolFull as error:
                if len(slots) == 1 or not any(each.draft for each in prepared):
                    raise
                if not self.prefix_cache.spill(error.n_needed - error.n_free):
                    prepared = prepare(slots, [0] * len(slots))

    def _advance_or_preempt(
        self, advance: Callable[[Sequence[TextSequence]], None], sequences: Sequence[TextSequence]
    ) -> None:
        """Advance replies; where they lack cells, the youngest of all wait, and the others advance without them."""
        while sequences:
            try:
                advance(sequences)
                return
            except PoolFull as error:
                if not self._free_cells(error):
                    for each in sequences:
                        self._finish(each, error=error)
                    return
                sequences = [each for each in sequences if each.slot is not None]

    def _free_cells(self, error: PoolFull) -> bool:
        """Free cells that were lacking; False if there is one text, and it has all."""
        if not self.prefix_cache.spill(error.n_needed - error.n_free):
            if len(self._live) == 1:
                return False
            self._preempt(self._live[-1])
        return True


def _arrival(sequence: TextSequence) -> int:
    return sequence.arrival


def _slot_of(sequence: TextSequence) -> Slot:
    assert sequence.slot is not None, "the reply is not being written"
    return sequence.slot
