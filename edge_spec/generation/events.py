"""What a reply can tell of each of its tokens: how likely it was, and who had guessed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edge_spec.generation.request import ReplyRequest
from edge_spec.sampling import Sampler
from edge_spec.sampling.candidates import Row, head, peak
from edge_spec.speculation.round import Round

__all__ = ["EventLog", "ObservedSampler", "TokenEvent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """One token of a reply.

    Attributes:
        id: its id; None for text that was still held back when a reply was stopped between two rounds.
        text: the text that became certain with it. Together the texts of all events are the text of the reply.
        logprob: the natural logarithm of its probability, by the model's own distribution: before settings of the
            sampler, and before a grammar. None if ``logprobs`` was not asked for.
        top: as many of the likeliest tokens as were asked for, with their log probabilities, the likeliest first.
        drafted_by: the name of the drafter that had guessed it (with ``auto`` the one that was chosen); None if the
            model wrote it itself.
        round: in which round of the reply it was written, from 1.
    """

    id: int | None
    text: str
    logprob: float | None = None
    top: Mapping[int, float]
    drafted_by: str | None = None
    round: int


class ObservedSampler(Sampler):
    """A sampler that also keeps how likely each token was that it picked for the target.

    Attributes:
        seen: log probability of each pick, and the likeliest tokens with theirs; whoever reads it empties it.
    """

    def __init__(self, request: ReplyRequest, n_top: int) -> None:
        super().__init__(request.settings, request.prompt, grammar=request.grammar, breakers=request.breakers)
        self.seen: list[tuple[float, dict[int, float]]] | None = []
        self._n_top = n_top

    def view(self) -> Sampler:
        view = super().view()
        assert isinstance(view, ObservedSampler)
        # A token that a drafter picks is not yet one of the reply.
        view.seen = None
        return view

    def pick(self, row: Row, text: Sequence[int]) -> int:
        token = super().pick(row, text)
        if self.seen is not None:
            self.seen.append(_log_probabilities(row, token, self._n_top))
        return token


def _log_probabilities(row: Row, token: int, n_top: int) -> tuple[float, dict[int, float]]:
    """The log probability of a token by a row of logits, ``[n_vocab]``, and those of the ``n_top`` likeliest ones."""
    row, best = peak(row)
    most = float(row[best])
    total = most + float(np.log(np.exp(row - row[best], dtype=np.float64).sum()))
    ids, logits = head(row, n_top) if n_top else ((), ())
    return float(row[token]) - total, {int(i): float(x) - total for i, x in zip(ids, logits, strict=True)}


class EventLog:
    """Collects the events of a reply until somebody takes them.

    Args:
        sampler: what draws the tokens.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._ready: list[TokenEvent] = []
        self._texts: list[str] = []
        self._n_rounds = 0

    def took(self, text: str) -> None:
        """A token has been picked, with which this text became certain."""
        self._texts.append(text)

    def drop_taken(self) -> None:
        """What was picked since the last round is not part of the reply."""
        self._texts.clear()
        if isinstance(self._sampler, ObservedSampler) and self._sampler.seen:
            self._sampler.seen.clear()

    def round_over(self, done: Round, drafter: str) -> None:
        """A round is over: its tokens are part of the reply."""
        self._n_rounds += 1
        seen: list[tuple[float | None, dict[int, float]]] = [(None, {})] * len(done.tokens)
        if isinstance(self._sampler, ObservedSampler) and self._sampler.seen:
            seen = [*self._sampler.seen]
            self._sampler.seen.clear()
        texts, self._texts = self._texts, []
        for place, (token, text, (logprob, top)) in enumerate(zip(done.tokens, texts, seen, strict=True)):
            self._ready.append(
                TokenEvent(
                    id=token,
                    text=text,
                    logprob=logprob,
                    top=top,
                    drafted_by=drafter if place < done.accepted else None,
                    round=self._n_rounds,
                )
            )

    def ended(self, text: str) -> None:
        """End the reply with ``text``, which had been held back."""
        # A round that was cancelled half-way had taken some tokens.
        text = "".join(self._texts) + text
        self._texts.clear()
        if text and self._ready:
            self._ready[-1] = replace(self._ready[-1], text=self._ready[-1].text + text)
        elif text:
            self._ready.append(TokenEvent(id=None, text=text, top={}, round=self._n_rounds))

    def take(self) -> list[TokenEvent]:
        """Return the events that nobody has taken yet."""
        ready, self._ready = self._ready, []
        return ready
