"""All configurations that can run a request, in order of preference, and the memory of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace

from edge_spec.controller.request import Request
from edge_spec.engines.base import Engine, Estimator, ModelSettings
from edge_spec.errors import Arguments, Sentence, SettingsError
from edge_spec.memory import Footprint, reserve_bytes
from edge_spec.memory.budget import Budget
from edge_spec.models import ModelFile
from edge_spec.speculation.modes import MODES, Mode
from edge_spec.tokens.tokenizer import TOKEN_BYTES_LIMIT

__all__ = [
    "DRAFT_TABLES",
    "STAGES",
    "TEXT_CACHES",
    "TOKEN_BYTES",
    "Candidate",
    "Estimates",
    "Estimators",
    "candidates",
    "frugal",
    "smallest_of",
    "stage_of",
]

STAGES = ("plain", "tables", "drafter", "hierarchy")
"""Kinds of drafting, by the memory that they need."""

TOKEN_BYTES, DRAFT_TABLES, TEXT_CACHES = "bytes of tokens", "tables of the drafter", "caches of several texts"
"""Bytes that a process holds besides its models."""


def stage_of(mode: Mode) -> str:
    """Return the kind of drafting of a mode: one of ``STAGES``."""
    if not mode.needs:
        return "plain" if mode.limit == 0 else "tables"
    return "hierarchy" if "intermediate" in mode.needs else "drafter"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One configuration.

    Attributes:
        mode: how drafts are made.
        settings: of the target, with what was left to its engine still ``auto``.
        engines: what runs each model, by role, in the order in which they are loaded.
        models: the settings that each model is opened with, by role.
        parts: what each model takes, by role.
        base_bytes: what the process holds with or without models.
        tables: the bytes that it holds besides the models: ``TOKEN_BYTES``, ``DRAFT_TABLES`` if there are any, and room
            for ``TEXT_CACHES`` if that was asked for.
    """

    mode: Mode
    settings: ModelSettings
    engines: Mapping[str, Engine]
    models: Mapping[str, ModelSettings]
    parts: Mapping[str, Footprint]
    base_bytes: int
    tables: Mapping[str, int] = field(default_factory=dict)

    @property
    def stage(self) -> str:
        """The kind of drafting: one of ``STAGES``."""
        return stage_of(self.mode)

    @property
    def n_ctx(self) -> int:
        """Tokens of context."""
        return self.settings.n_ctx

    @property
    def kv(self) -> tuple[str, str]:
        """Types of the target's cached keys and values."""
        return self.models["target"].kv_k, self.models["target"].kv_v

    @property
    def held_bytes(self) -> int:
        """Bytes held while it runs."""
        return self.base_bytes + sum(self.tables.values()) + sum(part.held_bytes for part in self.parts.values())

    @property
    def reading_bytes(self) -> int:
        """Further bytes needed while the models read a prompt, one after the other."""
        return max((part.reading_bytes for part in self.parts.values()), default=0)

    @property
    def peak_bytes(self) -> int:
        """The most bytes held at any time: while it runs, or while one of its models is loaded."""
        held = most = self.base_bytes + sum(self.tables.values())
        for part in self.parts.values():
            most = max(most, held + part.loading_peak_bytes)
            held += part.held_bytes
        return max(most, held + self.reading_bytes)

    @property
    def needed_bytes(self) -> int:
        """The smallest budget that holds it: its peak and the reserve."""
        return self.peak_bytes + reserve_bytes(self.peak_bytes)

    @property
    def choices(self) -> dict[str, str | int]:
        """The choices for people: name -> value."""
        own = self.models["target"]
        return {
            "speculation": self.mode.name,
            "context": self.n_ctx,
            **self.engines["target"].shown(own, self.parts["target"]),
            "chunk": own.prefill_chunk,
            "rows": own.max_rows,
        }

    @property
    def described(self) -> str:
        """The choices in one line."""
        return ", ".join(f"{name} {value}" for name, value in self.choices.items())

    def without_drafts(self) -> Candidate:
        """Return the same target alone."""
        return replace(
            self,
            mode=MODES["off"],
            engines={"target": self.engines["target"]},
            models={"target": self.models["target"]},
            parts={"target": self.parts["target"]},
            tables={name: n_bytes for name, n_bytes in self.tables.items() if name != DRAFT_TABLES},
        )


_BATCHES = ((512, 16), (256, 16), (128, 8), (64, 8))
"""Tokens per decode while a prompt is read, and rows of one decode that returns logits; the fastest first."""

Engines = Mapping[str, Engine]


