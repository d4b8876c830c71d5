"""Draw a token from a row of logits and the text so far, by one function for target and drafters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from math import exp
from typing import Any, NamedTuple

import numpy as np

from edge_spec.errors import GrammarDeadEnd, NoNumbers, StateError
from edge_spec.sampling.adjustments import Breakers, Changes, adjusted, adjusts, bias_changes, changes
from edge_spec.sampling.candidates import Candidates, Ids, Row, allowed_row, candidates_of, mirostat, next_mu, peak
from edge_spec.sampling.filters import FEW, Logits
from edge_spec.sampling.grammar import Grammar, KeptNode, Node, Progress
from edge_spec.sampling.native import LEFT, Rows, native_draw, native_guesses
from edge_spec.sampling.noise import coin, gumbel, gumbel_array, position_key, stream_of
from edge_spec.sampling.settings import SamplerSettings
from edge_spec.tokens.kept_tokens import KeptTokens

__all__ = ["Asked", "Guesses", "Sampler", "guess_all"]

Guesses = list[tuple[int, float]]
"""Tokens and the chance of each."""

Scored = tuple[list[int], list[float]]
"""Token ids and their noisy scores."""

_BEST = 16
"""The most candidates of a guess."""

_BEST_ONE = SamplerSettings(temperature=0, top_k=1, top_p=1, min_p=0)
_GREEDY_GUESS = SamplerSettings(temperature=0, top_k=_BEST, top_p=1, min_p=exp(-4))
"""Leaves out candidates more than 4 nats below the best: chances under 0.02 are not worth a row."""


class Sampler:
    """Draws the tokens of one reply.

    A draw depends on the row, the text before it, the settings, and the prompt that fixed the noise stream. Rows of
    target and drafters go through the same noise.

    Only a grammar and mirostat have a state. It belongs to positions in the reply (``Node``):
    picking at a place any number of times, in any order, changes nothing elsewhere, so what is not accepted leaves no
    trace. ``commit`` accepts a text and drops the other states.

    Args:
        prompt: token ids of the whole prompt as it was before any trimming.
        grammar: which replies are possible.
        breakers: sequence breakers of DRY, from ``find_breakers``.
    """

    def __init__(
        self,
        settings: SamplerSettings,
        prompt: Sequence[int],
        *,
        grammar: Grammar | None = None,
        breakers: Breakers | None = None,
    ) -> None:
        self.settings = settings
        self.stream = stream_of(settings.seed, settings.attempt, prompt)
        self.has_grammar = grammar is not None
        self._remembers = self.has_grammar or settings.uses_mirostat
        self._moves_mu = settings.uses_mirostat
        start = Node(0, grammar.start() if grammar is not None else None, 2.0 * settings.mirostat_tau)
        self._progress = Progress(len(prompt), start)
        self._breakers = breakers or {}
        self._adjusts = adjusts(settings)
        self._reads_text = settings.uses_penalties or settings.uses_dry
        self._scored_by = settings if settings.temperature > 0 else _GREEDY_GUESS
        self._use(None)

    def _use(self, kept: KeptTokens | None) -> None:
        """Draw from rows with columns for these tokens only, see ``over``."""
        self._kept = kept
        self._bias = bias_changes(self.settings, kept)
        self._native = None if self.has_grammar else native_draw(self._scored_by, kept)
        # Draws in C. Python finds the best of an unchanged row faster.
        usual = self.settings.temperature > 0 or (self._adjusts and not self.settings.uses_penalties)
        self._picker = self._native if usual else None

    def view(self) -> Sampler:
        """Return the sampler for drafters: the same draws, without moving mirostat's mu."""
        view = copy(self)
        view._moves_mu = False
        return view

    def over(self, kept: KeptTokens | None) -> Sampler:
        """Return the sampler for rows that have a column for each of these tokens only; itself if None.

        It draws as if the other tokens were impossible: every token has the noise that it has elsewhere.
        """
        if kept is None:
            return self
        view = copy(self)
        view._use(kept)
        return view

    def forget(self, n: int) -> None:
        """Note that ``n`` tokens were removed from the text before the next draws.

        The noise continues as if they were still there: it depends on the place in the reply, not in a cache.
        """
        self._progress.n_before -= n

    def pick(self, row: Row, text: Sequence[int]) -> int:
        """Return the token that follows ``text`` (the ids of prompt and reply) by the logits ``row``, ``[n_vocab]``.

        See ``over`` for rows with fewer columns.

        Raises:
            SettingsError: ``logit_bias`` names a token beyond the row.
            GrammarDeadEnd: the grammar allows no token. NoNumbers: the row holds none.
        """
        if self._picker is not None:
            changed, by = self._changed(row, text)
            token = self._picker.pick(changed, self.stream, self._index(len(text)), by)
            if token >= 0:
                return token
        token = self._picked(row, text)
        if self._kept is None and row[token] != row[token] and np.isnan(row).all():
            raise NoNumbers
        return token

    def _picked(self, row: Row, text: Sequence[int]) -> int:
        row = self._adjusted(row, text)
        if self.settings.temperature == 0:
            if not self.has_grammar:
                return int(self._ids(peak(row)[1]))
            return int(self._ids(candidates_of(row, _BEST_ONE, self._node(text))[0][0]))
        if not self._moves_mu:
            return _winner(*self._scored(row, text))
        node, key = self.place(text), self._key(text)
        ids, x = self._candidates(row, self._node(text), key)
        token = _winner(*self._with_noise(ids, x, key))
        node.below(token).mu = next_mu(node.mu, x, int(ids.searchsorted(token)), self.settings)
        return token

    def guess(self, row: Row, text: Sequence[int], n: int) -> Guesses:
        """Return at most ``n`` likeliest outcomes of another model's ``pick``, judged by this row; best first.

        Returns pairs of token and estimated chance that it is the one; the first is ``pick`` of this row. The
        chance falls with the margin by which a candidate's noisy score lies below the best one's: a target
        whose noisy scores differ from these by Gumbel errors of scale 1 picks a candidate with just this
        soft-max probability. The list is empty if the grammar allows no token.
        """
        return guess_all([Asked(self, row[None], len(text), lambda _: text)], n)[0][0]

    def _told(self, asked: Asked, held: list[object]) -> list[bytes]:
        """Return the arguments of C for rows, see ``NativeDraw.asked``."""
        native, index = self._native, self._index(asked.length)
        if native is None:
            return [LEFT] * len(asked.rows)
        if not self._reads_text:
            return native.asked(asked.rows, self.stream, index, held, self._bias if self._adjusts else None)
        changed = [self._changed(row, asked.text_of(number)) for number, row in enumerate(asked.rows)]
        held += changed
        return [each for row, by in changed for each in native.asked(row[None], self.stream, index, held, by)]

    def _guess(self, row: Row, text: Sequence[int], n: int) -> Guesses:
        """Guess in Python."""
        try:
            ids, scores = self._scored(self._adjusted(row, text), text)
        except GrammarDeadEnd:
            return []
        top = max(scores)
        # Sorting (depth, id) puts the lowest id first among equals, as in ``pick``.
        order = sorted(zip([top - score for score in scores], ids, strict=True))
        weights = [exp(-depth) for depth, _ in order]
        total = _total(weights)
        return [(token, weight / total) for (_, token), weight in zip(order[:n], weights, strict=False)]

    def place(self, text: Sequence[int]) -> Node:
        """Return the state at the end of ``text``."""
        return self._progress.at(text)

    def commit(self, text: Sequence[int]) -> None:
        """Accept ``text`` and drop the states before its end."""
        if self._remembers:
            self._progress.accepted = self.place(text)

    @property
    def accepted(self) -> Node:
        """The state at the end of the accepted text; for ``go_back``."""
        return self._progress.accepted

    def go_back(self, accepted: Node) -> None:
        """Return to an earlier accepted state."""
        self._progress.accepted = accepted

    def state(self) -> dict[str, float]:
        """Return the state that accepted tokens do not determine; for ``resume``."""
        return {"mu": self._progress.accepted.mu} if self.settings.uses_mirostat else {}

    def resume(self, reply: Sequence[int], state: Mapping[str, float] | None = None) -> None:
        """Continue after an existing reply.

        Args:
            reply: all its token ids from the start.
            state: what ``state`` returned there; without it, mirostat starts again.

        Raises:
            StateError: the grammar does not allow this reply.
        """
        if not self._remembers:
            return
        node = self._progress.accepted
        for index, token in enumerate(reply):
            if not node.allowed([token])[0]:
                raise StateError(f"the grammar does not allow token {index} of the reply", hint="use its grammar")
            node = node.below(token)
        node.mu = (state or {}).get("mu", node.mu)
        self._progress.accepted = node

    def _adjusted(self, row: Row, text: Sequence[int]) -> Row:
        return adjusted(row, text, self.settings, self._breakers, self._kept) if self._adjusts else row

    def _changed(self, row: Row, text: Sequence[int]) -> tuple[Row, Changes | None]:
        """Return a row, with penalties applied, and the changes that C adds before it draws."""
        if not self._adjusts:
            return row, None
        if self.settings.uses_penalties:
            return self._adjusted(row, text), None
        return row, changes(text, self.settings, self._breakers, self._bias, self._kept)

    def _ids(self, columns: Any) -> Any:
        """Return the token ids of columns of a row."""
        return columns if self._kept is None else self._kept.ids[columns]

    def _key(self, text: Sequence[int]) -> int:
        return position_key(self.stream, self._index(len(text)))

    def _index(self, length: int) -> int:
        """Return the index in the reply of the token after a text of this length."""
        return length - self._progress.n_before

    def _node(self, text: Sequence[int]) -> Node | None:
        """Return the position at the end of ``text``, by columns of a row; None if there is no state."""
        if not self._remembers:
            return None
        node = self.place(text)
        return node if self._kept is None else KeptNode(node, self._kept)

    def _scored(self, row: Row, text: Sequence[int]) -> Scored:
        """Return the best candidates with log probability plus noise, up to a constant."""
        key = self._key(text)
        return self._with_noise(*self._candidates(row, self._node(text), key), key)

    def _candidates(self, row: Row, node: Node | None, key: int) -> Candidates:
        """Return the candidates, before temperature."""
        if node is None or not self.settings.uses_mirostat:
            columns, x = candidates_of(row, self._scored_by, node, toss=coin(key))
        else:
            # Mirostat needs the whole row, so the grammar checks all tokens.
            row = row if node.state is None else allowed_row(row, node)
            columns, x = mirostat(row, self.settings.temperature, node.mu)
        return self._ids(columns), x

    def _with_noise(self, ids: Ids, x: Logits, key: int) -> Scored:
        """Return the scores of the candidates, or of the best of them if they are many.

        Without noise at temperature 0.
        """
        scores = x - x.max()
        if self.settings.temperature == 0:
            return ids.tolist(), scores.tolist()
        # Scale differences, since the smallest temperatures would turn every logit into infinity.
        with np.errstate(over="ignore"):
            scores /= self.settings.temperature
        if ids.size <= FEW:
            few = ids.tolist()
            return few, [score + gumbel(key, token) for token, score in zip(few, scores.tolist(), strict=True)]
        scores += gumbel_array(key, ids)
        best = scores.argpartition(ids.size - _BEST)[ids.size - _BEST :]
        return ids[best].tolist(), scores[best].tolist()


