"""Which of several ways to run fits a budget, and which of those is the fastest.

After SpecMemo (arXiv 2506.01986): the footprint of every configuration is known before anything is loaded, so the
least budget at which each kind of speculation becomes possible is known as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_spec.errors import BudgetExceeded
from edge_spec.memory.footprint import Footprint
from edge_spec.memory.ledger import reserve_bytes
from edge_spec.memory.sizes import format_size

__all__ = ["STAGES", "Candidate", "Plan", "choose", "said_of"]

STAGES = ("plain", "tables", "drafter", "hierarchy")
"""What drafts, by what it costs in memory."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to run.

    Attributes:
        choices: what was decided, for people: name -> value.
        stage: one of ``STAGES``.
        base_bytes: what the process holds with or without models.
        parts: footprint of each model, in the order in which they are loaded.
        tables: what the program holds beside, by name.
        speed: by the cost model; only compared with that of others.
        configuration: the same for the program; nothing here looks into it.
    """

    choices: Mapping[str, str | int]
    stage: str
    base_bytes: int
    parts: Mapping[str, Footprint]
    speed: float
    tables: Mapping[str, int] = field(default_factory=dict)
    configuration: Any = field(default=None, repr=False, compare=False)

    @property
    def held_bytes(self) -> int:
        """What is held while it runs."""
        return self.base_bytes + sum(self.tables.values()) + sum(part.held_bytes for part in self.parts.values())

    @property
    def reading_bytes(self) -> int:
        """What is needed beside while a prompt is read, by one model after the other."""
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
        """The least budget that holds it: its peak and the reserve."""
        return self.peak_bytes + reserve_bytes(self.peak_bytes)

    @property
    def described(self) -> str:
        """The choices in one line."""
        return ", ".join(f"{name} {value}" for name, value in self.choices.items())


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What was chosen, and why.

    Attributes:
        chosen: the way to run.
        budget_bytes: what it has to fit.
        why: in a sentence.
        runners_up: other ways that fit, best first, one of each kind.
        thresholds: the least budget by what it makes possible: ``fits``, and every stage but the first.
        engine: what runs the target.
        profile: the numerics profile that results will carry, its name and facts; None where nobody knows it yet.
    """

    chosen: Candidate
    budget_bytes: int
    why: str
    runners_up: tuple[Candidate, ...]
    thresholds: Mapping[str, int]
    engine: str = ""
    profile: Mapping[str, str] | None = None


def choose(
    levels: Iterable[Sequence[Candidate]], budget_bytes: int, *, thresholds: Mapping[str, int], what: str
) -> Plan:
    """The plan for a budget.

    Args:
        levels: candidates in groups. Those of a group differ in speed and memory, and in the text at most by
            rounding; every group changes more of what was requested for than the one before and is only looked at if
            nothing in those fits.
        thresholds: the least budget by what it makes possible, for the plan and for the error.
        what: is to be run, as the beginning of a sentence.

    Raises:
        BudgetExceeded: nothing fits; the error names the thresholds.
    """
    least: Candidate | None = None
    for number, level in enumerate(levels):
        for candidate in level:
            if least is None or candidate.needed_bytes < least.needed_bytes:
                least = candidate
        fitting = sorted(
            (candidate for candidate in level if candidate.needed_bytes <= budget_bytes),
            key=lambda candidate: (-candidate.speed, candidate.needed_bytes),
        )
        if fitting:
            chosen, *others = fitting
            return Plan(
                chosen=chosen,
                budget_bytes=budget_bytes,
                why=_why(chosen, level, changed=number > 0),
                runners_up=_one_of_each(others, chosen),
                thresholds=dict(thresholds),
            )
    needed = least.needed_bytes if least is not None else 0
    raise BudgetExceeded(what, needed_bytes=needed, allowed_bytes=budget_bytes, hint=said_of(thresholds))


def _why(chosen: Candidate, level: Sequence[Candidate], *, changed: bool) -> str:
    faster = [other for other in level if other.speed > chosen.speed]
    reason = "the fastest of what was asked for" if not faster else "the fastest that fits"
    if changed:
        reason += ", after what nobody fixed was made smaller"
    if faster:
        next_up = min(faster, key=lambda other: other.needed_bytes)
        reason += f"; {next_up.described} would need {format_size(next_up.needed_bytes)}"
    return reason


def _one_of_each(others: Sequence[Candidate], chosen: Candidate) -> tuple[Candidate, ...]:
    found: dict[str, Candidate] = {}
    for other in others:
        found.setdefault(other.stage, other)
    return tuple(found.values())[:3]


_SAYS = {
    "fits": "fits from {}",
    "tables": "speculation from {}",
    "drafter": "model drafting from {}",
    "hierarchy": "the hierarchy from {}",
}


def said_of(thresholds: Mapping[str, int]) -> str:
    """Least budgets by what they make possible, as the end of a sentence."""
    said = [_SAYS[name].format(format_size(n_bytes)) for name, n_bytes in thresholds.items() if name in _SAYS]
    return ", ".join(said) if said else "raise --memory"