class Estimators(ExitStack):
    """The estimators of engines, which remember what they were asked.

    A context manager: models without weights may be open meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[str, Estimator] = {}

    def of(self, engine: Engine) -> Estimator:
        """Return the estimator of an engine."""
        if engine.name not in self._of:
            self._of[engine.name] = self.enter_context(engine.estimator())
        return self._of[engine.name]


class Estimates:
    """Estimates the memory of a candidate.

    Args:
        files: by role.
        estimators: may be shared by requests, so that a library is asked once about a model.
        budget: what the process holds already, and what it may hold. Libraries are only asked about candidates that
            may fit it, since contexts can be of any size; without one about all.
        n_texts: number of texts whose caches must fit at once.
        rough: never ask a library about a candidate.
    """

    def __init__(
        self,
        files: Mapping[str, ModelFile],
        estimators: Estimators,
        *,
        budget: Budget | None = None,
        n_texts: int = 1,
        rough: bool = False,
    ) -> None:
        self._files = files
        self._estimators = estimators
        self._budget = budget
        self._n_texts = n_texts
        self._rough = rough

    def up_to(self, n_bytes: int) -> Estimates:
        """Return the same estimates for another budget."""
        budget = replace(self._budget, budget_bytes=n_bytes) if self._budget is not None else None
        return Estimates(self._files, self._estimators, budget=budget, n_texts=self._n_texts, rough=self._rough)

    def candidate(self, mode: Mode, engines: Engines, settings: ModelSettings) -> Candidate:
        """Return the candidate that runs the target with these settings.

        Raises:
            SettingsError: a setting contradicts one of the models.
        """
        guess = self._candidate(mode, engines, settings, rough=True)
        surely = guess.held_bytes - sum(part.compute_bytes for part in guess.parts.values())
        if self._rough or (self._budget is not None and surely > self._budget.budget_bytes):
            return guess
        return self._candidate(mode, engines, settings, rough=False)

    def footprint(self, role: str, engine: Engine, own: ModelSettings, *, rough: bool = False) -> Footprint:
        """Return the footprint of the model of a role with its own settings."""
        estimator = self._estimators.of(engine)
        return estimator.footprint(self._files[role], own, rough=rough, tokenizer=role == "target")

    def _candidate(self, mode: Mode, engines: Engines, settings: ModelSettings, *, rough: bool) -> Candidate:
        models: dict[str, ModelSettings] = {}
        parts: dict[str, Footprint] = {}
        for role in ("target", *mode.needs):
            file = self._files[role]
            wanted = replace(settings, trees=mode.target_trees)
            own = wanted if role == "target" else settings.for_drafter(file, trees=mode.draft_trees)
            models[role] = engines[role].resolve(file, own)
            parts[role] = self.footprint(role, engines[role], models[role], rough=rough)
        used = {role: engines[role] for role in models}
        parts = _shared(parts, {role: (each.name, self._files[role].fingerprint) for role, each in used.items()})
        tables = {
            TOKEN_BYTES: TOKEN_BYTES_LIMIT,
            DRAFT_TABLES: mode.n_bytes(settings.n_ctx),
            TEXT_CACHES: self._texts_bytes(used, models),
        }
        held, loaded = (self._budget.held_bytes, self._budget.libraries) if self._budget else (0, used.keys())
        libraries = {
            each.name: each.process_bytes + (0 if each.name in loaded else each.library_bytes) for each in used.values()
        }
        return Candidate(
            mode=mode,
            settings=settings,
            engines=used,
            models=models,
            parts=parts,
            base_bytes=held + sum(libraries.values()),
            tables={name: n_bytes for name, n_bytes in tables.items() if n_bytes},
        )

    def _texts_bytes(self, engines: Engines, models: Mapping[str, ModelSettings]) -> int:
        """Return the bytes of the requested number of texts, in the target and in the drafters' models."""
        if self._n_texts == 1:
            return 0
        n_bytes = {
            role: engine.texts_bytes(self._files[role], models[role], self._n_texts) for role, engine in engines.items()
        }
        # If the target holds one text, its drafters hold one, too.
        return sum(n_bytes.values()) if n_bytes["target"] else 0


def candidates(request: Request, estimates: Estimates) -> Iterator[list[Candidate]]:
    """Yield the candidates for a request in order of preference, in groups.

    Those of a group differ in speed and memory, and in the text at most by rounding; the fastest comes first. Each
    group changes more of what was asked for than the one before: types of cached keys and values first, then the
    engine where that was left open, and last the context, since a shorter one forgets.

    Raises:
        SettingsError: the request contradicts a model, or no engine runs one of its modes.
    """
    is_run = False
    for number, (engines, text) in enumerate(_texts(request)):
        # Requested types must work; smaller types of keys and values need not work for every model.
        with suppress(*(SettingsError,) if number else ()):
            group = [
                estimates.candidate(mode, engines, settings)
                for mode, settings in _fastest_first(request, engines, text)
            ]
            if group:
                is_run = True
                yield group
    if not is_run:
        mode = request.modes[0]
        why = next(filter(None, (request.why_not_run(mode, engines) for engines in request.assignments())), "")
        raise SettingsError(
            f"is {mode.name!r}, and {why}",
            argument="speculation",
            hint=Sentence("use {instead}", instead=Arguments(speculation="auto")),
        )


