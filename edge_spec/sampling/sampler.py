"""From a row of logits and the text so far to a token: one pure function for target and drafters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp, inf

import numpy as np

from edge_spec.errors import SettingsError
from edge_spec.noise import gumbel, gumbel_array, position_key, stream_of
from edge_spec.sampling.native import native_draw
from edge_spec.sampling.settings import SamplerSettings
from edge_spec.sampling.survivors import FEW, Few, Row, peak, ranked, survivors

__all__ = ["Sampler"]

_BEST = 16
"""How many candidates a guess weighs."""

_WORTH = 4.0
"""A greedy guess leaves out what lies more nats below the best: chances under 0.02 earn no row."""


class Sampler:
    """Draws the tokens of one reply.

    It has no state: a draw depends on the row, the text before it, the settings, and the prompt that fixed
    the noise stream. Rows of target and drafters go through the same noise.
    """

    def __init__(self, settings: SamplerSettings, prompt: Sequence[int]) -> None:
        self.settings = settings
        self.n_prompt = len(prompt)
        self.stream = stream_of(settings.seed, settings.attempt, prompt)
        self._native = native_draw(settings)

    def forget(self, n: int) -> None:
        """``n`` tokens have been taken out of the text, before those that are drawn from now on.

        The noise goes on as if they were still there: it hangs on the place in the reply, not in a cache.
        """
        self.n_prompt -= n

    def pick(self, row: Row, text: Sequence[int]) -> int:
        """The token that follows ``text`` (the ids of prompt and reply) by the logits ``row``, ``[n_vocab]``.

        Raises:
            SettingsError: ``logit_bias`` names a token beyond the row.
        """
        row = self._adjusted(row, text)
        if self.settings.temperature == 0:
            return peak(row)[1]
        ids, scores = self._noisy(row, text)
        if len(ids) == 1:
            return ids[0]
        best = max(scores)
        if scores.count(best) > 1:
            return min(token for token, score in zip(ids, scores, strict=True) if score == best)
        return ids[scores.index(best)]

    def guess(self, row: Row, text: Sequence[int], n: int) -> list[tuple[int, float]]:
        """At most ``n`` likeliest outcomes of another model's ``pick``, judging by this row; best first.

        Returns pairs of token and estimated chance that it is the one; the first is ``pick`` of this row. The
        chance falls with the margin by which a candidate's noisy score lies below the best one's: a target
        whose noisy scores differ from these by Gumbel errors of scale 1 picks a candidate with just this
        soft-max probability.
        """
        row = self._adjusted(row, text)
        if self.settings.temperature == 0:
            row, first = peak(row)
            top = float(row[first])
            if top == -inf:
                return [(first, 1.0)]
            close, logits = ranked(row, (row >= top - _WORTH).nonzero()[0], _BEST)
            ids, depths = close.tolist(), [top - logit for logit in logits.tolist()]
        else:
            ids, scores = self._noisy(row, text)
            top = max(scores)
            # Sorting (depth, id) puts the lowest id first among equals, as in ``pick``.
            order = sorted(zip([top - score for score in scores], ids, strict=True))
            ids, depths = [token for _, token in order], [depth for depth, _ in order]
        weights = [exp(-depth) for depth in depths]
        total = sum(weights)
        return [(token, weight / total) for token, weight in zip(ids[:n], weights, strict=False)]

    def _noisy(self, row: Row, text: Sequence[int]) -> Few:
        """The best of what can be drawn, with log probability plus noise up to a constant."""
        key = position_key(self.stream, len(text) - self.n_prompt)
        found = self._native(row, key) if self._native is not None else None
        if found is not None:
            return found
        ids, x = survivors(row, self.settings)
        temperature = self.settings.temperature
        # Differences, since the smallest temperatures would make an infinity of every logit.
        if len(ids) <= FEW:
            few = ids if isinstance(ids, list) else ids.tolist()
            x = x if isinstance(x, list) else x.tolist()
            top = max(x)
            noise = [gumbel(key, token) for token in few]
            return few, [(logit - top) / temperature + g for logit, g in zip(x, noise, strict=True)]
        tokens, logits = np.asarray(ids), np.asarray(x)
        with np.errstate(over="ignore"):
            scores = (logits - logits.max()) / temperature
        scores += gumbel_array(key, tokens)
        n = scores.size
        if n > _BEST:
            best = scores.argpartition(n - _BEST)[n - _BEST :]
            tokens, scores = tokens[best], scores[best]
        return tokens.tolist(), scores.tolist()

    def _adjusted(self, row: Row, text: Sequence[int]) -> Row:
        """The row after logit bias and penalties; a copy if they change anything."""
        settings = self.settings
        if not settings.logit_bias and not settings.penalises:
            return row
        row = row.copy()
        # Infinities and the largest floats may meet a bias; ``peak`` clears up.
        with np.errstate(over="ignore", invalid="ignore"):
            if settings.logit_bias:
                self._bias(row)
            if settings.penalises:
                self._penalise(row, text)
        return row

    def _bias(self, row: Row) -> None:
        bias = self.settings.logit_bias
        ids = np.fromiter(bias, dtype=np.int64)
        if ids.max() >= row.shape[0]:
            raise SettingsError(f"logit_bias names token {ids.max()}; this model has {row.shape[0]} tokens")
        row[ids] += np.fromiter(bias.values(), dtype=np.float32)

    def _penalise(self, row: Row, text: Sequence[int]) -> None:
        settings = self.settings
        counts = Counter(text if settings.penalty_window < 0 else text[-settings.penalty_window :])
        ids = np.fromiter(counts, dtype=np.int64)
        x = row[ids]
        penalty = np.float32(settings.repeat_penalty)
        x = np.where(x <= 0, x * penalty, x / penalty)
        x -= np.fromiter(counts.values(), dtype=np.float32) * np.float32(settings.frequency_penalty)
        x -= np.float32(settings.presence_penalty)
        row[ids] = x
