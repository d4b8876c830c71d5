"""Memory degradation: a candidate that takes less is applied while memory is scarce, and a better one afterwards."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from edge_spec.controller.candidates import Candidate, Estimates, candidates
from edge_spec.controller.open_models import FAILURES, OpenModels
from edge_spec.controller.request import Request, fallbacks
from edge_spec.generation.context import GuardedReply, MemoryGuard
from edge_spec.memory.pressure import Patience, PressureReading, PressureWatch
from edge_spec.speculation.modes import Mode

__all__ = ["Degradation", "reductions"]

_WORTH_BYTES = 1 << 18
"""A candidate that takes hardly less than what is open is passed over."""

_SMALLER_MODELS = {"intermediate": "the intermediate model", "draft": "the drafter"}
"""Those that can be dropped, by role, as notices call them."""


class Degradation(MemoryGuard):
    """Looks at memory between two rounds of a reply, and between replies, and applies another candidate if it has to.

    The order of candidates is that of ``candidates()``. While memory is scarce, suspended conversations move to the
    disk, and then each step applies the next lower candidate: first those with the same text, then, with a notice,
    those that change it. In the end the reply stops; docs/memory.md lists the steps. When there is room again, the
    best candidate with the same numerics profile is applied: what has changed the text stays. A conversation that did
    not see the profile change gets its notice with the next reply.

    Args:
        models: what is open.
        request: what was asked for; settings that the user gave stay.
        watch: looks at the system and at this process.
    """

    def __init__(self, models: OpenModels, request: Request, watch: PressureWatch) -> None:
        self._models = models
        self._request = request
        self._watch = watch
        self._patience = Patience(watch.clock)
        self._first = models.candidate
        self._first_profile = self._profile
        # The profile that each conversation, or reply outside of one, wrote with last.
        self._known: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()
        self._on_disk = False

    @property
    def degradations(self) -> tuple[str, ...]:
        """What is reduced now."""
        return tuple(reductions(self._first, self._models.candidate))

    def before_reply(self, reply: GuardedReply) -> bool:
        """Called before a reply reads its prompt: tells it what it missed; whether there is a target."""
        if self._models.is_lost and not self._models.recover():
            reply.notice("memory is scarce: the model could not be opened again")
            return False
        name, known = self._profile, self._known.get(reply.owner, self._first_profile)
        if name != known:
            reply.notice(f"memory is scarce: the numerics profile changed from {known} to {name}, so words may differ")
        self._known[reply.owner] = name
        return True

    def before_round(self, reply: GuardedReply) -> bool:
        """Called before every round of a reply; whether it can continue."""
        return self._look(reply) and not self._models.is_lost

    def between_replies(self) -> None:
        """Called now and then while no reply is being written: takes only steps that leave the text as it is."""
        self._look(None)

    @property
    def _profile(self) -> str:
        return self._models.speculator.model.profile.name

    def _look(self, reply: GuardedReply | None) -> bool:
        """Look at memory, if it is time, and take at most one step; whether there is memory to continue with."""
        seen = self._watch.scarcity()
        if seen is None:
            return True
        if self._watch.is_scarce(seen):
            return not self._patience.may_step_down() or self._step_down(reply)
        better = self._better(seen, reply)
        frees_disk = self._on_disk and not self.degradations and self._watch.has_room(seen, 0)
        if self._patience.may_step_up(better is not None or frees_disk):
            self._step_up(better, reply)
        return True

    def _step_down(self, reply: GuardedReply | None) -> bool:
        moved, self._on_disk = self._models.session_cache.to_disk(True), True
        now = self._models.candidate
        lower = ((f"memory is scarce: {_listed(now, candidate)}", candidate) for candidate in self._lower(reply))
        if moved or any(self._apply(candidate, reply, sentence) for sentence, candidate in lower):
            self._patience.stepped_down()
            return True
        # Looking for candidates again at once would find none again.
        self._patience.stepped_down()
        if reply is not None:
            reply.notice("memory is scarce: the reply stops here")
        return reply is None

    def _step_up(self, better: Candidate | None, reply: GuardedReply | None) -> None:
        worked = better is None
        if better is not None:
            sentence = f"memory is free again: {', '.join(_restorations(self._models.candidate, better))}"
            worked = self._apply(better, reply, sentence)
        self._patience.stepped_up(worked=worked)
        if not self.degradations:
            self._models.session_cache.to_disk(False)
            self._on_disk = False

    def _apply(self, candidate: Candidate, reply: GuardedReply | None, sentence: str) -> bool:
        """Apply a candidate, with a notice to the reply if words may differ; whether that worked."""
        models = self._models
        before = models.speculator.model
        profile, identity, n_past = before.profile.name, before.capabilities.identity, before.n_past
        lossless = self._is_lossless(candidate)
        try:
            models.apply(candidate)
        except FAILURES:
            if reply is not None and not models.is_lost and models.speculator.model.n_past < n_past:
                reply.notice(
                    "memory is scarce: the text is read again, which may change a word where two are almost equally "
                    "likely"
                )
            return False
        after = models.speculator.model
        if reply is not None:
            self._known[reply.owner] = after.profile.name
        if reply is not None and not lossless:
            sentence += "; from here on, words may differ from those without this change"
            if after.profile.name != profile:
                sentence += f"; the numerics profile is {after.profile.name} now"
            if after.capabilities.identity != identity:
                sentence += f", its identity {after.capabilities.identity}"
            reply.notice(sentence)
        return True

    def _is_lossless(self, candidate: Candidate) -> bool:
        """Return whether applying a candidate leaves the text as it is, bit for bit."""
        same_text = candidate.settings == self._models.candidate.settings
        drafts_change_nothing = self._models.speculator.model.capabilities.identity == "bitwise"
        return same_text and drafts_change_nothing and self._first.mode.lossless

    def _lower(self, reply: GuardedReply | None) -> Iterator[Candidate]:
        """Yield what takes less than what is open, best first.

        Without a reply to tell only what leaves the text as it is.
        """
        now = self._models.candidate
        with Estimates(self._models.files, rough=True) as estimates:
            lower = self._candidates(self._modes[self._modes.index(now.mode) :], estimates)
            open_bytes = next(lower).held_bytes
            for candidate in lower:
                tells = reply is not None or self._is_lossless(candidate)
                fits = candidate.n_ctx == now.n_ctx or (reply is not None and reply.can_shrink(candidate.n_ctx))
                if tells and fits and open_bytes - candidate.held_bytes >= _WORTH_BYTES:
                    yield candidate

    def _better(self, seen: PressureReading, reply: GuardedReply | None) -> Candidate | None:
        """Return the best candidate with the same profile that there is room for, if it is better than what is open."""
        now, first = self._models.candidate, self._first
        better = self._modes[: self._modes.index(now.mode)]
        with Estimates(self._models.files, rough=True) as estimates:
            for candidate in islice(self._candidates(better, estimates), len(better)):
                n_bytes = sum(part.held_bytes for role, part in candidate.parts.items() if role not in now.parts)
                n_bytes += sum(candidate.tables.values()) - sum(now.tables.values())
                tells = reply is not None or self._is_lossless(candidate)
                if tells and self._watch.has_room(seen, n_bytes):
                    is_first = candidate.settings == first.settings and candidate.mode == first.mode
                    return first if is_first else candidate
        return None

    @property
    def _modes(self) -> tuple[Mode, ...]:
        """Ways to draft, best first."""
        return (self._first.mode, *fallbacks(self._first.mode))

    def _candidates(self, modes: tuple[Mode, ...], estimates: Estimates) -> Iterator[Candidate]:
        """What can run, best first: in each of these modes with the text of what is open, then in the first of them
        with more and more of the text changed.

        Weights are loaded once, and prompts are read as they were: engines and batches stay.
        """
        engines = self._first.engines
        extras = frozenset[str]().union(*(each.extras for each in engines.values()))
        request = replace(
            self._request,
            engines={role: (each,) for role, each in engines.items()},
            settings=self._models.candidate.settings,
            fixed=self._request.fixed | {"prefill_chunk", "max_rows"} | extras,
            modes=modes,
        )
        groups = candidates(request, estimates)
        yield from next(groups)
        yield from (group[0] for group in groups)


def reductions(before: Candidate, after: Candidate) -> Iterator[str]:
    """Yield what a candidate lacks of another one."""
    for role, what in _SMALLER_MODELS.items():
        if role in before.models and role not in after.models:
            yield f"{what} is dropped"
    if before.mode.limit and not after.mode.limit:
        yield "nothing is drafted"
    if before.kv != after.kv:
        keys, values = after.kv
        yield f"keys and values are cached as {keys if keys == values else f'{keys}/{values}'}"
    n_ctx = before.n_ctx
    while n_ctx > after.n_ctx:
        n_ctx //= 2
        yield "half of the context is dropped"


def _restorations(before: Candidate, after: Candidate) -> Iterator[str]:
    """Yield what a candidate has that another one with the same settings lacks."""
    for role, what in _SMALLER_MODELS.items():
        if role in after.models and role not in before.models:
            yield f"{what} is back"
    if after.mode.limit and not before.mode.limit:
        yield "tokens are drafted again"


def _listed(before: Candidate, after: Candidate) -> str:
    return ", ".join(reductions(before, after))
