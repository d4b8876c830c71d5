"""Memory degradation: apply a smaller candidate while memory is scarce, and a better one afterwards."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from edge_spec.controller.candidates import Candidate, Estimates, Estimators, candidates
from edge_spec.controller.open_models import FAILURES, OpenModels
from edge_spec.controller.request import Request, fallbacks
from edge_spec.engines.settings import ModelSettings
from edge_spec.generation.context import GuardedReply, MemoryGuard
from edge_spec.memory.pressure import Patience, PressureReading, PressureWatch
from edge_spec.speculation.modes import Mode

__all__ = ["Degradation", "reductions"]

_WORTH_BYTES = 1 << 18
"""Candidates that save less are passed over."""

_SMALLER_MODELS = {"intermediate": "the intermediate model", "draft": "the drafter"}
"""Names in notices of the models that can be dropped, by role."""


class Degradation(MemoryGuard):
    """Checks memory between rounds and between replies, and applies another candidate if necessary.

    The order of candidates is that of ``candidates()``. While memory is scarce, suspended conversations move to the
    disk, and then each step applies the next lower candidate: first those with the same text, then, with a notice,
    those that change it. In the end the reply stops; docs/memory.md lists the steps. When there is room again, the
    best candidate with the same numerics profile is applied: what has changed the text stays. A conversation that did
    not see the profile change gets its notice with the next reply.

    Args:
        models: the open models. request: what was asked for; settings that the user gave stay.
        watch: looks at the system and at this process.
    """

    def __init__(self, models: OpenModels, request: Request, watch: PressureWatch) -> None:
        self._models = models
        self._request = request
        self._watch = watch
        self._patience = Patience(watch.clock)
        self._first = models.candidate
        self._first_profile = self._profile
        # The last profile of each conversation, or of each reply outside of one.
        self._known: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()
        self._on_disk = False

    @property
    def degradations(self) -> tuple[str, ...]:
        """The reductions that apply now."""
        return tuple(reductions(self._first, self._models.candidate))

    def before_reply(self, reply: GuardedReply) -> bool:
        """Notify a reply of changes before it reads its prompt; return whether there is a target."""
        if self._models.is_lost and not self._models.recover():
            reply.notice("memory is scarce: the model could not be opened again")
            return False
        name, known = self._profile, self._known.get(reply.owner, self._first_profile)
        if name != known:
            sentence = f"memory is scarce: the numerics profile changed from {known} to {name}, so words may differ"
            reply.notice(sentence, departs=True)
        self._known[reply.owner] = name
        return True

    def before_round(self, replies: Sequence[GuardedReply]) -> bool:
        """Check memory before a round; return whether the active replies can continue."""
        return self._look(replies) and not self._models.is_lost

    def between_replies(self) -> None:
        """Check memory while no reply is active; take only steps that do not change the text."""
        self._look(())

    def give_way(self) -> bool:
        """Free memory for others by one step; see ``MemoryGuard``."""
        self._patience.stepped_down()
        return self._reduce(())

    @property
    def _profile(self) -> str:
        return self._models.target.pool.profile.name

    def _look(self, replies: Sequence[GuardedReply]) -> bool:
        """Check memory if it is time, and take at most one step; return whether replies can continue."""
        seen = self._watch.scarcity()
        if seen is None:
            return True
        if self._watch.is_scarce(seen):
            return not self._patience.may_step_down() or self._step_down(replies)
        better = self._better(seen, replies)
        frees_disk = self._on_disk and not self.degradations and self._watch.has_room(seen, 0)
        if self._patience.may_step_up(better is not None or frees_disk):
            self._step_up(better, replies)
        return True

    def _step_down(self, replies: Sequence[GuardedReply]) -> bool:
        if self._reduce(replies):
            self._patience.stepped_down()
            return True
        # Delay the next search, which would find nothing either.
        self._patience.stepped_down()
        _tell(replies, "memory is scarce: the reply stops here", departs=False)
        return not replies

    def _reduce(self, replies: Sequence[GuardedReply]) -> bool:
        """Take one step down; return whether there was one."""
        moved, self._on_disk = self._models.prefix_cache.to_disk(True), True
        now = self._models.candidate
        lower = ((f"memory is scarce: {', '.join(reductions(now, each))}", each) for each in self._lower(replies))
        return moved or any(self._apply(candidate, replies, sentence) for sentence, candidate in lower)

    def _step_up(self, better: Candidate | None, replies: Sequence[GuardedReply]) -> None:
        worked = better is None
        if better is not None:
            sentence = f"memory is free again: {', '.join(_restorations(self._models.candidate, better))}"
            worked = self._apply(better, replies, sentence)
        self._patience.stepped_up(worked=worked)
        if not self.degradations:
            self._models.prefix_cache.to_disk(False)
            self._on_disk = False

    def _apply(self, candidate: Candidate, replies: Sequence[GuardedReply], sentence: str) -> bool:
        """Apply a candidate, with a notice to the replies if words may differ; return whether it worked."""
        models = self._models
        before, n_past = models.target.pool, models.prefix_cache.n_past
        profile, identity = before.profile.name, before.capabilities.identity
        lossless = self._is_lossless(candidate)
        try:
            models.apply(candidate)
        except FAILURES:
            if not models.is_lost and self._is_read_otherwise(n_past):
                _tell(
                    replies,
                    "memory is scarce: the text is read again, which may change a word where two are almost equally "
                    "likely",
                    departs=True,
                )
            return False
        after = models.target.pool
        lossless = lossless and not self._is_read_otherwise(n_past)
        for reply in replies:
            self._known[reply.owner] = after.profile.name
        if replies and not lossless:
            sentence += "; from here on, words may differ from those without this change"
            if after.profile.name != profile:
                sentence += f"; the numerics profile is {after.profile.name} now"
            if after.capabilities.identity != identity:
                sentence += f", its identity {after.capabilities.identity}"
            _tell(replies, sentence, departs=True)
        return True

    def _is_read_otherwise(self, n_past: int) -> bool:
        """Return whether cells of a text that is written, of which ``n_past`` were read, could not be restored, and
        reading them again may give other bits.
        """
        prefix_cache = self._models.prefix_cache
        return prefix_cache.n_past < n_past and prefix_cache.pool.capabilities.reuse_step != 1

    def _is_lossless(self, candidate: Candidate) -> bool:
        """Return whether applying a candidate leaves the text as it is, bit for bit."""
        both = (candidate.settings, self._models.candidate.settings)
        same_text = len({replace(each, held_experts=0) for each in both}) == 1
        drafts_change_nothing = self._models.target.pool.capabilities.identity == "bitwise"
        return same_text and drafts_change_nothing and self._first.mode.lossless

    def _lower(self, replies: Sequence[GuardedReply]) -> Iterator[Candidate]:
        """Yield candidates smaller than the open one, best first.

        Where there is no reply that could be told, only candidates that leave the text as it is.
        """
        now = self._models.candidate
        with Estimators() as estimators:
            estimates = Estimates(self._models.files, estimators, rough=True)
            lower = self._candidates(self._modes[self._modes.index(now.mode) :], now.settings, estimates)
            open_bytes = next(lower).held_bytes
            for candidate in lower:
                tells = bool(replies) or self._is_lossless(candidate)
                can_shrink = bool(replies) and all(reply.can_shrink(candidate.n_ctx) for reply in replies)
                fits = candidate.n_ctx == now.n_ctx or can_shrink
                if tells and fits and open_bytes - candidate.held_bytes >= _WORTH_BYTES:
                    yield candidate

    def _better(self, seen: PressureReading, replies: Sequence[GuardedReply]) -> Candidate | None:
        """Return the best candidate with the same profile that fits, if it is better than the open one."""
        now, first = self._models.candidate, self._first
        # Missing experts slow every token, so they return before drafters.
        settings = replace(now.settings, held_experts=first.settings.held_experts)
        better = self._modes[: self._modes.index(now.mode) + (settings != now.settings)]
        with Estimators() as estimators:
            estimates = Estimates(self._models.files, estimators, rough=True)
            for candidate in islice(self._candidates(better, settings, estimates), len(better)):
                n_bytes = sum(part.held_bytes for role, part in candidate.parts.items() if role not in now.parts)
                n_bytes += candidate.parts["target"].expert_bytes - now.parts["target"].expert_bytes
                n_bytes += sum(candidate.tables.values()) - sum(now.tables.values())
                tells = bool(replies) or self._is_lossless(candidate)
                if tells and self._watch.has_room(seen, n_bytes):
                    is_first = candidate.settings == first.settings and candidate.mode == first.mode
                    return first if is_first else candidate
        return None

    @property
    def _modes(self) -> tuple[Mode, ...]:
        """The modes that can be used, best first."""
        return (self._first.mode, *fallbacks(self._first.mode))

    def _candidates(
        self, modes: tuple[Mode, ...], settings: ModelSettings, estimates: Estimates
    ) -> Iterator[Candidate]:
        """Yield what can run, best first: each of these modes with these settings, then with the fewest experts in
        memory, then the first mode with settings that change the text more and more.

        Engines and batches stay: weights are loaded once, and prompts are read as before.
        """
        engines = self._first.engines
        extras = frozenset[str]().union(*(each.extras for each in engines.values()))
        request = replace(
            self._request,
            engines={role: (each,) for role, each in engines.items()},
            settings=settings,
            fixed=self._request.fixed | {"prefill_chunk", "max_rows"} | extras,
            modes=modes,
        )
        groups = candidates(request, estimates)
        yield from next(groups)
        yield from (group[0] for group in groups)


def _tell(replies: Iterable[GuardedReply], sentence: str, *, departs: bool) -> None:
    for reply in replies:
        reply.notice(sentence, departs=departs)


def reductions(before: Candidate, after: Candidate) -> Iterator[str]:
    """Yield a clause for everything that one candidate has and the next one lacks."""
    for role, what in _SMALLER_MODELS.items():
        if role in before.models and role not in after.models:
            yield f"{what} is dropped"
    if before.mode.limit and not after.mode.limit:
        yield "nothing is drafted"
    if before.settings.held_experts != after.settings.held_experts:
        yield "fewer experts stay in memory"
    if before.kv != after.kv:
        keys, values = after.kv
        yield f"keys and values are cached as {keys if keys == values else f'{keys}/{values}'}"
    n_ctx = before.n_ctx
    while n_ctx > after.n_ctx:
        n_ctx //= 2
        yield "half of the context is dropped"


def _restorations(before: Candidate, after: Candidate) -> Iterator[str]:
    """Yield a clause for everything that a candidate has and another with the same settings lacks."""
    for role, what in _SMALLER_MODELS.items():
        if role in after.models and role not in before.models:
            yield f"{what} is back"
    if after.mode.limit and not before.mode.limit:
        yield "tokens are drafted again"
    if before.settings.held_experts != after.settings.held_experts:
        yield "more experts stay in memory"
