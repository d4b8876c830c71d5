"""Rounds for all replies of a model: whoever reads one of them advances the others as well."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from time import perf_counter
from weakref import WeakKeyDictionary, ref

from edge_spec.errors import Cancelled, Closed, PoolFull
from edge_spec.generation.context import MemoryGuard
from edge_spec.generation.kept_texts import KeptTexts
from edge_spec.generation.lock import GenerationLock
from edge_spec.generation.reader import Reader
from edge_spec.generation.session_cache import SessionCache
from edge_spec.generation.writing import Asking, Outcome, Writing
from edge_spec.memory import Ledger
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.loop import Prepared, Speculator, decode, learn, prepare
from edge_spec.speculation.pool import TILE
from edge_spec.speculation.round import Round
from edge_spec.speculation.target import Target
from edge_spec.speculation.text import common_prefix
from edge_spec.tokens.tokenizer import Vocabulary

__all__ = ["Driver"]

_MOST_AHEAD = 256
"""A reply that nobody reads gets no further ahead of its reader than so many tokens."""

_PATIENCE_S = 2.0
"""A reply that nobody has read on for so long makes room for one that waits."""

_WORTH_SHARING = 8
"""Shorter beginnings are read again: a tile that two texts share is copied anyway. Nor is waited for so few tokens."""

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


class Driver:
    """What all replies of a model share, and the rounds that advance them.

    A round gives every reply that is being written its next token, and reads a piece of one prompt or of several. The
    rows that a decode has left go to drafts. A text does not depend on its company.

    No thread is started for this: the reader who waits for a piece of a reply does the rounds, and the others find
    theirs when they look. A reply is written at most some hundred tokens ahead of its reader.

    Args:
        explained: makes more of what ends a reply for its reader.

    Attributes:
        target: the target, its texts, and the drafter.
        vocabulary: what tokens stand for.
        lock: gives turns at the models, of a round each.
        texts: whose texts lie in the target's cells.
        guard: keeps replies inside the memory.
        rows: what the target has computed, by what for: ``prompt``s, the next token of a ``text``, and ``draft``s.
    """

    def __init__(
        self,
        target: Target,
        vocabulary: Vocabulary,
        session_cache: SessionCache | None = None,
        guard: MemoryGuard | None = None,
        explained: Callable[[BaseException], BaseException] = lambda error: error,
    ) -> None:
        self.target = target
        self._explained = explained
        self.vocabulary = vocabulary
        self.lock = GenerationLock()
        self.texts = KeptTexts(target, self.lock, session_cache or SessionCache(Ledger()))
        self.guard = guard or MemoryGuard()
        self.guard.work_with(self.texts)
        # Both in the order of arrival.
        self._waiting: list[Writing] = []
        self._live: list[Writing] = []
        self._arrivals = count()
        # Of texts that nobody writes any more, for which group of replies they were written.
        self._ended: WeakKeyDictionary[Speculator, Callable[[], object | None]] = WeakKeyDictionary()
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

    def next(
        self, wanted: Sequence[Writing], reader: Reader, gives_up: Callable[[], bool]
    ) -> tuple[Writing, Outcome] | None:
        """Return what one of some replies has brought, after a round if nothing is there; None if it brought nothing.

        Args:
            wanted: those that the caller reads, and that have not ended.
            reader: who reads them.
            gives_up: asked while it waits for a turn whether it need not wait any more.

        Raises:
            Closed: the model is closed. Cancelled: it gave up.
        """
        with self.lock.turn(gives_up):
            ready, worked = _first_ready(wanted), True
            if ready is None:
                self._join(wanted)
                worked = self._round(wanted, reader)
                ready = _first_ready(wanted)
            if ready is not None:
                return ready, ready.take()
            late = self._late(wanted)
        self._after_round(late, worked=worked)
        return None

    def advance(self, wanted: Sequence[Writing], reader: Reader, gives_up: Callable[[], bool]) -> None:
        """Do a round for some replies, whose outcomes are taken later; see ``next``."""
        with self.lock.turn(gives_up):
            self._join(wanted)
            # Of a reply that is the only one its reader may be gone before it takes what the round brings.
            worked = self._round(wanted if len(wanted) > 1 else [*wanted, *wanted], reader)
            late = self._late(wanted)
        self._after_round(late, worked=worked)

    def _late(self, wanted: Sequence[Writing]) -> list[Writing]:
        """Return the replies that have to stop, and that the caller does not read."""
        return [each for each in (*self._live, *self._waiting) if each not in wanted and each.is_cancelled]

    def _after_round(self, late: Iterable[Writing], *, worked: bool) -> None:
        for writing in late:
            reply = writing.asking
            if reply is not None:
                reply.end_unread()
        if not worked:
            # Others have the models, and their readers are somewhere else.
            self.lock.wait()

    def end(self, writing: Writing, reason: str) -> None:
        """End a reply where its reader is. Needs a turn, unless the model is closed."""
        # A cancel that came between two decodes ends here, not in the next reply.
        self.target.resume()
        n_ahead = writing.end(reason)
        text = writing.place or self.texts.idle(writing.context.session)
        if text is not None and n_ahead:
            with suppress(Closed):
                text.replace(max(0, len(text.text) - n_ahead), ())
        self._leave(writing)

    def drop(self, writing: Writing) -> None:
        """Nobody refers to a reply any more. Needs a turn."""
        if not writing.is_recorded:
            try:
                self.end(writing, "cancelled")
            finally:
                writing.record()

    def stop(self, writing: Writing) -> None:
        """Interrupt what the models compute, if it is for this reply."""
        if writing.place is not None and writing in self._live:
            self.target.cancel()

    def close(self, then: Callable[[], object]) -> None:
        """End all replies, wait for the end of a round, and call ``then`` once; there are no more turns."""
        for writing in [*self._live, *self._waiting]:
            reply = writing.asking
            if reply is not None:
                reply.close()
        self.lock.close(then)

    # --- a round

    def _join(self, wanted: Iterable[Writing]) -> None:
        for writing in wanted:
            if writing.place is None and not writing.is_over and writing not in self._waiting:
                writing.arrival = writing.arrival or next(self._arrivals) + 1
                self._waiting.append(writing)

    def _round(self, wanted: Sequence[Writing], reader: Reader) -> bool:
        """Advance all that can be advanced; whether there was any.

        A round is whole or undone: whatever interrupts it, Ctrl-C or a defect, is for whose reader does it.
        """
        try:
            return self._advance(wanted, reader)
        except BaseException:
            self._undo()
            raise

    def _undo(self) -> None:
        """Let all replies be what the last whole round has left."""
        for writing in list(self._live):
            text = writing.place
            if text is None:
                self._live.remove(writing)
                if writing.asking is not None and not writing.is_over:
                    self._wait_again(writing)
                continue
            n_text = writing.go_back()
            with suppress(Closed):
                text.replace(len(text.text) if n_text is None else n_text, ())
                writing.is_reading = writing.is_reading and bool(text.unread(1))
            if writing.is_over:
                self._leave(writing)
        self.texts.are_written(text for writing in self._live if (text := writing.place) is not None)

    def _advance(self, wanted: Sequence[Writing], reader: Reader) -> bool:
        """Do a round; see ``_round``."""
        self._follow_target()
        if self._waiting:
            self._admit(wanted, reader)
        live = [each for each in self._live if self._goes_on(each, wanted)]
        if not live:
            return False
        if not self.guard.before_round([reply for each in live if (reply := each.asking) is not None]):
            for each in list(self._live):
                self._finished(each, wanted, reason="memory")
            return True
        if self._follow_target():
            live = [each for each in live if each in self._live]
        reading, writing = list[Writing](), list[Writing]()
        for each in live:
            if not _is_read(each, wanted):
                each.run_ahead()
            (reading if each.is_reading else writing).append(each)
        try:
            if reading:
                self._in_cells(partial(self._read, n_writing=len(writing)), reading, wanted)
            self._in_cells(self._write, writing, wanted)
        except Cancelled:
            # Whoever was cancelled takes its end; for the others nothing has changed.
            self.target.resume()
        return True

    def _goes_on(self, writing: Writing, wanted: Sequence[Writing]) -> bool:
        if writing.is_over or writing.is_cancelled:
            return False
        if writing in wanted:
            return True
        # What follows when a context is full is up to its own reader: where it stops must not depend on others.
        text = _place_of(writing)
        return writing.n_ahead < _MOST_AHEAD and len(text.text) < text.model.n_ctx

    def _follow_target(self) -> bool:
        """If another target continues the texts, and holds fewer of them, the youngest wait; whether there is one."""
        if self.target.pool is self._pool:
            return False
        self._pool = self.target.pool
        self.texts.changed_target()
        for writing in self._live[self.target.most_texts :]:
            self._put_back(writing)
        while len(self._live) > 1 and not self.texts.claims():
            self._put_back(self._live[-1])
        for writing in self._live:
            # A few tokens belong to the next decode.
            text, most = _place_of(writing), self._pool.capabilities.max_rows
            writing.is_reading = len(text.text) <= text.model.n_ctx and len(text.unread(most)) == most
        return True

    # --- coming and going

    def _admit(self, wanted: Sequence[Writing], reader: Reader) -> None:
        """Let replies in that wait, in the order of arrival, as many as a decode advances and there are cells for."""
        for writing in list(self._waiting):
            if writing.is_cancelled:
                # Its end comes when its reader looks.
                self._waiting.remove(writing)
            elif writing in wanted or not self._is_left(writing, reader):
                if len(self._live) >= self.target.most_texts and not self._makes_room(wanted, reader):
                    return
                while (entered := self._enter(writing, wanted)) is False and self._makes_room(wanted, reader):
                    pass
                if entered is False:
                    return

    def _is_left(self, writing: Writing, reader: Reader) -> bool:
        """Return whether nobody reads it on."""
        reply = writing.asking
        return reply is None or reply.is_left_by(reader, _PATIENCE_S)

    def _makes_room(self, wanted: Sequence[Writing], reader: Reader) -> bool:
        """Put back a reply that nobody reads on, for one that waits; whether there was one."""
        left = [each for each in self._live if each not in wanted and self._is_left(each, reader)]
        if left:
            self._put_back(left[-1])
        return bool(left)

    def _put_back(self, writing: Writing) -> None:
        """Let a reply wait that is being written; it goes on where it was, with the same bits or read again."""
        text = _place_of(writing)
        writing.run_ahead()
        writing.put_back, writing.place = list(text.text), None
        self._live.remove(writing)
        self.texts.put_back(writing.owner, text)
        insort(self._waiting, writing, key=_arrival)

    def _enter(self, writing: Writing, wanted: Sequence[Writing]) -> bool | None:
        """Let a reply be written, or end it; False while others need the cells, None while another one reads what both
        begin with."""
        reply = writing.asking
        if reply is None:
            self._waiting.remove(writing)
            return True
        try:
            entered = self._entered(writing, reply, wanted)
            if entered is None or isinstance(entered, bool):
                return entered
            text, resumed = entered
            writing.place = text
            if not self._live:
                self.texts.sit_at(text, writing.owner, is_begun=False)
            insort(self._live, writing, key=_arrival)
            self._waiting.remove(writing)
            sampler = writing.writer.sampler
            if writing.put_back is None:
                tokens = (*writing.request.prompt, *writing.writer.token_ids)
                writing.context.begin(text, tokens, sampler, resumed=resumed, notice=reply.notice)
            else:
                # Cells that were moved have bits that reading does not give.
                if not resumed and not (writing.context.shares and text.model.capabilities.reuse_step == 1):
                    reply.notice(_READ_AGAIN, departs=True)
                text.begin(writing.put_back, sampler, reuse=resumed)
                writing.put_back = None
            writing.has_begun = True
            n_unread = len(text.unread(text.model.n_ctx))
            # Where it does not fit something has to go first. A context that is just full is read: what is moved then
            # has the bits that it has in a text that never waited.
            writing.is_reading = n_unread > 0 and len(text.text) <= text.model.n_ctx
            writing.reads(0, n_unread)
        except Cancelled:
            self.target.resume()
            self._wait_again(writing)
        except Exception as error:
            self._finished(writing, wanted, error=error)
        except BaseException:
            # Ctrl-C: nothing has been written for it.
            self._wait_again(writing)
            raise
        return True

    def _wait_again(self, writing: Writing) -> None:
        """Let a reply enter anew whose text has been emptied, since what it began with was cancelled."""
        text, writing.place = writing.place, None
        if text is not None:
            text.forget()
            self.texts.leave(None, text)
        if writing in self._live:
            self._live.remove(writing)
        if writing not in self._waiting:
            insort(self._waiting, writing, key=_arrival)

    def _entered(
        self, writing: Writing, reply: Asking, wanted: Sequence[Writing]
    ) -> tuple[Speculator, bool] | bool | None:
        """Return a text for a reply, and whether its cells hold the beginning; or what ``_enter`` returns without."""
        if writing.put_back is not None:
            return self.texts.enter(writing.owner, len(writing.put_back)) or self._no_room(len(writing.put_back))
        if not self.guard.before_reply(reply):
            self._finished(writing, (), reason="memory")
            return True
        self._follow_target()
        tokens = (*writing.request.prompt, *writing.writer.token_ids)
        twin: Speculator | None = None
        shared = 0
        # Cells that were moved, or wait outside, have bits that those of another text may not have.
        if writing.context.shares and writing.owner not in self.texts.cache:
            twin, shared = self._twin(tokens, reply.group, wanted)
        entered = writing.context.enter(self.texts, writing.owner, tokens, twin, shared)
        return self._no_room(len(tokens)) if entered is False else entered

    def _no_room(self, n_tokens: int) -> bool:
        if not self._live:
            # All cells are there for it, and they are too few.
            raise PoolFull(n_free=self.target.pool.n_free, n_needed=n_tokens)
        return False

    def _twin(
        self, tokens: Sequence[int], group: object | None, wanted: Sequence[Writing]
    ) -> tuple[Speculator | None, int]:
        """Return the text that begins most like some tokens, and how many it shares with them.

        It is one that is being written, or was written for the same group. Only where a cell has the same bits however
        it was computed. What it has yet to read is waited for only where that is worth it.
        """
        best: tuple[Speculator | None, int] = (None, 0)
        if self.target.pool.max_paths == 1 or self.target.pool.capabilities.reuse_step != 1:
            return best
        ended = (text for text in self.texts.unowned() if group is not None and self._group_of(text) is group)
        texts = {text: False for text in ended}
        for writing in self._live:
            text = _place_of(writing)
            if writing.context.shares:
                texts[text] = writing.is_reading and self._goes_on(writing, wanted)
        coming = best
        for text, is_reading in texts.items():
            n_past = text.model.n_past
            # What it has not read yet it will have read soon, if it is being read.
            n = common_prefix(text.text if is_reading else text.text[:n_past], tokens[:-1])
            coming, best = max(coming, (text, n), key=_length_of), max(best, (text, min(n, n_past)), key=_length_of)
        if best[1] < _WORTH_SHARING:
            best = None, 0
        # Whoever waits for a few tokens is written behind the others, in decodes of its own at the end.
        return coming if coming[1] - best[1] >= _WORTH_SHARING else best

    def _group_of(self, text: Speculator) -> object | None:
        """Return the group of replies for which a text was written that nobody writes any more."""
        group = self._ended.get(text)
        return group() if group is not None else None

    def _finished(
        self,
        writing: Writing,
        wanted: Sequence[Writing],
        *,
        reason: str | None = None,
        error: BaseException | None = None,
    ) -> None:
        """A reply has ended by itself."""
        if reason is not None:
            writing.writer.finish_reason = reason
        explained = self._explained(error) if error is not None else None
        writing.brought(is_read=_is_read(writing, wanted), error=explained)
        self._leave(writing)

    def _leave(self, writing: Writing) -> None:
        """Nothing more is written of a reply: its text is kept for whom it belongs to."""
        text, writing.place = writing.place, None
        for group in (self._live, self._waiting):
            if writing in group:
                group.remove(writing)
        if text is None:
            self.texts.release(writing)
            return
        self.texts.leave(writing.context.session, text)
        reply = writing.asking
        if reply is not None and reply.group is not None:
            self._ended[text] = ref(reply.group)
        else:
            self._ended.pop(text, None)
        # A target that could not be opened again has nothing to drop.
        with suppress(Closed):
            text.end_reply()

    # --- reading prompts

    def _read(self, reading: Sequence[Writing], wanted: Sequence[Writing], *, n_writing: int) -> None:
        """Read a piece of one prompt, or of several together; a whole chunk of one where its bits depend on that."""
        capabilities = self.target.pool.capabilities
        most = chunk = capabilities.prefill_chunk or self.target.pool.n_ctx
        is_divided = capabilities.reuse_step == 1
        if is_divided and n_writing and self._token_s:
            n_decodes = _PIECE_DECODES * max(1.0, len(reading) / n_writing)
            most = min(chunk, max(_LEAST_PIECE, int(n_decodes * self._decode_s / self._token_s)))
        self._turns += 1
        # By turns who has come first, and who needs least: a short prompt does not wait for the end of a long one.
        ordered = reading if self._turns % 2 else sorted(reading, key=lambda each: len(_place_of(each).unread(chunk)))
        pieces: dict[Writing, Sequence[int]] = {}
        for writing in ordered:
            piece = _place_of(writing).unread(most - sum(map(len, pieces.values())))
            if piece and (not pieces or is_divided):
                pieces[writing] = piece
        begun = perf_counter()
        try:
            self.target.read([(_place_of(writing), piece) for writing, piece in pieces.items()])
            if not n_writing and len(reading) == 1 and not _place_of(reading[0]).unread(1):
                self.target.drafter.read()
        except (Cancelled, PoolFull):
            raise
        except Exception as error:
            for writing in pieces:
                self._finished(writing, wanted, error=error)
            return
        spent, n = perf_counter() - begun, sum(map(len, pieces.values()))
        self.rows["prompt"] += n
        self._token_s += (spent / n - self._token_s) / 4 if self._token_s else spent / n
        for writing, piece in pieces.items():
            writing.writer.statistics.prefill_s += spent * len(piece) / n
            writing.has_read(len(piece))
            # What a later round leaves uncommitted belongs to the next decode, whose rows are those of a reply.
            writing.is_reading = bool(_place_of(writing).unread(1))

    # --- writing

    def _write(self, writing: Sequence[Writing], wanted: Sequence[Writing]) -> None:
        """Write on, at most as many texts as a decode has rows."""
        ready = [each for each in writing if self._has_context(each, wanted)]
        if len(ready) > 1:
            # Cells for one may have been those of another.
            ready = [each for each in ready if each.place is not None]
        if len(ready) > self.target.most_texts:
            first = self._turns % len(ready)
            ready = [*ready[first:], *ready[:first]][: self.target.most_texts]
            self._turns += len(ready)
        if ready:
            self._write_together(ready, wanted)

    def _has_context(self, writing: Writing, wanted: Sequence[Writing]) -> bool:
        """Return whether a text can go on, with room made in a context that is full."""
        text, reply = writing.place, writing.asking
        if text is None or len(text.text) < text.model.n_ctx:
            return text is not None
        try:
            if reply is not None and self._moves_on(writing, reply):
                return True
            if writing.place is not None:
                self._finished(writing, wanted, reason="context")
        except Cancelled:
            raise
        except Exception as error:
            self._finished(writing, wanted, error=error)
        return False

    def _moves_on(self, writing: Writing, reply: Asking) -> bool:
        """Take something out of a full context; whether anything could go."""
        text = _place_of(writing)
        tokens = list(text.text)
        try:
            return writing.context.make_room(text, reply.notice)
        except Cancelled:
            writing.put_back = tokens
            self._wait_again(writing)
            raise
        except PoolFull as error:
            # What is moved must not be shared, and is copied.
            if not self._frees(error):
                raise
            return writing.place is not None and self._moves_on(writing, reply)

    def _write_together(self, batch: Sequence[Writing], wanted: Sequence[Writing]) -> None:
        """Do a round of several texts, or of one: draft, decode, walk, keep and learn."""
        begun = perf_counter()
        texts = [_place_of(writing) for writing in batch]
        try:
            if len(batch) == 1:
                self.texts.sit_at(texts[0], batch[0].owner, is_begun=True)
            self.texts.gives_draft_cells(len(texts) * _DRAFT_CELLS)
            prepared = prepare(texts, [_limit(writing) for writing in batch])
        except (Cancelled, PoolFull):
            raise
        except Exception as error:
            if len(batch) == 1:
                self._finished(batch[0], wanted, error=error)
                return
            # Whose drafter has failed is found out alone.
            for writing in batch:
                self._write_together([writing], wanted)
            return
        try:
            prepared, rows = self._decoded(texts, prepared)
        except (Cancelled, PoolFull):
            raise
        except Exception as error:
            for writing in batch:
                self._finished(writing, wanted, error=error)
            return
        n_drafted = sum(len(each.draft) for each in prepared)
        self.rows["draft"] += n_drafted
        self.rows["text"] += sum(len(each.tree) for each in prepared) - n_drafted
        written, verify_s, other_s = dict[Writing, Round](), 0.0, 0.0
        for writing, text, own, its_rows in zip(batch, texts, prepared, rows, strict=True):
            writer = writing.writer
            try:
                what = writer.write(partial(text.finish, own, its_rows))
                writer.accepted(text.text, what, text.drafter.last_name if what.drafted else "")
                verify_s += what.verify_s
                other_s += what.draft_s + what.sample_s
                written[writing] = what
            except Exception as error:
                self._finished(writing, wanted, error=error)
        if len(written) == len(batch):
            for writing, failed in zip(batch, learn(texts, list(written.values())), strict=True):
                if failed is not None:
                    self._finished(writing, wanted, error=failed)
        for writing in batch:
            if writing.place is not None:
                self._brought(writing, wanted)
        self._decode_s += (verify_s - self._decode_s) / 4 if self._decode_s else verify_s
        rest_s = (perf_counter() - begun - verify_s - other_s) / len(batch)
        for writing in batch:
            writing.writer.statistics.rest_s += rest_s
            writing.writer.statistics.shared += len(batch) > 1

    def _decoded(self, texts: Sequence[Speculator], prepared: list[Prepared]) -> tuple[list[Prepared], list[Logits]]:
        """Decode what is prepared, without drafts where these lack cells that other texts of the decode have."""
        while True:
            try:
                return prepared, decode(texts, prepared)
            except PoolFull as error:
                if len(texts) == 1 or not any(each.draft for each in prepared):
                    raise
                if not self.texts.gives_cells(error.n_needed - error.n_free):
                    prepared = prepare(texts, [0] * len(texts))

    def _brought(self, writing: Writing, wanted: Sequence[Writing]) -> None:
        """A reply has been written on."""
        if writing.writer.finish_reason is not None:
            self._finished(writing, wanted)
        else:
            writing.brought(is_read=_is_read(writing, wanted))

    def _in_cells(
        self,
        advance: Callable[[Sequence[Writing], Sequence[Writing]], None],
        writing: Sequence[Writing],
        wanted: Sequence[Writing],
    ) -> None:
        """Advance replies; where they lack cells, the youngest of all wait, and the others advance without them."""
        while writing:
            try:
                advance(writing, wanted)
                return
            except PoolFull as error:
                if not self._frees(error):
                    for each in writing:
                        self._finished(each, wanted, error=error)
                    return
                writing = [each for each in writing if each.place is not None]

    def _frees(self, error: PoolFull) -> bool:
        """Free cells that were lacking; False if there is one text, and it has all."""
        if not self.texts.gives_cells(error.n_needed - error.n_free):
            if len(self._live) == 1:
                return False
            self._put_back(self._live[-1])
        return True


def _limit(writing: Writing) -> int:
    """Return the most tokens to draft for a text."""
    writer = writing.writer
    _place_of(writing).room = room = writer.max_tokens - len(writer.token_ids)
    return min(writing.next_limit(), room - 1)


def _length_of(twin: tuple[object, int]) -> int:
    return twin[1]


def _arrival(writing: Writing) -> int:
    return writing.arrival


def _first_ready(wanted: Iterable[Writing]) -> Writing | None:
    return next((each for each in wanted if each.has_news), None)


def _is_read(writing: Writing, wanted: Sequence[Writing]) -> bool:
    """Return whether what a round brings of a reply is taken before the next round."""
    return len(wanted) == 1 and wanted[0] is writing


def _place_of(writing: Writing) -> Speculator:
    assert writing.place is not None, "the reply is not being written"
    return writing.place
