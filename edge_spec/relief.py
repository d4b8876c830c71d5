"""What a family of models gives up for want of memory, step by step."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic

from edge_spec.backends.base import LanguageModel
from edge_spec.backends.llama import LlamaSettings
from edge_spec.backends.state import restated
from edge_spec.drafters.base import Drafter
from edge_spec.drafters.plain import NoDrafter
from edge_spec.errors import EdgeSpecError, StateError
from edge_spec.family import OpenFamily
from edge_spec.generation import Generation
from edge_spec.kv_types import ROUNDS_VISIBLY
from edge_spec.ladder import Ladder, Rung
from edge_spec.memory.pressure import PressureWatch
from edge_spec.policy import Policy
from edge_spec.shelf import Shelf
from edge_spec.speculation import MODES, Mode
from edge_spec.speculator import Speculator

__all__ = ["Relief"]

_SHORT = 2
_LEAST_N_CTX = 256
_CHANGES = "from here on words may differ from those without this step"


class Relief:
    """Looks at memory between two rounds of a reply, and between replies, and makes do with less where it has to.

    Speed goes first: long drafts, the intermediate model, the drafter; the text is the same without them. Then, with
    a notice, what makes a difference to the text, the most memory for the least harm first, as plans do: a cache of
    fewer bits, which forgets nothing and hardly rounds (8 bits, or halves on ONNX Runtime, free a third to a half of
    it); half of the context, and half again, which forgets the oldest turns of a long talk; a cache of 4 bits, which
    rounds visibly. In the end the reply stops where it is.

    Args:
        family: opens and frees the models.
        mode: how drafts are made when there is memory.
        shelf: conversations that wait, which can wait on the disk.
        watch: looks at the system.
        fixed: names of settings that the user gave: the types of keys and values among them stay.
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
        folder: Path | None = None,
    ) -> None:
        self._fixed = fixed
        self._folder = folder
        self._speculator = speculator
        self._family = family
        self._mode = mode
        self._shelf = shelf
        self._reply: Generation | None = None
        self._exhausted = False
        self._profile = speculator.model.profile.name
        self.most_drafted: int | None = None
        self.steps: list[str] = []
        self.ladder = Ladder(self._rungs(), watch, on_step=self._note, clock=lambda: monotonic())

    def before_round(self, reply: Generation) -> bool:
        """Called before every round of a reply: whether it can go on."""
        self._reply = reply
        try:
            self.ladder.check()
        finally:
            self._reply = None
        stopped, self._exhausted = self._exhausted, False
        return not stopped

    def between_replies(self) -> None:
        """Called now and then while no reply is written: what costs no word is given up, or taken again."""
        self.ladder.check(lossless_only=True)

    def policy(self, policy: Policy) -> Policy:
        """A policy that drafts no further than the memory allows."""
        return _Bounded(policy, self)

    def _rungs(self) -> list[Rung]:
        mode, family = self._mode, self._family
        rungs = []
        if mode.limit:
            name = "drafts are kept short, and waiting conversations lie on the disk"
            rungs.append(Rung(name=name, down=self._keep_short, up=self._draft_on))
        if "middle" in mode.needs:
            rungs.append(
                self._changing_drafters(
                    "the intermediate model is dropped", "middle",
                    without=lambda: MODES["sequence"].build(family), again=lambda: mode.build(family),
                )
            )  # fmt: skip
        if "draft" in mode.needs:
            above = MODES["sequence"] if "middle" in mode.needs else mode
            rungs.append(
                self._changing_drafters(
                    "the drafter is dropped", "draft", without=family.table, again=lambda: above.build(family)
                )
            )
        name = f"half of the context is dropped, {_CHANGES}"
        halve = Rung(name=name, down=self._halve, up=None, lossless=False)
        smaller = family.smaller_kv(self._fixed)
        rungs += [self._caching(*kinds) for kinds in smaller if kinds[0] != ROUNDS_VISIBLY]
        rungs += [halve, halve]
        rungs += [self._caching(*kinds) for kinds in smaller if kinds[0] == ROUNDS_VISIBLY]
        rungs.append(Rung(name="the reply stops here", down=self._stop, up=None, lossless=False, repeats=True))
        return rungs

    def _caching(self, keys: str, values: str) -> Rung:
        """A rung that makes the cache anew with smaller types; what it holds is read again."""
        name = f"keys and values are cached as {keys}, {_CHANGES}"
        return Rung(name=name, down=lambda: self._cache_as(keys, values), up=None, lossless=False)

    def _changing_drafters(
        self, name: str, role: str, *, without: Callable[[], Drafter], again: Callable[[], Drafter]
    ) -> Rung:
        """A rung that frees the model of a role, and goes on with another drafter."""
        n_bytes = sum(line.predicted_bytes for line in self._family.ledger if line.owner == role)
        return Rung(
            name=name,
            down=lambda: self._draft_with(without) or True,
            up=lambda: self._draft_with(again),
            n_bytes=lambda: n_bytes,
        )

    def _note(self, sentence: str, lossless: bool) -> None:
        profile = self._speculator.model.profile.name
        if profile != self._profile:
            self._profile = profile
            sentence += f"; the numerics profile is {profile} now"
        self.steps.append(sentence)
        if not lossless and self._reply is not None:
            self._reply.notice(sentence)

    def _keep_short(self) -> bool:
        self.most_drafted = _SHORT
        self._shelf.to_disk(True)
        return True

    def _draft_on(self) -> None:
        self.most_drafted = None
        self._shelf.to_disk(False)

    def _draft_with(self, build: Callable[[], Drafter]) -> bool:
        """Free all models but the target, then go on with another drafter; whether it is the one that was meant."""
        self._speculator.change_drafter(None)
        for role in ("middle", "draft"):
            self._family.release(role)
        self._family.drop_table()
        # Where there is no room for it after all, tables do, and without room for them nothing drafts.
        for attempt in (build, self._family.table):
            with suppress(EdgeSpecError, MemoryError):
                self._speculator.change_drafter(attempt())
                return attempt is build
        self._speculator.change_drafter(NoDrafter())
        return False

    def _halve(self) -> bool:
        speculator, reply = self._speculator, self._reply
        n_ctx = speculator.model.n_ctx // 2
        if reply is None or n_ctx < _LEAST_N_CTX or not reply.context.shrink(speculator, n_ctx):
            return False
        return self._make_anew(replace(self._family.target_settings, n_ctx=n_ctx), same_cells=True)

    def _cache_as(self, keys: str, values: str) -> bool:
        return self._make_anew(replace(self._family.target_settings, kv_k=keys, kv_v=values), same_cells=False)

    def _make_anew(self, settings: LlamaSettings, *, same_cells: bool) -> bool:
        """Go over to a context with other settings; False if that could not be, and nothing has changed.

        Args:
            same_cells: what is in the cache means the same there; else the text is read again.
        """
        speculator, family, trees = self._speculator, self._family, self._mode.target_trees
        before = family.target_settings
        speculator.settle()
        old = speculator.model
        text = speculator.text[: old.n_past]
        with suppress(OSError), tempfile.TemporaryFile(dir=self._folder) as file:
            # Old and new cache together would be more than there was.
            file.write(old.save())
            try:
                speculator.model = family.target_again(settings, trees=trees)
                done = True
            except (EdgeSpecError, MemoryError):
                speculator.model = family.target_again(before, trees=trees)
                done = False
            if done and not same_cells:
                speculator.model.prefill(text)
            else:
                file.seek(0)
                self._refill(speculator.model, file.read(), text)
            return done
        return False

    @staticmethod
    def _refill(model: LanguageModel, state: bytes, text: list[int]) -> None:
        try:
            model.restore(restated(state, profile=model.profile.name))
        except StateError:
            model.rollback(0)
            model.prefill(text)

    def _stop(self) -> bool:
        self._exhausted = True
        return True


class _Bounded:
    """What a policy says, within what the memory allows."""

    def __init__(self, policy: Policy, relief: Relief) -> None:
        self._policy = policy
        self._relief = relief
        self.learn = policy.learn

    def limit(self) -> int:
        most = self._relief.most_drafted
        limit = self._policy.limit()
        return limit if most is None else min(limit, most)
