"""One of several replies that are written together or one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol, TypeVar

from edge_spec.errors import PromptError
from edge_spec.generation.events import EventLog, TokenEvent
from edge_spec.generation.request import ReplyRequest
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.statistics import Statistics

__all__ = ["Answer", "answers_to", "attempts"]

Prompt = TypeVar("Prompt")


class _Written(Protocol):
    """What writes an answer."""

    @property
    def token_ids(self) -> list[int]: ...

    @property
    def finish_reason(self) -> str | None: ...

    @property
    def statistics(self) -> Statistics: ...

    @property
    def n_reused(self) -> int: ...

    def event_log(self) -> EventLog: ...


class Answer:
    """One of several replies.

    Attributes:
        index: its number among them, from 0.
        prompt: token ids of the prompt; empty if that could not be tokenized.
        settings: of the sampler.
        error: why it could not be written, where ``finish_reason`` is ``error``; None otherwise.
        is_cancelled: whether it was asked to stop.

    Args:
        request: None if there is an ``error`` already.
    """

    def __init__(
        self, index: int, settings: SamplerSettings, request: ReplyRequest | None, error: Exception | None = None
    ) -> None:
        self.index = index
        self.settings = settings
        self.prompt = tuple(request.prompt) if request is not None else ()
        self.error = error
        self.is_cancelled = False
        self._request = request
        self._reason = "error" if error is not None else None
        self._written: _Written | None = None
        self._pieces: list[str] = []
        self._n_queued = 0
        self._log: EventLog | None = None
        self._events: list[TokenEvent] = []
        self._tells_events = False

    @property
    def text(self) -> str:
        """What has been handed out so far."""
        return "".join(self._pieces)

    @property
    def token_ids(self) -> list[int]:
        """Token ids written so far, the end token included."""
        return self._written.token_ids if self._written is not None else []

    @property
    def finish_reason(self) -> str | None:
        """None while it waits or is written, then why it has ended, see ``Reply.finish_reason``."""
        return self._reason or (self._written.finish_reason if self._written is not None else None)

    @property
    def is_complete(self) -> bool:
        """Whether it has ended, and all of its text has been handed out."""
        return self.finish_reason is not None and not self._n_queued

    @property
    def statistics(self) -> Statistics:
        """Counts and times. A decode that advances several texts counts for each of them in full."""
        if self._written is not None:
            return self._written.statistics
        return Statistics(prompt_tokens=len(self.prompt))

    @property
    def n_reused(self) -> int:
        """How many tokens of the prompt were not read, since the models' caches held them."""
        return self._written.n_reused if self._written is not None else 0

    def __repr__(self) -> str:
        return f"<Answer {self.index}: {len(self.token_ids)} tokens, {self.finish_reason or 'being written'}>"

    # --- for what writes it

    @property
    def request(self) -> ReplyRequest:
        """What was asked for."""
        assert self._request is not None
        return self._request

    def write_with(self, written: _Written) -> None:
        """What writes it from now on."""
        self._written = written
        if self._tells_events:
            self._events = self.take_events()
            self._log = written.event_log()

    def tell_events(self) -> None:
        """Collect the events of what will be written of it."""
        self._tells_events = True

    def take_events(self) -> list[TokenEvent]:
        """Return the events that nobody has taken yet."""
        taken, self._events = self._events, []
        return taken + (self._log.take() if self._log is not None else [])

    def is_written_by(self, written: object) -> bool:
        """Return whether this is what writes it."""
        return self._written is written

    def continue_after(self, drawn: dict[str, float]) -> None:
        """Let what writes it next continue after the tokens that there are; ``drawn`` as for ``ReplyRequest``."""
        n_new = len(self.token_ids) - len(self.request.written)
        most = self.request.options.max_tokens
        left = replace(self.request.options, max_tokens=None if most is None else most - n_new)
        self._request = replace(self.request, written=tuple(self.token_ids), drawn=drawn, options=left)

    def queue(self, n: int) -> None:
        """So many pieces of its text are there that nobody has read."""
        self._n_queued += n

    def hand_out(self, piece: str) -> None:
        """A piece of its text has been read."""
        self._n_queued -= 1
        self._pieces.append(piece)

    def fail(self, error: Exception) -> None:
        """It has ended with an error, whether or not what writes it says so."""
        self.error = error
        self._reason = "error"

    def end(self, reason: str, error: Exception | None = None) -> None:
        """It has ended; the first reason stays."""
        if self.finish_reason is None:
            self.error = error
            self._reason = reason


def attempts(requests: Iterable[ReplyRequest], n: int) -> list[Answer]:
    """So many answers to each request: the attempts from its own on, of the same seed."""
    found: list[Answer] = []
    for request in requests:
        for attempt in range(request.settings.attempt, request.settings.attempt + n):
            sampling = replace(request.settings, attempt=attempt)
            found.append(Answer(len(found), sampling, replace(request, settings=sampling)))
    return found


def answers_to(
    prompts: Iterable[Prompt], settings: SamplerSettings, request_of: Callable[[Prompt], ReplyRequest]
) -> list[Answer]:
    """Return an answer to each of several prompts.

    Where ``request_of`` refuses a prompt, that is the error of its answer.
    """
    found = []
    for index, prompt in enumerate(prompts):
        try:
            found.append(Answer(index, settings, request_of(prompt)))
        except PromptError as error:
            found.append(Answer(index, settings, None, error))
    return found
