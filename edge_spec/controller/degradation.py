"""What a family of models gives up for want of memory, step by step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from edge_spec.controller.candidates import MIN_N_CTX
from edge_spec.controller.open_models import OpenFamily
from edge_spec.controller.reopening import FAILURES, Renewal
from edge_spec.controller.steps import Ladder, Rung
from edge_spec.engines.kv_types import ROUNDS_VISIBLY
from edge_spec.generation.lock import TurnTaking
from edge_spec.generation.reply import Reply
from edge_spec.generation.session_cache import Shelf
from edge_spec.memory.pressure import PressureWatch
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.modes import MODES, Mode
from edge_spec.speculation.policy import Policy

__all__ = ["Relief"]

_SHORT = 2
_CHANGES = "from here on words may differ from those without this step"


class Relief:
    """Looks at memory between two rounds of a reply, and between replies, and makes do with less where it has to.

    Speed goes first: long drafts, the intermediate model, the drafter; the text is the same without them. Then, with
    a notice, what makes a difference to the text, the most memory for the least harm first, as plans do: a cache of
    fewer bits, which forgets nothing and hardly rounds (8 bits, or halves on ONNX Runtime, free a third to a half of
    it); half of the context, and half again, which forgets the oldest turns of a long talk; a cache of 4 bits, which
    rounds visibly. In the end the reply stops where it is. With plenty of memory speed comes back, what has changed the
    text does not, and whoever did not see the change is told when it writes again.

    Args:
        family: opens and frees the models.
        mode: how drafts are made when there is memory.
        shelf: conversations that wait, which can wait on the disk.
        watch: looks at the system.
        fixed: names of settings that the user gave: types of keys and values among them stay.
        min_n_ctx: the context is not made shorter than this.
        folder: where a cache lies while its context is made anew; the system's own by default.
    """

    def __init__(
        self,
        speculator: Speculator,
        family: OpenFamily,
        mode: Mode,
        shelf: Shelf,
        watch: PressureWatch,
        *,
        fixed: Collection[str] = (),
        min_n_ctx: int = MIN_N_CTX,
        folder: Path | None = None,
    ) -> None:
        self._fixed = fixed
        self._least_n_ctx = min_n_ctx
        self._speculator = speculator
        self._family = family
        self._mode = mode
        self._shelf = shelf
        self._reply: Reply | None = None
        self._exhausted = False
        self._renewal = Renewal(speculator, family, trees=mode.target_trees, folder=folder)
        self._profile = self._first_profile = speculator.model.profile.name
        self._identity = speculator.model.capabilities.identity
        # With which profile they wrote last, conversations and lone replies.
        self._known: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()
        self.max_drafted: int | None = None
        self.steps: list[str] = []
        self.ladder = Ladder(self._rungs(), watch, on_step=self._note, clock=lambda: monotonic())

    def before_reply(self, reply: Reply) -> bool:
        """Called before a reply reads its prompt: whether there is a target. It is told what it missed."""
        if self._renewal.is_lost:
            if not self._renewal.recover():
                reply.notice("memory is scarce: the model could not be opened again")
                return False
            if isinstance(reply, TurnTaking):
                reply.owns_caches = False
        name, known = self._speculator.model.profile.name, self._known.get(_writer(reply), self._first_profile)
        if name != known:
            reply.notice(f"memory was scarce: the numerics profile is {name} now, no longer {known}; words may differ")
        self._known[_writer(reply)] = name
        return True

    def before_round(self, reply: Reply) -> bool:
        """Called before every round of a reply: whether it can go on."""
        self._reply = reply
        try:
            self.ladder.check()
        finally:
            self._reply = None
        stopped, self._exhausted = self._exhausted, False
        return not stopped and not self._renewal.is_lost

    def between_replies(self) -> None:
        """Called now and then while no reply is written: what costs no word is given up, or taken again."""
        self.ladder.check(lossless_only=True)

    def policy(self, policy: Policy) -> Policy:
        """A policy that drafts no further than the memory allows."""
        return _Bounded(policy, self)

    def _rungs(self) -> list[Rung]:
        mode, family = self._mode, self._family
        below = MODES["sequence"] if "draft" in mode.needs else MODES["ngram"]
        rungs = []
        if mode.limit:
            name = "drafts are kept short, and waiting conversations lie on the disk"
            rungs.append(
                Rung(name=name, down=self._keep_short, up=self._draft_on, lossless=self._drafts_change_nothing)
            )
        if "intermediate" in mode.needs:
            rungs.append(
                self._changing_drafters(
                    "the intermediate model is dropped",
                    "intermediate",
                    without=lambda: self._drafter(below),
                    again=lambda: self._drafter(mode),
                )
            )
        if "draft" in mode.needs:
            above = below if "intermediate" in mode.needs else mode
            rungs.append(
                self._changing_drafters(
                    "the drafter is dropped",
                    "draft",
                    without=lambda: self._drafter(MODES["ngram"]),
                    again=lambda: self._drafter(above),
                )
            )
        halve = Rung(name="half of the context is dropped", down=self._halve, up=None, lossless=lambda: False)
        smaller = family.smaller_kv(self._fixed)
        rungs += [self._caching(*kinds) for kinds in smaller if kinds[0] != ROUNDS_VISIBLY]
        rungs += [halve, halve]
        rungs += [self._caching(*kinds) for kinds in smaller if kinds[0] == ROUNDS_VISIBLY]
        stop = Rung(name="the reply stops here", down=self._stop, up=None, lossless=lambda: False, repeats=True)
        rungs.append(stop)
        return rungs

    def _caching(self, keys: str, values: str) -> Rung:
        """A rung that makes the cache anew with smaller types; what it holds is read again."""
        name = f"keys and values are cached as {keys}"
        return Rung(name=name, down=lambda: self._cache_as(keys, values), up=None, lossless=lambda: False)

    def _changing_drafters(
        self, name: str, role: str, *, without: Callable[[], Drafter], again: Callable[[], Drafter]
    ) -> Rung:
        """A rung that frees the model of a role, and goes on with another drafter."""
        n_bytes = sum(line.predicted_bytes for line in self._family.ledger if line.owner == role)
        return Rung(
            name=name,
            down=lambda: self._draft_with(without) or True,
            up=lambda: self._draft_with(again, without),
            n_bytes=lambda: n_bytes,
            lossless=self._drafts_change_nothing,
        )

    def _drafts_change_nothing(self) -> bool:
        return self._mode.lossless and self._speculator.model.capabilities.identity == "bitwise"

    def _note(self, sentence: str, lossless: bool) -> None:
        model, reply = self._speculator.model, self._reply
        if not lossless and not self._exhausted:
            sentence += f", {_CHANGES}"
        if model.profile.name != self._profile:
            self._profile = model.profile.name
            sentence += f"; the numerics profile is {self._profile} now"
        if model.capabilities.identity != self._identity:
            self._identity = model.capabilities.identity
            sentence += f", its identity {self._identity}"
        self.steps.append(sentence)
        if reply is not None:
            self._known[_writer(reply)] = model.profile.name
            if not lossless:
                reply.notice(sentence)

    def _keep_short(self) -> bool:
        self.max_drafted = _SHORT
        self._shelf.to_disk(True)
        return True

    def _draft_on(self) -> None:
        self.max_drafted = None
        self._shelf.to_disk(False)

    def _draft_with(self, *ways: Callable[[], Drafter]) -> bool:
        """Free all models but the target, then draft in the first of some ways that works; whether it is the first.

        Where there is no room for any of them, tables do, and without room for them nothing drafts.
        """
        for place, way in enumerate((*ways, lambda: self._drafter(MODES["ngram"]), NoDrafter)):
            # What an attempt before this one has opened goes as well.
            self._speculator.change_drafter(None)
            for role in ("intermediate", "draft"):
                self._family.release(role)
            self._family.drop_table()
            with suppress(*FAILURES):
                self._speculator.change_drafter(way())
                return place == 0
        return False

    def _drafter(self, mode: Mode) -> Drafter:
        return self._family.drafter(mode, self._speculator.model)

    def _halve(self) -> bool:
        speculator, reply = self._speculator, self._reply
        n_ctx = speculator.model.n_ctx // 2
        if reply is None or n_ctx < self._least_n_ctx or not reply.context.can_shrink(speculator, n_ctx):
            return False
        # What is too long for it is cut before the next round, and read again.
        same_cells = len(speculator.text) < n_ctx
        return self._renew(same_cells, n_ctx=n_ctx)

    def _cache_as(self, keys: str, values: str) -> bool:
        return self._renew(False, kv_k=keys, kv_v=values)

    def _renew(self, same_cells: bool, **changes: Any) -> bool:
        speculator, reply, renewal = self._speculator, self._reply, self._renewal
        n_past = speculator.model.n_past
        if renewal.renew(replace(self._family.target_settings, **changes), same_cells=same_cells):
            return True
        if not renewal.is_lost and speculator.model.n_past < n_past and reply is not None:
            reply.notice("memory is scarce: the text is read again; words may differ near ties")
        return False

    def _stop(self) -> bool:
        self._exhausted = True
        return True


def _writer(reply: Reply) -> object:
    """The conversation that a reply belongs to, or itself."""
    return reply.holder if isinstance(reply, TurnTaking) and reply.holder is not None else reply


class _Bounded:
    """What a policy says, within what the memory allows."""

    def __init__(self, policy: Policy, relief: Relief) -> None:
        self._policy = policy
        self._relief = relief
        self.learn = policy.learn

    def limit(self) -> int:
        most = self._relief.max_drafted
        limit = self._policy.limit()
        return limit if most is None else min(limit, most)
