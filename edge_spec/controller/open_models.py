"""Open, exchange and close the models of a candidate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from edge_spec.controller.candidates import DRAFT_TABLES, TOKEN_BYTES, Candidate, Estimates, Estimators
from edge_spec.controller.measurements import Gain, Measurements
from edge_spec.engines.base import Engine, ModelSettings, OpenedModel, Opener
from edge_spec.engines.probe import ProbeResult
from edge_spec.errors import BackendError, EdgeSpecError, Sentence, UnsupportedModel
from edge_spec.generation.prefix_cache import PrefixCache
from edge_spec.memory import Footprint, Ledger, probe, require, usage
from edge_spec.memory.usage import trim_heap
from edge_spec.models import ModelFile, kept_tokens
from edge_spec.models.heads import reads
from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.modes import Mode
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.speculation.pool import Pool
from edge_spec.speculation.target import Target
from edge_spec.tokens.tokenizer import FileTokenizer

__all__ = ["FAILURES", "OpenModels"]

FAILURES = (EdgeSpecError, MemoryError, OSError)
"""Errors that may be caused by too little memory."""

_HINT = Sentence("raise {memory}, or use a smaller {n_ctx} or another {speculation}")


class OpenModels:
    """The open target, smaller models and drafter of a candidate.

    Attributes:
        candidate: what is open, or was, where the target could not be opened again.
        target: the target, its texts and its drafter.
        probed: what probing the target found.
        notes: sentences about what the models cannot do.
        ledger: where everything is claimed before it is opened, line by line.
        files: by role.
        prefix_cache: which cells of the target, and what copies of them, serve texts to come.

    Args:
        first: the candidate that was planned.
        openers: open the models, by engine; closed with them.
        folder: where caches can be kept on the disk; the system's own for temporary files if None.
        measurements: of this device, kept from run to run; none are if None.

    Raises:
        BudgetExceeded, UnsupportedModel, BackendError and others of ``FAILURES``: it cannot be opened.
    """

    def __init__(
        self,
        files: Mapping[str, ModelFile],
        first: Candidate,
        openers: Mapping[Engine, Opener],
        ledger: Ledger,
        *,
        folder: Path | None = None,
        measurements: Measurements | None = None,
    ) -> None:
        self.files = files
        self.ledger = ledger
        self.notes: list[str] = []
        self.candidate = first
        self._first = first
        self._openers = openers
        self._pools: dict[str, Pool] = {}
        self._reads_target: set[str] = set()
        # The open configuration: the target's engine and settings, and the mode of the drafter.
        self._opened: tuple[Engine, ModelSettings] | None = self._target_of(first)
        self._mode: Mode | None = None
        # The learners in the open drafter, and their candidate.
        self._measurements = measurements or Measurements(None, files)
        self._learning: tuple[Candidate, dict[str, Chooser]] | None = None
        try:
            opened = self._open("target", first, self._target_of(first)[1])
            self.probed: ProbeResult = opened.probed
            self._note_cut_short()
            self.target = Target(Slot(opened.pool.path(), NoDrafter()))
            self.prefix_cache = PrefixCache(self.target, ledger, folder=folder)
            self._go_to(first)
        except BaseException:
            self._close_all()
            raise

    def apply(self, candidate: Candidate) -> None:
        """Open, close or reopen the models in which a candidate differs from the open one.

        To be called between two rounds. Nothing is read here: the next decode first reads the tokens that a reopened
        context lacks.

        Raises:
            BudgetExceeded: it does not fit. UnsupportedModel, BackendError and others of ``FAILURES``: it cannot be
                opened. What was open before is open again then, as far as memory allows.
        """
        was = self.candidate
        try:
            self._go_to(candidate)
        except FAILURES:
            with suppress(*FAILURES):
                self._go_to(was)
            raise
        finally:
            # Else the memory of a failed attempt would stay with this process.
            trim_heap()

    @property
    def is_lost(self) -> bool:
        """Whether the target is closed because reopening it failed."""
        return self._opened is None

    def recover(self) -> bool:
        """Reopen a lost target with an empty cache; return whether it is open."""
        if self.is_lost:
            self.prefix_cache.discard_saved()
            with suppress(*FAILURES):
                self._go_to(self.candidate)
                self.target.forget()
        return not self.is_lost

    def tokenizer(self) -> FileTokenizer:
        """Return the target's tokenizer."""
        tokenizer = self._openers[self.candidate.engines["target"]].tokenizer(self.files["target"])
        self.ledger.gauge("process", TOKEN_BYTES, lambda: tokenizer.token_cache.held_bytes)
        return tokenizer

    def keep_gain(self, gain: Gain) -> None:
        """Store the speed-up of the open models."""
        self._measurements.keep_gain(self.candidate, gain)

    def close(self) -> None:
        """Free everything. Safe to call twice."""
        self._keep_learned()
        if not self.is_lost:
            self.target.close()
        self._close_all()

    def _close_all(self) -> None:
        for pool in self._pools.values():
            pool.close()
        for opener in self._openers.values():
            opener.close()
        self.ledger.retire()

    # Change from one candidate to another.

    def _go_to(self, candidate: Candidate) -> None:
        if self._opened != self._target_of(candidate):
            self._reopen_target(candidate)
        candidate = self._usable(candidate)
        if candidate.mode != self._mode:
            self.candidate = candidate.without_drafts()
            self._draft_as(candidate)
        self.candidate = candidate

    def _target_of(self, candidate: Candidate) -> tuple[Engine, ModelSettings]:
        """Return the target's engine and settings.

        A target opened for trees keeps taking them, which costs little.
        """
        own = replace(candidate.models["target"], trees=self._first.mode.target_trees)
        return candidate.engines["target"], own

    def _reopen_target(self, candidate: Candidate) -> None:
        wanted = self._target_of(candidate)
        if self._reads_target & self._pools.keys():
            self._stop_drafting()
        if self._opened is not None:
            self._close_target(wanted)
        opened = self._open("target", candidate, wanted[1])
        self._opened, self.probed = wanted, opened.probed
        self._note_cut_short()
        self.target.change_pool(opened.pool)
        self.prefix_cache.restore_slots()

    def _close_target(self, wanted: tuple[Engine, ModelSettings]) -> None:
        """Close the target; keep its cells if the wanted candidate can use them and they fit."""
        assert self._opened is not None
        engine, own = self._opened
        if wanted == (engine, replace(own, n_ctx=wanted[1].n_ctx, held_experts=wanted[1].held_experts)):
            self.prefix_cache.save_slots(wanted[1].n_ctx)
        self._opened = None
        self._close("target")

    def _note_cut_short(self) -> None:
        """Add a note if the probe of the target was not completed."""
        if seconds := self.probed.cut_short_s:
            self._note(
                f"calibrating {self.files['target'].path.name} has taken {seconds:.0f} s and was given up for now: "
                "tokens are computed one by one, without drafts; the next start calibrates again, for up to "
                f"{2 * seconds:.0f} s"
            )

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def _usable(self, candidate: Candidate) -> Candidate:
        """Return the candidate, without drafts where the target cannot verify them."""
        can, mode, why = self.target.pool.capabilities, candidate.mode, ""
        if not mode.limit:
            return candidate
        if self.probed.cut_short_s:
            return candidate.without_drafts()
        if not can.rollback:
            why = "this model's cache cannot be rolled back"
        elif mode.target_trees and not can.takes_trees:
            why = "this model does not compute trees like sequences"
        elif can.identity != "rounding":
            return candidate
        self._note(
            f"speculation {mode.name!r} is off: {why}"
            if why
            else "this model's results depend on the batch size, so drafts may change a word where two are almost "
            "equally likely"
        )
        return candidate.without_drafts() if why else candidate

    def _draft_as(self, candidate: Candidate) -> None:
        self._stop_drafting(keep=candidate.mode.needs)
        try:
            self.ledger.set("process", DRAFT_TABLES, candidate.tables.get(DRAFT_TABLES, 0))
            recall = partial(self._measurements.recall, candidate)
            smaller = _SmallerModels(candidate, self.files, self._open, self.probed, recall)
            self._learning = candidate, smaller.learners
            self.ledger.gauge("process", DRAFT_TABLES, lambda: self.target.held_bytes)
            self.target.change_drafters(partial(smaller.drafter, candidate.mode))
        except BaseException:
            self._stop_drafting()
            raise
        self._mode = candidate.mode

    def _stop_drafting(self, keep: Collection[str] = ()) -> None:
        """Close the drafter and its models; the weights of roles in ``keep`` stay."""
        self._keep_learned()
        self.target.change_drafters()
        self._mode = None
        self.ledger.release("process", DRAFT_TABLES)
        # Close the drafter first: it may read what the intermediate model computes.
        for role in sorted(self._pools.keys() - {"target"}):
            self._close(role, keep_weights=role in keep)

    def _keep_learned(self) -> None:
        if self._learning is not None:
            self._measurements.keep(*self._learning)
            self._learning = None

    # Single models.

    def _open(self, role: str, candidate: Candidate, own: ModelSettings) -> OpenedModel:
        file, engine = self.files[role], candidate.engines[role]
        footprint = self._footprint(role, candidate, own)
        self.ledger.claim_all(role, footprint.lines(), hint=_HINT)
        before = usage().resident_bytes
        try:
            measured = lambda name, n_bytes: self.ledger.measure(role, name, n_bytes)  # noqa: E731
            between = self.files["intermediate"] if "intermediate" in candidate.models else None
            read = "intermediate" if between is not None and reads(file, between) else "target"
            target = None if role == "target" else (self._pools[read], self.files[read])
            opened = self._openers[engine].open(file, own, target=target, measured=measured)
        except BaseException as error:
            self.ledger.release(role)
            if isinstance(error, UnsupportedModel | BackendError | MemoryError):
                # The library does not name memory as the reason, so compare with the bytes left.
                what = f"{file.path.name} with a context of {own.n_ctx} tokens"
                require(what, footprint.held_bytes, probe(), hint=_HINT)
            raise
        self.ledger.note_growth(role, usage().resident_bytes - before)
        self._pools[role] = opened.pool
        if opened.reads_target:
            self._reads_target.add(role)
        return opened

    def _footprint(self, role: str, candidate: Candidate, own: ModelSettings) -> Footprint:
        if candidate is self._first:
            return candidate.parts[role]
        with Estimators() as estimators:
            return Estimates(self.files, estimators).footprint(role, candidate.engines[role], own)

    def _close(self, role: str, *, keep_weights: bool = True) -> None:
        self._pools.pop(role).close()
        self._reads_target.discard(role)
        self.ledger.release(role)
        file = self.files[role]
        if not keep_weights and all(self.files[other].path != file.path for other in self._pools):
            self._openers[self._first.engines[role]].release(file)
        trim_heap()


