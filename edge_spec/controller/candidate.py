"""One way to run a family of models, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from edge_spec.engines.base import Engine, ModelSettings
from edge_spec.memory import Footprint, reserve_bytes
from edge_spec.speculation.modes import MODES, Mode

__all__ = ["DRAFT_TABLES", "STAGES", "TOKEN_BYTES", "Candidate", "stage_of"]

STAGES = ("plain", "tables", "drafter", "hierarchy")
"""What drafts, by what it costs in memory."""

TOKEN_BYTES, DRAFT_TABLES = "bytes of tokens", "tables of the drafter"
"""What a process holds beside its models."""


def stage_of(mode: Mode) -> str:
    """What a mode needs memory for: one of ``STAGES``."""
    if not mode.needs:
        return "plain" if mode.limit == 0 else "tables"
    return "hierarchy" if "intermediate" in mode.needs else "drafter"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to run.

    Attributes:
        mode: how drafts are made.
        settings: of the target, with what was left to its engine still ``auto``.
        engines: what runs each model, by role, in the order in which they are loaded.
        models: the settings that each model is opened with, by role.
        parts: what each model takes, by role.
        base_bytes: what the process holds with or without models.
        tables: what it holds beside the models: ``TOKEN_BYTES``, and ``DRAFT_TABLES`` if there are any.
        speed: by the cost model; only compared with that of others.
    """

    mode: Mode
    settings: ModelSettings
    engines: Mapping[str, Engine]
    models: Mapping[str, ModelSettings]
    parts: Mapping[str, Footprint]
    base_bytes: int
    tables: Mapping[str, int] = field(default_factory=dict)
    speed: float

    @property
    def stage(self) -> str:
        """What drafts: one of ``STAGES``."""
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
        """What is held while it runs."""
        return self.base_bytes + sum(self.tables.values()) + sum(part.held_bytes for part in self.parts.values())

    @property
    def reading_bytes(self) -> int:
        """What is needed besides while a prompt is read, by one model after the other."""
        return max((part.reading_bytes for part in self.parts.values()), default=0)

    @property
    def peak_bytes(self) -> int:
        """The most that is held at any time: while it runs, or while one of its models is loaded."""
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
        """What was decided, for people: name -> value."""
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
        """The same target alone."""
        return replace(
            self,
            mode=MODES["off"],
            engines={"target": self.engines["target"]},
            models={"target": self.models["target"]},
            parts={"target": self.parts["target"]},
            tables={name: n_bytes for name, n_bytes in self.tables.items() if name != DRAFT_TABLES},
        )