def smallest_of(every: Iterable[Candidate]) -> dict[str, Candidate]:
    """Return the smallest of some candidates, by the kind of drafting that they allow."""
    found: dict[str, Candidate] = {}
    for candidate in every:
        for name in {"fits", candidate.stage} - {"plain"}:
            if name not in found or candidate.needed_bytes < found[name].needed_bytes:
                found[name] = candidate
    return found


def frugal(request: Request, estimates: Estimates) -> list[Candidate]:
    """Return candidates with the smallest contexts and batches; plain decoding is among them.

    What the smallest of them need is the same, whatever the budget: guesses only say what libraries are asked about.
    """
    guessed = list(_frugal(request, estimates))
    most = max((each.needed_bytes for each in smallest_of(guessed).values()), default=0)
    return list(_frugal(request, estimates.up_to(most)))


def _frugal(request: Request, estimates: Estimates) -> Iterator[Candidate]:
    texts = {
        (*(each.name for each in engines.values()), text.kv_k, text.kv_v): (engines, text)
        for engines, text in _texts(request)
    }
    for engines, text in texts.values():
        with suppress(SettingsError):
            # Nothing needs less than plain decoding.
            every = replace(request, modes=tuple(dict.fromkeys((*request.modes, MODES["off"]))))
            for mode, settings in _fastest_first(every, engines, text, least=True):
                yield estimates.candidate(mode, engines, settings)


def _texts(request: Request) -> Iterator[tuple[Engines, ModelSettings]]:
    """Yield engines and settings that affect the text: first as requested, then with more and more changes."""
    for n_ctx in request.contexts():
        for engines in request.assignments():
            settings = replace(request.settings, n_ctx=n_ctx)
            yield engines, settings
            if not {"kv_k", "kv_v"} & request.fixed:
                for keys, values in engines["target"].smaller_caches(request.files["target"], settings):
                    yield engines, replace(settings, kv_k=keys, kv_v=values)


def _fastest_first(
    request: Request, engines: Engines, settings: ModelSettings, *, least: bool = False
) -> Iterator[tuple[Mode, ModelSettings]]:
    """Yield modes and settings that differ in speed and memory; only those of the smallest batch if ``least``.

    No clock decides: batches and the layout of weights are part of the numerics profile, so the same command has to
    choose the same ones tomorrow. What slows every decode of the target comes last; its engine says what does, see
    ``Engine.variants``. Of the rest, more drafters come first: they concern every token of a reply, and `auto`
    leaves out those that do not pay. Larger batches come first within that: they concern prompts, which are read once.
    """
    batches = [(settings.prefill_chunk, settings.max_rows)]
    if not {"prefill_chunk", "max_rows"} & request.fixed:
        batches += [batch for batch in _BATCHES if batch not in batches and batch[1] >= request.min_rows]
    for of_target in engines["target"].variants(request.target, settings, request.fixed):
        for mode in request.modes:
            if request.why_not_run(mode, engines) is not None:
                continue
            variants = [of_target]
            for engine, role in {engines[role]: role for role in mode.needs}.items():
                if engine is not engines["target"]:
                    others = engine.variants(request.files[role], of_target, request.fixed | {"held_experts"})
                    variants += [each for each in others if each not in variants]
            sizes = _sizes(request, engines["target"], batches, drafts=mode.limit > 0)
            for variant in variants:
                for chunk, rows in sizes[-1:] if least else sizes:
                    yield mode, replace(variant, prefill_chunk=chunk, max_rows=rows)


def _sizes(
    request: Request, engine: Engine, batches: Sequence[tuple[int, int]], *, drafts: bool
) -> list[tuple[int, int]]:
    """Batches with as many rows as the target's engine suggests, where the user did not say how many."""
    if "max_rows" in request.fixed:
        return list(batches)
    least = request.min_rows if drafts else 1
    found = [(chunk, n) for chunk, most in batches for n in engine.rows(request.target, most, drafts=drafts)]
    return list(dict.fromkeys(batch for batch in found if batch[1] >= least)) or list(batches)


def _shared(parts: Mapping[str, Footprint], weights: Mapping[str, object]) -> dict[str, Footprint]:
    """Return footprints in which models with the same weights share them."""
    found: dict[str, Footprint] = {}
    for role, part in parts.items():
        if any(weights[other] == weights[role] for other in found):
            weights_of = dict.fromkeys(
                ("mapped_bytes", "expert_bytes", "paged_bytes", "repacked_bytes", "copied_bytes"), 0
            )
            part = replace(part, vocabulary_bytes=0, **weights_of)
        found[role] = part
    return found
