"""From model files and a memory budget to the way to run them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from edge_spec.controller.estimates import Estimates
from edge_spec.controller.plan import Candidate, Plan, choose
from edge_spec.engines.kv_types import ROUNDS_VISIBLY, smaller_kv
from edge_spec.engines.llama import LlamaSettings
from edge_spec.engines.role_settings import kv_types, own_settings
from edge_spec.errors import BudgetExceeded, SettingsError
from edge_spec.memory import Footprint, format_size
from edge_spec.models import ModelFile
from edge_spec.models.kv_cache import CTX_STEP, kv_cache_bytes
from edge_spec.speculation.modes import MODES, Mode
from edge_spec.tokens.token_bytes import TOKEN_BYTES_LIMIT

__all__ = ["MIN_N_CTX", "NGRAMS", "TOKEN_BYTES", "Configuration", "Planner", "note_of", "stage_of", "tables_of"]

NGRAMS, TOKEN_BYTES = "n-gram table", "bytes of tokens"

MIN_N_CTX = 256
"""No context is made shorter than this for want of memory."""

_BATCHES = ((512, 16), (256, 16), (128, 8), (64, 8))
"""Tokens per decode while a prompt is read, and rows of one decode that returns logits."""

_DRAFTS_MAY_PAY = 1.15
"""What a drafter is taken to bring at least where it can be left out by the clock."""

_PROCESS_BYTES = {"llama": 6 << 20, "onnx": 2 << 20}
"""What an engine's libraries and the interpreter grow by while it runs, beside its models."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What a candidate means for the program."""

    mode: Mode
    settings: LlamaSettings
    engines: Mapping[str, str]


