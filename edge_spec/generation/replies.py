"""Several replies that are read together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from edge_spec.errors import PromptError
from edge_spec.generation.events import TokenEvent
from edge_spec.generation.options import ignore
from edge_spec.generation.readable import Readable
from edge_spec.generation.reader import in_a_thread
from edge_spec.generation.reply import Reply
from edge_spec.generation.request import ReplyRequest
from edge_spec.generation.scheduler import Scheduler
from edge_spec.generation.sequence import OF_ONE_TEXT, Claim
from edge_spec.generation.sequence import Sequence as TextSequence
from edge_spec.options import require_whole
from edge_spec.sampling import SamplerSettings

__all__ = ["Asked", "Replies", "attempts"]

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


class Replies(Readable[tuple[int, str]]):
    """Writes several replies, when it is asked for the next piece: iterate over it for pairs of a reply's number and
    a piece of its text, or call ``read``.

    On an engine that can advance several texts in one decode they are written together, as many at a time as a decode
    has rows and the memory budget has room for; on others one after the other. Each has the text that it has alone.
    An error of one of them is found in its ``error`` and leaves the others alone. As with a single reply: read it to
    its end, cancel or close it, use it as a context manager, or drop it; and ``async for`` and ``await`` work as well.

    Args:
        asked: what is asked for.
        next_limit: called before a round for the most tokens to draft.
        timeout: seconds after which all end, see ``ReplyOptions``; None for no limit.
        on_notice: called with each sentence that the reader should see.

    Attributes:
        answers: the replies.
        notices: sentences that the reader should see.
    """

    # If building it fails, there is nothing to end.
    answers: tuple[Reply, ...] = ()

    def __init__(
        self,
        scheduler: Scheduler,
        asked: Sequence[Asked],
        next_limit: Callable[[], int],
        *,
        timeout: float | None = None,
        on_notice: Callable[[str], object] = ignore,
    ) -> None:
        super().__init__(scheduler, Claim(timeout))
        self.notices: list[str] = []
        self._on_notice = on_notice
        self.answers = tuple(self._reply(index, each, next_limit) for index, each in enumerate(asked))
        self._untold_ends: list[Reply] = []
        self._unfinished = {reply.sequence: reply for reply in self.answers if not reply.is_complete}

    def _reply(self, index: int, asked: Asked, next_limit: Callable[[], int]) -> Reply:
        error, request = asked.error, asked.request
        if request is not None:
            # They have one limit of time, and what several of them say is said once.
            request = replace(request, options=replace(request.options, timeout=None, on_notice=ignore))
            try:
                return Reply(self._scheduler, request, next_limit, index=index, group=self.claim)
            except PromptError as refusal:
                error = refusal
        assert error is not None
        return Reply.refused(self._scheduler, request, asked.settings, error, index)

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

    @property
    def is_complete(self) -> bool:
        return not self._unfinished

    @property
    def has_begun(self) -> bool:
        return any(reply.has_begun for reply in self.answers)

    def sequences(self) -> Sequence[TextSequence]:
        return list(islice(self._unfinished, _MOST_AT_ONCE))

    def ready_piece(self) -> tuple[int, str] | None:
        for sequence, reply in list(islice(self._unfinished.items(), _MOST_AT_ONCE)):
            while True:
                if piece := sequence.hand_out():
                    self._look_at(reply)
                    return reply.index, piece
                step = reply.next_step()
                if step is None:
                    break
                if step.notice is not None:
                    self._notice(step.notice)
                if step.error is not None and not isinstance(step.error, OF_ONE_TEXT):
                    self._look_at(reply)
                    raise step.error
            self._look_at(reply)
        return None

    def _look_at(self, reply: Reply) -> None:
        if reply.is_complete:
            self._unfinished.pop(reply.sequence, None)

    def _notice(self, sentence: str) -> None:
        if sentence not in self.notices:
            self.notices.append(sentence)
            self._on_notice(sentence)

    def read(self, on_piece: Callable[[int, str], object] | None = None) -> list[str]:
        """Write all to the end, handing every piece to ``on_piece``; returns the texts."""
        if on_piece is None:
            self._read_on()
        else:
            for index, piece in self:
                on_piece(index, piece)
        return self.texts

    def event_batches(self) -> Iterator[tuple[int, list[TokenEvent]]]:
        """Writes all like iterating does: pairs of a reply's number and its next events, see ``Reply.events``; without
        events where that reply has ended."""
        self.tell_events()
        while (piece := next(self, None)) is not None:
            yield from self._batch(piece[0])
        yield from self._ended()

    async def event_batches_async(self, at_least: int = 1) -> AsyncIterator[tuple[int, list[TokenEvent]]]:
        """The same for event loops.

        Args:
            at_least: steps of one of them that are waited for, or its end: fewer wake-ups cost less.
        """
        self.tell_events()
        self.claim.takes_all = at_least > 1
        try:
            while True:
                while (piece := self.ready_piece()) is not None:
                    for batch in self._batch(piece[0]):
                        yield batch
                for batch in self._ended():
                    yield batch
                if self.is_complete:
                    return
                await self.wait_async(at_least)
        except Exception as error:
            await in_a_thread(partial(self._end_by, error))
            raise

    def tell_events(self) -> None:
        """Collect events of all from now on."""
        for answer in self.answers:
            answer.tell_events()
        self._untold_ends = list(self.answers)

    def _batch(self, index: int) -> Iterator[tuple[int, list[TokenEvent]]]:
        yield index, self.answers[index].take_events()
        yield from self._ended()

    def _ended(self) -> Iterator[tuple[int, list[TokenEvent]]]:
        """Yield the last events of replies that have ended since."""
        for answer in [answer for answer in self._untold_ends if answer.is_complete]:
            self._untold_ends.remove(answer)
            if rest := answer.take_events():
                yield answer.index, rest
            yield answer.index, []

    def __await__(self) -> Generator[Any, None, list[str]]:
        """Return the texts."""
        return self.aread().__await__()

    async def aread(self) -> list[str]:
        """Write them to their ends; returns the texts. A coroutine, as tasks need it."""
        await self._read_on_async()
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
        self.claim.is_cancelled = True
        for answer in self.answers:
            answer.ask_to_stop()

    def end(self, reason: str, error: BaseException | None = None) -> None:
        self._end_all([answer.sequence for answer in self.answers], reason, error)
        for answer in self.answers:
            self._look_at(answer)