class _SmallerModels:
    """The models from which a mode builds its drafter; each is opened when it is first requested."""

    def __init__(
        self,
        candidate: Candidate,
        files: Mapping[str, ModelFile],
        open_it: Callable[[str, Candidate, ModelSettings], OpenedModel],
        probed: ProbeResult,
        recall: Callable[[Mapping[str, Chooser]], None],
    ) -> None:
        self.n_ctx = candidate.n_ctx
        self.takes_trees = probed.capabilities.takes_trees
        self.seconds = probed.seconds
        self.draft_reads_intermediate = "intermediate" in candidate.models and any(
            reads(files[role], files["intermediate"]) for role in candidate.models
        )
        self.learners: dict[str, Chooser] = {}
        self._candidate = candidate
        self._files = files
        self._open, self._recall = open_it, recall
        self._pools: dict[str, Pool] = {}
        # Of the text that a drafter is built for, the target among them.
        self._paths: dict[str, TextPath] = {}

    def remember(self, name: str, learner: Chooser) -> None:
        """Register a learner, and give it its stored state.

        What drafts for a further text learns together with what drafts for the first one.
        """
        if name in self.learners:
            learner.join(self.learners[name])
        else:
            self.learners[name] = learner
            self._recall({name: learner})

    def drafter(self, mode: Mode, target: TextPath) -> Drafter:
        """Return a drafter for a text of the target."""
        self._paths = {"target": target}
        return mode.build(self)

    def draft(self, *, trees: bool) -> TextPath:
        """Return a path of the drafter's model."""
        return self._path("draft", trees)

    def intermediate(self, *, trees: bool) -> TextPath:
        """Return a path of the intermediate model."""
        return self._path("intermediate", trees)

    def _path(self, role: str, trees: bool) -> TextPath:
        if role not in self._pools:
            own = replace(self._candidate.models[role], trees=trees)
            pool = self._pools[role] = self._open(role, self._candidate, own).pool
            kept = kept_tokens(self._files["target"], self._files[role])
            if kept is not None:
                pool.trim(kept)
        reads_between = self.draft_reads_intermediate and "intermediate" in self._paths
        like = self._paths["intermediate" if reads_between else "target"]
        path = self._paths[role] = self._pools[role].path(like)
        return path