class Asked(NamedTuple):
    """Rows of logits that ``guess_all`` guesses from.

    Attributes:
        sampler: draws from them.
        rows: ``[n, n_vocab]``.
        length: of the texts that they follow, which are equally long.
        text_of: returns the text of a row by its number; called only where the draw depends on what was written.
    """

    sampler: Sampler
    rows: Rows
    length: int
    text_of: Callable[[int], Sequence[int]]


def guess_all(asked: Sequence[Asked], n: int) -> list[list[Guesses]]:
    """Return ``Sampler.guess`` for each row of each request, in one call where C guesses."""
    held: list[object] = []
    found = iter(native_guesses([row for each in asked for row in each.sampler._told(each, held)], n))
    return [
        [next(found) or each.sampler._guess(each.rows[row], each.text_of(row), n) for row in range(len(each.rows))]
        for each in asked
    ]


def _winner(ids: Sequence[int], scores: Sequence[float]) -> int:
    """Return the id with the best score, the lowest among equals."""
    best = max(scores)
    return min(token for token, score in zip(ids, scores, strict=True) if score == best)


def _total(numbers: Iterable[float]) -> float:
    """Return the sum in C's order; Python's own ``sum`` compensates rounding."""
    total = 0.0
    for number in numbers:
        total += number
    return total