class Planner:
    """Enumerates the ways to run a family, and chooses one. A context manager: it holds dry models meanwhile.

    Args:
        files: by role; None where there is no such model.
        engines: by role.
        settings: as asked for.
        fixed: names of the settings that the user gave: these are never changed.
        min_rows: no fewer rows than these in a decode that returns logits.
        base_bytes: what the process holds now.
    """

    def __init__(
        self,
        files: Mapping[str, ModelFile | None],
        engines: Mapping[str, str],
        settings: LlamaSettings,
        *,
        fixed: frozenset[str],
        min_rows: int = 1,
        base_bytes: int,
    ) -> None:
        self._files = {role: file for role, file in files.items() if file is not None}
        self._engines = engines
        self._settings = settings
        self._fixed = fixed
        self._least_rows = min_rows
        self._base_bytes = base_bytes
        self._estimates = Estimates(self._files, engines)

    def plan(self, modes: Sequence[Mode], budget_bytes: int, *, max_n_ctx: int = 0) -> Plan:
        """The best way to run one of ``modes`` within a budget.

        Args:
            modes: that will do.
            max_n_ctx: with room to spare the context gets longer, up to so many tokens.

        Raises:
            BudgetExceeded: nothing fits; the error names what the budget would have to be, and for what.
            SettingsError: what the user fixed contradicts the model.
        """
        target = self._files["target"]
        least = self.thresholds(modes, budget_bytes)
        levels = (self._level(modes, settings, budget_bytes) for settings in self._texts())
        try:
            found = choose(levels, budget_bytes, thresholds=least, what=target.path.name)
            return self._with_more_context(replace(found, engine=self._engines["target"]), max_n_ctx)
        except BudgetExceeded as error:
            nearest = self._nearest(modes, budget_bytes)
            if nearest is None:
                raise
            changes = ", ".join(self._changes(modes, nearest)) or nearest.described
            raise BudgetExceeded(
                f"{target.path.name} as asked for",
                needed_bytes=error.needed_bytes,
                allowed_bytes=budget_bytes,
                hint=f"with {changes} it would fit; {error.hint}",
            ) from None

    def _with_more_context(self, found: Plan, max_n_ctx: int) -> Plan:
        """The same plan with as much more context as fits."""
        chosen: Configuration = found.chosen.configuration
        least = chosen.settings.n_ctx
        if max_n_ctx <= least:
            return found

        def of(n_ctx: int) -> Candidate:
            return self._asked_if_near(chosen.mode, replace(chosen.settings, n_ctx=n_ctx), found.budget_bytes)

        # Between these multiples of the step, and the end itself.
        places = [*range(least - least % CTX_STEP + CTX_STEP, max_n_ctx, CTX_STEP), max_n_ctx]
        n_fitting = bisect_left(places, 1, key=lambda n: of(n).needed_bytes > found.budget_bytes)
        if not n_fitting:
            return found
        why = f"{found.why}; with room for more context than the {least} tokens asked for at least"
        return replace(found, chosen=of(places[n_fitting - 1]), why=why)

    def thresholds(self, modes: Sequence[Mode], budget_bytes: int) -> dict[str, int]:
        """The least budget by what it makes possible, with what is fixed left as it is; rough where far beyond it.

        Nothing needs less than plain decoding, which is always among them.
        """
        *_, smallest = self._texts()
        found: dict[str, int] = {}
        for mode in (*modes, MODES["off"]):
            needed = min(
                self._asked_if_near(mode, settings, budget_bytes).needed_bytes
                for settings in self._speeds(smallest, smallest_only=True)
            )
            stages = ["fits"] if stage_of(mode) == "plain" else ["fits", stage_of(mode)]
            for stage in stages:
                found[stage] = min(needed, found.get(stage, needed))
        return {name: found[name] for name in ("fits", "tables", "drafter", "hierarchy") if name in found}

    def _nearest(self, requested: Sequence[Mode], budget_bytes: int) -> Candidate | None:
        """What would fit if nothing but the files were fixed, speculating as requested if that does."""
        free = Planner(
            self._files,
            self._engines,
            LlamaSettings(n_ctx=max(MIN_N_CTX, min(4096, self._settings.n_ctx))),
            fixed=frozenset(),
            min_rows=self._least_rows,
            base_bytes=self._base_bytes,
        )
        with free:
            modes = [mode for mode in MODES.values() if set(mode.needs) <= self._files.keys()]
            for settings in free._texts():
                fitting = [c for c in free._level(modes, settings, budget_bytes) if c.needed_bytes <= budget_bytes]
                if fitting:
                    return max(fitting, key=lambda c: (c.configuration.mode in requested, c.speed, -c.needed_bytes))
        return None

    def _changes(self, modes: Sequence[Mode], other: Candidate) -> Iterator[str]:
        """What somebody would have to ask for instead to get another candidate, as options and arguments."""
        found: Configuration = other.configuration
        if found.mode not in modes:
            yield f"--speculation {found.mode.name}"
        changed = {name for name in self._fixed if getattr(found.settings, name) != getattr(self._settings, name)}
        if "n_ctx" in changed:
            yield f"--ctx {found.settings.n_ctx}"
        if changed & {"kv_k", "kv_v"}:
            yield f"--kv {other.choices.get('kv', 'f32')}"
        if "repack" in changed and not found.settings.repack:
            yield "--no-repack"
        for name in sorted(changed & {"prefill_chunk", "max_rows"}):
            yield f"{name}={getattr(found.settings, name)}"

    def _texts(self) -> Iterator[LlamaSettings]:
        """Settings that make a difference to the text: as asked for, then with less and less context and precision."""
        asked = self._settings
        sizes = [asked.n_ctx]
        while "n_ctx" not in self._fixed and sizes[-1] >= 2 * MIN_N_CTX:
            sizes.append(sizes[-1] // 2)
        # What rounds visibly comes last, after much of the context; see ``Relief`` for the same order at work.
        smaller = smaller_kv(self._files["target"], self._engines["target"], asked, self._fixed)
        gentle = [(asked.kv_k, asked.kv_v), *(kinds for kinds in smaller if kinds[0] != ROUNDS_VISIBLY)]
        last = [kinds for kinds in smaller if kinds not in gentle]
        possible = [replace(asked, n_ctx=n, kv_k=keys, kv_v=values) for n in sizes for keys, values in gentle]
        possible += [replace(asked, n_ctx=n, kv_k=keys, kv_v=values) for keys, values in last for n in sizes[-2:]]
        yield asked
        yield from (settings for settings in possible if settings != asked and self._possible(settings))

    def _possible(self, settings: LlamaSettings) -> bool:
        try:
            for role, file in self._files.items():
                if self._engines[role] == "llama":
                    _kv_bytes(file, settings.for_heads(file.head_dim_k))
        except SettingsError:
            return False
        return True

    def _speeds(self, settings: LlamaSettings, *, smallest_only: bool = False) -> Iterator[LlamaSettings]:
        """Settings that make a difference to speed and memory alone, fastest first."""
        batches = [(settings.prefill_chunk, settings.max_rows)]
        if not self._fixed & {"prefill_chunk", "max_rows"}:
            batches += [batch for batch in _BATCHES if batch not in batches and batch[1] >= self._least_rows]
        if smallest_only:
            batches = batches[-1:]
        repacks = [settings.repack]
        if "repack" not in self._fixed and "llama" in self._engines.values():
            repacks.append(not settings.repack)
        for chunk, rows in batches:
            for repack in repacks:
                yield replace(settings, prefill_chunk=chunk, max_rows=rows, repack=repack)

    def _level(self, modes: Sequence[Mode], text: LlamaSettings, budget_bytes: int) -> list[Candidate]:
        """Everything that writes the same text but for rounding."""
        return [self._asked_if_near(mode, settings, budget_bytes) for settings in self._speeds(text) for mode in modes]

    def _asked_if_near(self, mode: Mode, settings: LlamaSettings, budget_bytes: int) -> Candidate:
        """A candidate, which the library is not asked about where it is hopeless: contexts can be of any size."""
        rough = self._candidate(mode, settings, dry=False)
        floor = rough.held_bytes - sum(part.compute_bytes for part in rough.parts.values())
        return rough if floor > budget_bytes else self._candidate(mode, settings)

    def _candidate(self, mode: Mode, settings: LlamaSettings, *, dry: bool = True) -> Candidate:
        roles = ("target", *mode.needs)
        parts: dict[str, Footprint] = {}
        seen: set[str] = set()
        for role in roles:
            trees = mode.target_trees if role == "target" else mode.name != "sequence"
            part = self._estimates.of(role, settings, trees=trees, dry=dry)
            key = f"{self._engines[role]} {self._files[role].fingerprint}"
            if key in seen:  # weights of one file are shared
                part = replace(part, mapped_bytes=0, repacked_bytes=0, copied_bytes=0, vocabulary_bytes=0)
            seen.add(key)
            parts[role] = part
        target = self._files["target"]
        engines = {self._engines[role] for role in roles} | {"llama"}
        llama = self._engines["target"] == "llama"
        kinds = kv_types(own_settings(self._engines["target"], "target", target, settings, trees=mode.target_trees))
        choices: dict[str, str | int] = {"speculation": mode.name, "context": settings.n_ctx}
        if llama or kinds == ("f16", "f16"):
            choices |= {"kv": "/".join(kinds)}
        choices |= {"chunk": settings.prefill_chunk, "rows": settings.max_rows}
        if llama:
            choices |= {"weights": "repacked" if settings.repack and parts["target"].repacked_bytes else "mapped"}
        return Candidate(
            choices=choices,
            stage=stage_of(mode),
            base_bytes=self._base_bytes + sum(_PROCESS_BYTES[engine] for engine in engines),
            parts=parts,
            tables=tables_of(mode, settings),
            speed=_speed(mode, settings, parts, engine=self._engines["target"]),
            configuration=Configuration(mode=mode, settings=settings, engines=self._engines),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._estimates.__exit__(kind, error, trace)


def tables_of(mode: Mode, settings: LlamaSettings) -> dict[str, int]:
    """What is held beside models and the interpreter, by name."""
    tables = {TOKEN_BYTES: TOKEN_BYTES_LIMIT}
    n_bytes = mode.n_bytes(settings.n_ctx)
    return tables | {NGRAMS: n_bytes} if n_bytes else tables


def stage_of(mode: Mode) -> str:
    """What a mode costs memory for, see ``edge_spec.memory.STAGES``."""
    if not mode.needs:
        return "plain" if mode.limit == 0 else "tables"
    return "hierarchy" if "intermediate" in mode.needs else "drafter"


def _speed(mode: Mode, settings: LlamaSettings, parts: Mapping[str, Footprint], *, engine: str) -> float:
    """Tokens per second up to a factor: a simple model until this device's curves are measured.

    A decode takes as long as its weights take to be read; llama.cpp computes mapped ones in a slower layout, and our
    kernels take 0.7 of its time (measured on a 1.0B shape). A round of a drafter costs three of its decodes and 1.3 of
    the target's, and brings 1.8 tokens; a table brings 4 % for nothing.
    """
    target = parts["target"]
    seconds = target.weight_bytes * (0.7 if engine == "onnx" else 1.0 if settings.repack else 1.5)
    drafts = sum(part.weight_bytes for role, part in parts.items() if role != "target")
    gain = {
        "plain": 1.0,
        "tables": 1.04,
        "drafter": 1.8 / (1.3 + 3 * drafts / max(1, target.weight_bytes)),
        "hierarchy": 1.9 / (1.3 + 4 * drafts / max(1, target.weight_bytes)),
    }[stage_of(mode)]
    if mode.adapts:
        # What does not pay by the clock is left out, so this rough model may not leave out what might: a drafter goes
        # after longer pieces of prompt and before tables.
        gain = max(_DRAFTS_MAY_PAY if mode.needs else 1.0, gain)
    # Reading a prompt in smaller pieces reads the weights more often.
    return gain / max(1, seconds) * (1 - 4 / settings.prefill_chunk)


def _kv_bytes(file: ModelFile, settings: LlamaSettings) -> int:
    return kv_cache_bytes(file, settings.n_ctx, settings.kv_k, settings.kv_v)


def note_of(plan: Plan, target: ModelFile, asked: LlamaSettings, requested: Sequence[Mode]) -> list[str]:
    """Sentences about what the plan leaves out of what was requested for."""
    chosen: Configuration = plan.chosen.configuration
    notes = []
    budget = f"to fit {format_size(plan.budget_bytes)}"
    if chosen.mode is not requested[0]:
        notes.append(f"speculation is {chosen.mode.name!r} instead of {requested[0].name!r} {budget}")
    if chosen.settings.n_ctx > asked.n_ctx:
        notes.append(f"the context is {chosen.settings.n_ctx}, more than the {asked.n_ctx} asked for at least")
    elif chosen.settings.n_ctx < asked.n_ctx:
        notes.append(f"the context is {chosen.settings.n_ctx} instead of {asked.n_ctx} {budget}")
    cached, wanted = (
        kv_types(own_settings(plan.engine, "target", target, settings, trees=chosen.mode.target_trees))
        for settings in (chosen.settings, asked)
    )
    for what, kind, instead in zip(("keys", "values"), cached, wanted, strict=True):
        if kind != instead:
            notes.append(f"{what} are cached as {kind} instead of {instead} {budget}")
    if chosen.settings.prefill_chunk != asked.prefill_chunk:
        pieces = f"{chosen.settings.prefill_chunk} instead of {asked.prefill_chunk}"
        notes.append(f"prompts are read in pieces of {pieces} {budget}")
    if asked.repack and not chosen.settings.repack:
        notes.append(f"weights stay mapped, which is slower, {budget}")
    return notes
