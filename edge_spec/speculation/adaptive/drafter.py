"""Several drafters, of which every round uses the one that pays most, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from edge_spec.sampling import Sampler
from edge_spec.speculation.adaptive.offer import Offer
from edge_spec.speculation.adaptive.policy import AdaptivePolicy
from edge_spec.speculation.adaptive.prices import PIECE
from edge_spec.speculation.drafters.base import Choice, Drafter
from edge_spec.speculation.followed_text import FollowedText
from edge_spec.speculation.pause import Pause
from edge_spec.speculation.round import Round
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["AdaptiveDrafter"]


@dataclass(slots=True)
class _Option:
    """A drafter and what it drafted last: all of it, and the beginning of it that is being verified."""

    drafter: Drafter
    offer: Offer
    draft: Tree = field(default=EMPTY)


class AdaptiveDrafter(Drafter):
    """Calls tables in every round, a model only where that is expected to pay, and keeps what is best of a draft.

    Tables are scored on every token of the text, whether their drafts were used or not. A model's draft stops as soon
    as another level would not pay. Of a tree, the nodes that are worth their rows are verified: where rows are dear its
    likeliest path, where they are cheap the siblings as well. A model does not read a text before it is wanted, and
    then piece by piece.

    Args:
        drafters: one without a model (a table) counts as free to call.
        policy: decides; for this drafter alone, since it remembers what was chosen.
    """

    name = "auto"

    def __init__(self, drafters: Sequence[Drafter], policy: AdaptivePolicy) -> None:
        options = [
            _Option(drafter, Offer(drafter.name, depth=policy.most, by_depth=not drafter.followed))
            for drafter in drafters
        ]
        self._tables = [option for option in options if not option.drafter.followed]
        self._models = [option for option in options if option.drafter.followed]
        self._options = options
        self._policy = policy
        self._last: Drafter | None = None

    @property
    def drafters(self) -> list[Drafter]:
        """What it chooses among."""
        return [option.drafter for option in self._options]

    @property
    def last_name(self) -> str:
        return self._last.last_name if self._last is not None else self.name

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self._policy.begin(is_guided=sampler.has_grammar)
        self._policy.pause.tokens.clear()
        for option in self._options:
            option.draft = EMPTY
            option.offer.begin(greedy=sampler.settings.temperature == 0)
            option.drafter.begin(prompt, sampler)

    @property
    def pause(self) -> Pause:
        return self._policy.pause

    def limit(self, left: int) -> int:
        self._policy.rest.most = left
        return self._policy.limit()

    def draft(self, limit: int) -> Tree:
        self._catch_up()
        policy = self._policy
        best, verified, gain = None, EMPTY, policy.plain_gain
        for option in self._tables:
            option.draft = option.drafter.draft(limit)
            if not option.draft:
                continue
            draft, gained = self._best_of(option)
            if gained > gain:
                best, verified, gain = option, draft, gained
        model, is_trial, instead = self._model(gain)
        if model is not None and not self._has_read(model, is_trial=is_trial):
            model = None
        if model is not None:
            known: list[float] = []
            model.draft = model.drafter.draft_while(limit, lambda draft: self._is_worth_more(model, draft, known))
            draft, gained = self._best_of(model, least=int(is_trial))
            if best is None or gained > gain or is_trial:
                # The round counts as the model's even where nothing of its draft is worth verifying: it took the time.
                best, verified = model, draft
        if best is None:
            policy.chose(None)
            return EMPTY
        self._last = best.drafter
        if best is model:
            policy.chose(best.offer, n_levels=_n_levels(best), tried_for=instead if is_trial else None)
        else:
            in_vain = (model.offer, _n_levels(model)) if model is not None else None
            policy.chose(best.offer, n_levels=_n_levels(best), in_vain=in_vain)
        return verified

    def _best_of(self, option: _Option, *, least: int = 0) -> tuple[Tree, float]:
        """The part of an option's draft that is worth verifying, of at least so many nodes, and what that gains."""
        draft, values = option.draft, option.offer.values(option.draft)
        n, gain = self._policy.best_size(values)
        n = max(n, least)
        return (draft.first(n) if draft.is_sequence else draft.valued(values).best(n)), gain

    def _has_read(self, option: _Option, *, is_trial: bool) -> bool:
        """Return whether a model can draft now; if not, it has read some more of the text."""
        started, n_unread = perf_counter(), option.drafter.n_unread
        ready = option.drafter.read(PIECE)
        if not ready:
            n_read = n_unread - option.drafter.n_unread
            self._policy.read(option.offer, n_read, perf_counter() - started, is_trial=is_trial)
        return ready

    def _model(self, gain: float) -> tuple[_Option | None, bool, float]:
        """The model that should draft now, whether only to try it, and what the best choice is expected to gain."""
        policy, chosen = self._policy, None
        for option in self._models:
            expected = policy.expected_gain(option.offer)
            if expected > gain and policy.pays_to_read(option.offer, option.drafter.n_unread, gained=expected - gain):
                chosen, gain = option, expected
        for option in self._models:
            if option is not chosen:
                if policy.may_try(option.offer, n_unread=option.drafter.n_unread):
                    return option, True, gain
                option.offer.passed_over()
        return chosen, False, gain

    def _is_worth_more(self, option: _Option, draft: Tree, known: list[float]) -> bool:
        """Return whether another level pays.

        ``known`` are the values of earlier levels, and afterwards of this one too.
        """
        known[:] = option.offer.values(draft, known)
        depth = max(draft.depths)
        value = max(value for value, at in zip(known, draft.depths, strict=True) if at == depth)
        n = sum(other >= value for other in known)
        return self._policy.is_worth_more(option.offer, value, n, depth + 1)

    def accept(self, tokens: Sequence[int]) -> None:
        self._catch_up()
        for option in self._options:
            if option.draft:
                option.offer.learn_outcome(option.draft, tokens)
                option.draft = EMPTY
            option.drafter.accept(tokens)

    def _catch_up(self) -> None:
        """Give the drafters the tokens that were written while they were paused."""
        pause = self._policy.pause
        if pause.tokens:
            for option in self._options:
                option.drafter.accept(pause.tokens)
            pause.tokens = []

    def learn(self, done: Round) -> None:
        self._policy.learn(done)

    def rollback(self, length: int) -> None:
        self._catch_up()
        for option in self._options:
            option.draft = EMPTY
            option.drafter.rollback(length)

    def save(self) -> dict[str, bytes]:
        self._catch_up()
        return {name: state for option in self._options for name, state in option.drafter.save().items()}

    def restore(self, states: Mapping[str, bytes], text: Sequence[int]) -> None:
        self._policy.pause.tokens.clear()
        for option in self._options:
            option.drafter.restore(states, text)

    @property
    def has_learned(self) -> bool:
        """Whether it has learned enough to be worth keeping."""
        return self._policy.has_learned

    def as_json(self) -> dict[str, Any]:
        """Return what it has learned of this device and of its drafters, as ``recall`` takes it."""
        self._catch_up()
        offers = {option.offer.name: option.offer.as_json() for option in self._options}
        return {**self._policy.as_json(), "drafters": offers}

    def recall(self, learned: Mapping[str, Any]) -> None:
        """Begin with what was learned in an earlier run.

        Raises:
            ValueError, TypeError, LookupError, AttributeError: it is damaged; at most a part of it counts.
        """
        self._policy.recall(learned)
        for option in self._options:
            if option.offer.name in learned["drafters"]:
                option.offer.recall(learned["drafters"][option.offer.name])

    def close(self) -> None:
        for option in self._options:
            option.drafter.close()

    @property
    def followed(self) -> Mapping[str, FollowedText]:
        found: dict[str, FollowedText] = {}
        for option in self._options:
            # Drafters may share a model; then they follow one text.
            known = {id(text) for text in found.values()}
            found |= {name: text for name, text in option.drafter.followed.items() if id(text) not in known}
        return found

    @property
    def choices(self) -> Mapping[str, Choice]:
        return self._policy.choices([option.offer for option in self._options])

    @property
    def held_bytes(self) -> int:
        return sum(option.drafter.held_bytes for option in self._options)


def _n_levels(option: _Option) -> int:
    return len(option.draft.counts_by_depth()) if option.draft else 0
