"""From a row of logits and the text so far to a token: one function for target and drafters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, inf

import numpy as np
import numpy.typing as npt

from edge_spec.errors import GrammarDeadEnd, StateError
from edge_spec.sampling.adjustments import adjusted, adjusts
from edge_spec.sampling.candidates import FEW, Few, Ids, Many, Row, candidates_among, candidates_of, peak, ranked
from edge_spec.sampling.dry import Breakers
from edge_spec.sampling.grammar import Grammar, Line, Node
from edge_spec.sampling.mirostat import mirostat, next_mu
from edge_spec.sampling.native import native_draw
from edge_spec.sampling.noise import coin, gumbel, gumbel_array, position_key, stream_of
from edge_spec.sampling.settings import SamplerSettings
from edge_spec.sampling.xtc import without_top_choices

__all__ = ["Sampler"]

_BEST = 16
"""How many candidates a guess weighs."""

_WORTH = 4.0
"""A greedy guess leaves out what lies more nats below the best: chances under 0.02 earn no row."""

_BEST_ONE = SamplerSettings(temperature=0, top_k=1, top_p=1, min_p=0)
_WORTH_ROWS = SamplerSettings(temperature=0, top_k=_BEST, top_p=1, min_p=exp(-_WORTH))


class Sampler:
    """Draws the tokens of one reply.

    A draw depends on the row, the text before it, the settings, and the prompt that fixed the noise stream. Rows of
    target and drafters go through the same noise.

    Only a grammar and mirostat have a memory. It belongs to places in the reply (see ``Line``): picking at a place
    any number of times, in any order, changes nothing elsewhere, so what is not accepted leaves no trace. Whoever
    owns the text says with ``commit`` what is accepted, so that the way there need not be remembered.

    Args:
        prompt: token ids of the whole prompt as it was before any trimming.
        grammar: which replies are possible.
        breakers: what DRY does not look beyond, of ``find_breakers``.
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
        self.n_prompt = len(prompt)
        self.stream = stream_of(settings.seed, settings.attempt, prompt)
        self.has_grammar = grammar is not None
        self._breakers = breakers or {}
        self._adjusts = adjusts(settings)
        self._native = native_draw(settings) if grammar is None else None
        self._has_mu = settings.uses_mirostat
        self._level = 0
        self._line: Line | None = None
        self._last: tuple[Node, float, Ids, npt.NDArray[np.float64]]
        if grammar is not None or self._has_mu:
            mu = 2.0 * settings.mirostat_tau if self._has_mu else None
            self._line = Line(grammar.start() if grammar is not None else None, mu)

    def view(self) -> Sampler:
        """The sampler for a smaller model, whose rows must not move the mu of the larger one."""
        return _View(self) if self._has_mu else self

    def forget(self, n: int) -> None:
        """``n`` tokens have been taken out of the text, before those that are drawn from now on.

        The noise goes on as if they were still there: it hangs on the place in the reply, not in a cache.
        """
        self.n_prompt -= n

    def pick(self, row: Row, text: Sequence[int]) -> int:
        """The token that follows ``text`` (the ids of prompt and reply) by the logits ``row``, ``[n_vocab]``.

        Raises:
            SettingsError: ``logit_bias`` names a token beyond the row.
            GrammarDeadEnd: the grammar allows no token.
        """
        row = self._adjusted(row, text)
        if self.settings.temperature == 0:
            return peak(row)[1] if self._line is None else int(self._allowed(row, text, _BEST_ONE)[0][0])
        ids, scores = self._noisy(row, text)
        if len(ids) == 1:
            token = ids[0]
        else:
            best = max(scores)
            if scores.count(best) > 1:
                token = min(token for token, score in zip(ids, scores, strict=True) if score == best)
            else:
                token = ids[scores.index(best)]
        if self._has_mu:
            self._remember((token,))
        return token

    def guess(self, row: Row, text: Sequence[int], n: int) -> list[tuple[int, float]]:
        """At most ``n`` likeliest outcomes of another model's ``pick``, judging by this row; best first.

        Returns pairs of token and estimated chance that it is the one; the first is ``pick`` of this row. The
        chance falls with the margin by which a candidate's noisy score lies below the best one's: a target
        whose noisy scores differ from these by Gumbel errors of scale 1 picks a candidate with just this
        soft-max probability. Nothing follows where the grammar allows nothing.
        """
        try:
            ids, depths = self._ranked(self._adjusted(row, text), text)
        except GrammarDeadEnd:
            return []
        weights = [exp(-depth) for depth in depths]
        total = sum(weights)
        guesses = [(token, weight / total) for token, weight in zip(ids[:n], weights, strict=False)]
        if self._has_mu:
            self._remember(ids[:n])
        return guesses

    def place(self, text: Sequence[int]) -> Node:
        """Where ``text`` ends in the grammar."""
        assert self._line is not None, "only a sampler with a memory has places"
        return self._line.at(text, len(text) - self.n_prompt)

    def commit(self, text: Sequence[int]) -> None:
        """``text`` is accepted; nothing is asked any more about places before its end.

        From now on the text before may be cut, if ``n_prompt`` falls by as much.
        """
        if self._line is not None:
            self._line.commit(text, len(text) - self.n_prompt)

    def state(self) -> dict[str, float]:
        """What cannot be told from the accepted tokens; for ``resume``."""
        return {"mu": self._line.root.mu[0]} if self._line is not None and self._has_mu else {}

    def resume(self, reply: Sequence[int], state: Mapping[str, float] | None = None) -> None:
        """Go on after a reply that is written already.

        Args:
            reply: all its token ids from the start.
            state: what ``state`` returned there; mirostat starts anew without.

        Raises:
            StateError: the reply is none that the grammar allows.
        """
        if self._line is None:
            return
        node = self._line.root
        for index, token in enumerate(reply):
            if not node.allowed([token])[0]:
                raise StateError(f"the grammar does not allow token {index} of the reply", hint="use its grammar")
            node = node.below(token)
        if self._has_mu:
            node.mu = {0: float((state or {}).get("mu", 2.0 * self.settings.mirostat_tau))}
        self._line.root, self._line.index = node, len(reply)

    def _adjusted(self, row: Row, text: Sequence[int]) -> Row:
        return adjusted(row, text, self.settings, self._breakers) if self._adjusts else row

    def _ranked(self, row: Row, text: Sequence[int]) -> tuple[list[int], list[float]]:
        """The best of what can be drawn, best first, and how far each lies below the best."""
        if self.settings.temperature == 0:
            if self._line is not None:
                found, logits = self._allowed(row, text, _WORTH_ROWS)
                order = np.argsort(-np.asarray(logits), kind="stable")[:_BEST].tolist()
                return [int(found[i]) for i in order], [float(logits[order[0]] - logits[i]) for i in order]
            row, first = peak(row)
            top = float(row[first])
            if top == -inf:
                return [first], [0.0]
            close, near = ranked(row, (row >= top - _WORTH).nonzero()[0], _BEST)
            return close.tolist(), [top - logit for logit in near.tolist()]
        ids, scores = self._noisy(row, text)
        top = max(scores)
        # Sorting (depth, id) puts the lowest id first among equals, as in ``pick``.
        order = sorted(zip([top - score for score in scores], ids, strict=True))
        return [token for _, token in order], [depth for depth, _ in order]

    def _noisy(self, row: Row, text: Sequence[int]) -> Few:
        """The best of what can be drawn, with log probability plus noise up to a constant."""
        key = position_key(self.stream, len(text) - self.n_prompt)
        found = self._native(row, key) if self._native is not None else None
        if found is not None:
            return found
        ids, x = self._survivors(row, text, key)
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

    def _survivors(self, row: Row, text: Sequence[int], key: int) -> Few | Many:
        """What can be drawn, before temperature."""
        settings = self.settings
        if self._line is None:
            found = candidates_of(row, settings)
        elif self._has_mu:
            return self._by_mirostat(row, text)
        else:
            found = self._allowed(row, text, settings)
        if settings.excludes_top_choices and coin(key) <= settings.xtc_probability:
            return without_top_choices(found, settings.xtc_threshold)
        return found

    def _allowed(self, row: Row, text: Sequence[int], settings: SamplerSettings) -> Few | Many:
        """``candidates_of`` of the row that the grammar leaves over."""
        node = self.place(text)
        if node.state is None:
            return candidates_of(row, settings)
        found = candidates_among(row, settings, node.allowed)
        if found is not None:
            return found
        row, lowest = self._masked(row, node, len(text) - self.n_prompt)
        ids, x = candidates_of(row, settings)
        if row[ids[0]] == -inf:
            # A row without any number has its lowest id drawn; here it has to be an allowed one.
            return [lowest], [0.0]
        return ids, x  # type: ignore[return-value]

    @staticmethod
    def _masked(row: Row, node: Node, n_tokens: int) -> tuple[Row, int]:
        """The row that the grammar leaves over ``n_tokens`` into the reply, and the lowest id that it allows."""
        mask = node.mask(row.shape[0])
        lowest = int(mask.argmax())
        if not mask[lowest]:
            raise GrammarDeadEnd(n_tokens=n_tokens)
        return np.where(mask, peak(row)[0], np.float32(-inf)), lowest

    def _by_mirostat(self, row: Row, text: Sequence[int]) -> Many:
        """What mirostat leaves over; the whole row counts for it, so a grammar is asked about all tokens."""
        assert self._line is not None
        index = len(text) - self.n_prompt
        node, mu = self._line.at(text, index), self._line.mu(text, index, self._level)
        lowest = 0
        if node.state is not None:
            row, lowest = self._masked(row, node, index)
        ids, x = mirostat(row, self.settings.temperature, mu)
        if ids.size == 1 and row[ids[0]] == -inf:
            ids = np.array([lowest])
        self._last = node, mu, ids, x
        return ids, x

    def _remember(self, tokens: Sequence[int]) -> None:
        """Note mirostat's mu after each of some tokens of what it left over last."""
        node, mu, ids, x = self._last
        settings = self.settings
        with np.errstate(over="ignore"):
            scores = (x - x.max()) / settings.temperature
        for token in tokens:
            place = int((ids == token).argmax())
            node.below(token).mu[self._level] = next_mu(
                mu, scores, place, tau=settings.mirostat_tau, eta=settings.mirostat_eta
            )


class _View(Sampler):
    """The sampler as a smaller model sees it: the same draws, and a mu of its own where the larger one has none."""

    def __init__(self, of: Sampler) -> None:
        self.__dict__.update(of.__dict__)
        self._of = of
        self._level = of._level + 1

    @property
    def n_prompt(self) -> int:  # type: ignore[override]
        return self._of.n_prompt

    def commit(self, text: Sequence[int]) -> None:
        """What a smaller model accepts is a guess."""
