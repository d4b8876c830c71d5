"""From a row of logits and the text so far to a token: one pure function for target and drafters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp

import numpy as np

from edge_spec.errors import SettingsError
from edge_spec.noise import gumbel, gumbel_array, position_key, stream_of
from edge_spec.sampling.settings import SamplerSettings
from edge_spec.sampling.survivors import Few, Row, head, survivors

__all__ = ["Sampler"]

_BEST = 16
"""How many candidates a guess weighs."""


class Sampler:
    """Draws the tokens of one reply.

    It has no state: a draw depends on the row, the text before it, the settings, and the prompt that fixed the
    noise stream. Rows of target and drafters go through the same noise.
    """

    def __init__(self, settings: SamplerSettings, prompt: Sequence[int]) -> None:
        self.settings = settings
        self.n_prompt = len(prompt)
        self.stream = stream_of(settings.seed, settings.attempt, prompt)

    def pick(self, row: Row, text: Sequence[int]) -> int:
        """The token that follows ``text``, prompt included, where the model's logits are ``row``, ``[n_vocab]``."""
        settings = self.settings
        row = self._adjusted(row, text)
        if settings.temperature == 0:
            best = int(row.argmax())
            # arg max takes a NaN for the best there is.
            return best if row[best] == row[best] else int(np.nan_to_num(row, nan=-np.inf).argmax())
        ids, scores = self._noisy(row, text)
        best = max(scores)
        if scores.count(best) > 1:
            return min(token for token, score in zip(ids, scores, strict=True) if score == best)
        return ids[scores.index(best)]

    def guess(self, row: Row, text: Sequence[int], n: int) -> list[tuple[int, float]]:
        """The ``n`` likeliest outcomes of another model's ``pick``, judging by this row; best first.

        Returns pairs of token and estimated chance that it is the one. The chance falls with the margin by
        which a candidate's noisy score lies below the best one's: a target whose noisy scores differ from
        these by Gumbel errors of scale 1 picks a candidate with just this soft-max probability.
        """
        row = self._adjusted(row, text)
        if self.settings.temperature == 0:
            best, logits = head(row, min(_BEST, row.shape[0]))
            ids, scores = best.tolist(), logits.tolist()
        else:
            ids, scores = self._noisy(row, text)
        ranked = sorted(zip(scores, ids, strict=True), reverse=True)
        top = ranked[0][0]
        weights = [exp(score - top) for score, _ in ranked]
        total = sum(weights)
        return [(token, weight / total) for (_, token), weight in zip(ranked[:n], weights, strict=False)]

    def _noisy(self, row: Row, text: Sequence[int]) -> Few:
        """The best of what can be drawn, with log probability plus noise up to a constant."""
        ids, x = survivors(row, self.settings)
        temperature = self.settings.temperature
        key = position_key(self.stream, len(text) - self.n_prompt)
        if isinstance(ids, list):
            return ids, [logit / temperature + gumbel(key, token) for token, logit in zip(ids, x, strict=True)]
        scores = x / temperature + gumbel_array(key, ids)
        n = scores.size
        best = scores.argpartition(n - _BEST)[n - _BEST :] if n > _BEST else np.arange(n)
        return ids[best].tolist(), scores[best].tolist()

    def _adjusted(self, row: Row, text: Sequence[int]) -> Row:
        """The row after logit bias and penalties; a copy if they change anything."""
        settings = self.settings
        if not settings.logit_bias and not settings.penalises:
            return row
        row = row.copy()
        if settings.logit_bias:
            ids = np.fromiter(settings.logit_bias, dtype=np.int64)
            if ids.max() >= row.shape[0]:
                raise SettingsError(f"logit_bias names token {ids.max()}; this model has {row.shape[0]} tokens")
            row[ids] += np.fromiter(settings.logit_bias.values(), dtype=np.float32)
        if settings.penalises:
            window = text if settings.penalty_window < 0 else text[-settings.penalty_window :]
            counts = Counter(window)
            if counts:
                ids = np.fromiter(counts, dtype=np.int64)
                x = row[ids]
                penalty = np.float32(settings.repeat_penalty)
                x = np.where(x <= 0, x * penalty, x / penalty)
                x -= np.fromiter(counts.values(), dtype=np.float32) * np.float32(settings.frequency_penalty)
                x -= np.float32(settings.presence_penalty)
                row[ids] = x
        return row
