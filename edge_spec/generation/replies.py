"""Several replies that are read together."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from edge_spec.errors import Cancelled, Closed, PromptError
from edge_spec.generation.context import Context
from edge_spec.generation.driver import Driver
from edge_spec.generation.events import TokenEvent
from edge_spec.generation.interruptible import Interruptible
from edge_spec.generation.options import ignore
from edge_spec.generation.reader import Reader
from edge_spec.generation.reply import Reply
from edge_spec.generation.request import ReplyRequest
from edge_spec.generation.writer import OF_ONE_TEXT
from edge_spec.options import require_whole
from edge_spec.sampling import SamplerSettings

__all__ = ["Asked", "Replies", "advance", "attempts"]

_MOST_AT_ONCE = 64
"""So many replies are looked at in a round: more than any decode advances."""

_MOST_REPLIES = 4096
"""To one prompt. Each takes some kilobytes before anything of it is written, which no ledger counts."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One of several replies that are asked for.

    Attributes:
        settings: of the sampler.
        request: what is asked for; None if that could not be made.
        error: why not.
    """

    settings: SamplerSettings
    request: ReplyRequest | None = None
    error: Exception | None = None


def attempts(requests: Iterable[ReplyRequest], n: int) -> list[Asked]:
    """So many replies to each request: the attempts from its own on, of the same seed.

    Raises:
        SettingsError: that is no number of replies.
    """
    require_whole("n", n, 1, _MOST_REPLIES)
    asked = []
    for request in requests:
        for attempt in range(request.settings.attempt, request.settings.attempt + n):
            settings = replace(request.settings, attempt=attempt)
            asked.append(Asked(settings=settings, request=replace(request, settings=settings)))
    return asked


class Replies(Interruptible[tuple[int, str]]):
    """Writes several replies, when it is asked for the next piece: iterate over it for pairs of a reply's number and
    a piece of its text, or call ``read``.

    On an engine that can advance several texts in one decode they are written together, as many at a time as a decode
    has rows and the memory budget has room for; on others one after the other. Each has the text that it has alone.
    An error of one of them is found in its ``error`` and leaves the others alone. As with a single reply: read it to
    its end, cancel or close it, use it as a context manager, or drop it; and ``async for`` and ``await`` work as well.

    Args:
        asked: what is asked for.
        next_limit: called before a round for the most tokens to draft.
        context: makes what keeps a reply inside the model's context.
        timeout: seconds after which all end, see ``ReplyOptions``; None for no limit.
        on_notice: called with each sentence that the reader should see.

    Attributes:
        answers: the replies.
        notices: sentences that the reader should see.
        reader: who reads it.
    """

    # Whatever fails while it is built, there is nothing to end.
    answers: tuple[Reply, ...] = ()

    def __init__(
        self,
        driver: Driver,
        asked: Sequence[Asked],
        next_limit: Callable[[], int],
        *,
        context: Callable[[], Context] = Context,
        timeout: float | None = None,
        on_notice: Callable[[str], object] = ignore,
    ) -> None:
        super().__init__(timeout)
        self.notices: list[str] = []
        self._driver = driver
        self._on_notice = on_notice
        self.answers = tuple(self._reply(index, each, next_limit, context) for index, each in enumerate(asked))
        self._unfinished = {reply.writing: reply for reply in self.answers if not reply.is_complete}

    def _reply(self, index: int, asked: Asked, next_limit: Callable[[], int], context: Callable[[], Context]) -> Reply:
        error, prompt = asked.error, tuple[int, ...]()
        if asked.request is not None:
            # They have one limit of time, and what several of them say is said once.
            options = replace(asked.request.options, timeout=None, on_notice=ignore)
            request = replace(asked.request, options=options)
            try:
                return Reply(self._driver, request, next_limit, context=context(), index=index, group=self)
            except PromptError as refusal:
                error, prompt = refusal, tuple(request.prompt)
        assert error is not None
        return Reply.refused(self._driver, prompt, asked.settings, error, index)

    # --- what has been written

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: int) -> Reply:
        return self.answers[index]

    @property
    def texts(self) -> list[str]:
        """What has been handed out of each so far."""
        return [answer.text for answer in self.answers]

    def __repr__(self) -> str:
        n_ended = sum(answer.finish_reason is not None for answer in self.answers)
        return f"<Replies: {n_ended} of {len(self)} written>"

    # --- reading them

    def _pieces_again(self) -> Iterator[tuple[int, str]] | None:
        if self._unfinished:
            return None
        return ((answer.index, piece) for answer in self.answers for piece in answer)

    def _next_piece(self) -> tuple[int, str] | None:
        return self._piece(drives=True)

    def _piece(self, *, drives: bool) -> tuple[int, str] | None:
        while self._unfinished:
            # Text that was held back until one of them ended.
            for writing, reply in islice(self._unfinished.items(), _MOST_AT_ONCE):
                if piece := writing.hand_out():
                    self._look_at(reply)
                    return reply.index, piece
            try:
                if not self._advance(drives=drives):
                    return None
            except Cancelled:
                self._end_cancelled()
            except Closed:
                raise
            except BaseException as error:
                # Before they have begun, they can still begin later.
                if any(reply.has_begun for reply in self.answers):
                    self._end("error", error if isinstance(error, Exception) else None)
                raise
        return None

    def _advance(self, *, drives: bool) -> bool:
        """Take what there is of a reply, after a round if nothing is; False if it takes a round and ``drives`` is not
        set."""
        replies = dict(islice(self._unfinished.items(), _MOST_AT_ONCE))
        over = next((each for each in replies if each.is_over), None)
        found = (over, over.take()) if over is not None else None
        # A round brings something of each: it is looked at all of them once for that.
        is_round = found is None and not any(each.has_news for each in replies)
        if found is None:
            self._check_cancelled()
            cancelled = [reply for reply in replies.values() if reply.is_cancelled] if is_round else ()
            for reply in cancelled:
                reply.end("cancelled")
            if cancelled:
                return True
            if drives or not is_round:
                found = self._driver.next(list(replies), self.reader, lambda: self.is_cancelled)
        told = replies.values() if is_round or found is None else (replies[found[0]],)
        for reply in told:
            reply.tell()
            for sentence in reply.notices:
                self._notice(sentence)
        if found is not None:
            reply = replies[found[0]]
            error = reply.took(found[1])
            self._look_at(reply)
            if error is not None and not isinstance(error, OF_ONE_TEXT):
                raise error
        return drives or found is not None

    def do_round(self, groups: Sequence[Replies]) -> None:
        """Do a round for this group and others."""
        wanted = [writing for group in groups for writing in islice(group._unfinished, _MOST_AT_ONCE)]
        self._driver.advance(wanted, self.reader, lambda: all(group.is_cancelled for group in groups))

    def _look_at(self, reply: Reply) -> None:
        if reply.is_complete:
            self._unfinished.pop(reply.writing, None)

    def _notice(self, sentence: str) -> None:
        if sentence not in self.notices:
            self.notices.append(sentence)
            self._on_notice(sentence)

    def read(self, on_piece: Callable[[int, str], object] = lambda index, piece: None) -> list[str]:
        """Write all to the end, handing every piece to ``on_piece``; returns the texts."""
        for index, piece in self:
            on_piece(index, piece)
        return self.texts

    def ready_batches(self) -> Iterator[tuple[int, list[TokenEvent]] | None]:
        """The same pairs as ``event_batches``; None where the next one takes a round, see ``advance``. To be asked only
        while it is ``being_read``."""
        return self._batches(partial(self._piece, drives=False))

    def event_batches(self) -> Iterator[tuple[int, list[TokenEvent]]]:
        """Writes all like iterating does: pairs of a reply's number and its next events, see ``Reply.events``; without
        events where that reply has ended."""
        return (batch for batch in self._batches(partial(next, self, None)) if batch is not None)

    def _batches(
        self, next_piece: Callable[[], tuple[int, str] | None]
    ) -> Iterator[tuple[int, list[TokenEvent]] | None]:
        for answer in self.answers:
            answer.tell_events()
        unfinished = [*self.answers]
        while (piece := next_piece()) is not None or self._unfinished:
            if piece is None:
                yield None
                continue
            index = piece[0]
            yield index, self.answers[index].take_events()
            for answer in [answer for answer in unfinished if answer.is_complete]:
                unfinished.remove(answer)
                yield from _last_events(answer)
        for answer in unfinished:
            yield from _last_events(answer)

    def __await__(self) -> Generator[Any, None, list[str]]:
        """Return the texts."""
        return self.aread().__await__()

    async def aread(self) -> list[str]:
        """Write them to their ends; returns the texts. A coroutine, as tasks need it."""
        async for _ in self:
            pass
        return self.texts

    # --- ending them

    def cancel(self, index: int | None = None) -> None:
        """Stop one of them soon, or all, from any thread; if nobody is reading them now, all end at once. What was
        written stays."""
        if index is None:
            super().cancel()
        else:
            self.answers[index].ask_to_stop()

    def ask_to_stop(self) -> None:
        self._cancelled.set()
        for answer in self.answers:
            answer.ask_to_stop()

    def _end(self, reason: str, error: Exception | None = None) -> None:
        """End all that have not ended."""
        for answer in self.answers:
            if not answer.has_ended:
                answer.end(reason)
                answer.error = error


def advance(groups: Sequence[Replies], reader: Reader) -> None:
    """Do a round for groups of replies of one model that one thread reads, see ``Replies.ready_batches``.

    Raises:
        Cancelled: all of them were, before it was their turn. Closed: the model is closed.
    """
    with ExitStack() as reading:
        for group in groups:
            reading.enter_context(group.being_read(reader))
        groups[0].do_round(groups)


def _last_events(answer: Reply) -> Iterator[tuple[int, list[TokenEvent]]]:
    rest = answer.take_events()
    if rest:
        yield answer.index, rest
    yield answer.index, []
