"""What was measured on this device, kept from run to run: costs of decodes, what drafts brought, what drafters learned.

None of it changes a token, and no choice that the numerics profile names depends on it: drafts that are chosen
differently are verified all the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from edge_spec.controller.candidates import Candidate
from edge_spec.controller.paying import Gain
from edge_spec.engines.records import FOLDER, read_record, write_record
from edge_spec.errors import BAD_RECORD
from edge_spec.memory.hardware import processor
from edge_spec.models import ModelFile
from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.chooser.curve import CostCurve
from edge_spec.speculation.chooser.records import positive, whole

__all__ = ["Costs", "Measurements", "usual_seconds"]

Costs = Mapping[int, Mapping[int, float]]
"""Seconds of a decode by the cells in use before it, and by its number of rows."""

_VERSION = 3

_USUAL_DEPTH = 512
"""Cells in use in the middle of a reply: of several depths the nearest to it stands for all."""

_COSTS, _GAINS, _LEARNED = "costs", "gains", "learned"
"""What a record holds: of a single model the first, of models that work together the others, by mode and learner."""

_CURVES = {"text": "target", "leaf": "intermediate"}
"""Whose decodes each learner knows the costs of."""


class Measurements:
    """Remembers what was measured of models: a record for each, and one for those that work together.

    A record belongs to files, engines, threads, types of caches and the processor: costs depend on these most, and how
    they change with the rest is learned soon.

    Args:
        cache_dir: where they are kept; None for nowhere.
        files: by role.
    """

    def __init__(self, cache_dir: Path | None, files: Mapping[str, ModelFile]) -> None:
        self._cache_dir = cache_dir
        self._files = files

    def costs(self, candidate: Candidate, role: str) -> Costs:
        """Return the costs of the model that has a role in a candidate; empty if it has none or none were measured."""
        try:
            return {
                whole(depth, least=0): {whole(n, least=1): positive(s) for n, s in seconds.items()}
                for depth, seconds in self._read(candidate, role)[_COSTS].items()
                if seconds
            }
        except BAD_RECORD:
            return {}

    def keep_costs(self, candidate: Candidate, costs: Mapping[str, Costs]) -> None:
        """Keep what decodes of a candidate's models cost, by role; what was learned before gives way to it.

        Depths that were measured earlier stay.
        """
        for role, measured in costs.items():
            if measured and role in candidate.engines:
                self._write(candidate, role, entry=_COSTS, content={**self.costs(candidate, role), **measured})
        learned = self._entry(candidate, _LEARNED)
        for name, role in _CURVES.items():
            seconds = usual_seconds(costs.get(role, {}))
            if seconds and isinstance(learned.get(name), dict):
                learned[name]["seconds"] = {str(n): s for n, s in seconds.items()}
                self._write(candidate, *candidate.engines, entry=_LEARNED, content=learned)

    def recall(self, candidate: Candidate, learners: Mapping[str, Chooser]) -> None:
        """Let the learners of a candidate begin with what was kept of them."""
        learned = self._entry(candidate, _LEARNED)
        for name, learner in learners.items():
            if name in learned:
                # A record that is damaged is worth less than one that is missing, and no reason to fail.
                with suppress(*BAD_RECORD):
                    learner.recall(learned[name])

    def keep(self, candidate: Candidate, learners: Mapping[str, Chooser]) -> None:
        """Keep what the learners of a candidate have learned."""
        learned = {name: learner.as_json() for name, learner in learners.items() if learner.has_learned}
        if learned:
            content = self._entry(candidate, _LEARNED) | learned
            self._write(candidate, *candidate.engines, entry=_LEARNED, content=content)

    def keep_gain(self, candidate: Candidate, gain: Gain) -> None:
        """Keep what ``bench`` or ``pair`` has measured of a mode with a candidate's models."""
        content = self._entry(candidate, _GAINS) | {gain.mode: vars(gain)}
        self._write(candidate, *candidate.engines, entry=_GAINS, content=content)

    def gain(self, candidate: Candidate) -> Gain | None:
        """Return the best that drafts of a candidate's models have brought here; None where that was not measured.

        ``bench`` and ``pair`` measure it, in turns with plain decoding. Use alone shows what drafts brought, but not
        what the machine did meanwhile.
        """
        timed = []
        for kept in self._entry(candidate, _GAINS).values():
            # Earlier versions did not count what was drafted.
            with suppress(*BAD_RECORD):
                timed.append(_gain(**kept))
        return max(timed, key=lambda gain: (gain.pays, gain.speed_up), default=None)

    def drafting_costs(self, candidate: Candidate) -> tuple[Mapping[int, float], float] | None:
        """Return the seconds of the target's decodes by rows and of drafting a token; None where one was not timed."""
        seconds = {role: usual_seconds(self.costs(candidate, role)) for role in candidate.engines}
        if not all(seconds.values()):
            return None
        # An intermediate model drafts at most as slowly as it writes by itself.
        drafting = seconds.get("intermediate") or seconds.get("draft") or {1: 0.0}
        return seconds["target"], CostCurve(drafting)(1)

    # Records: one of a single role's model, one of all roles of a candidate.

    def _entry(self, candidate: Candidate, name: str) -> dict[str, Any]:
        found = self._read(candidate, *candidate.engines).get(name)
        return found if isinstance(found, dict) else {}

    def _read(self, candidate: Candidate, *roles: str) -> dict[str, Any]:
        path = self._place(candidate, roles)
        return read_record(path) if path is not None else {}

    def _write(self, candidate: Candidate, *roles: str, entry: str, content: Mapping[Any, object]) -> None:
        path = self._place(candidate, roles)
        if path is not None:
            write_record(path, {**read_record(path), entry: content})

    def _place(self, candidate: Candidate, roles: tuple[str, ...]) -> Path | None:
        if self._cache_dir is None or not candidate.engines.keys() >= set(roles):
            return None
        models = []
        # A single model costs the same in every role.
        for role in sorted(roles):
            own = candidate.models[role]
            about = {"threads": own.threads, "kv": (own.kv_k, own.kv_v)}
            models.append(
                (candidate.engines[role].name, self._files[role].fingerprint, about, role if len(roles) > 1 else "")
            )
        key = json.dumps([_VERSION, processor(), models], sort_keys=True)
        return self._cache_dir / FOLDER / f"{blake2b(key.encode(), digest_size=12).hexdigest()}.json"


def _gain(*, speed_up: Any, low: Any, high: Any, drafted: Any, rounds: Any, mode: Any) -> Gain:
    """Return a gain as it was kept.

    Raises:
        ValueError, TypeError: it is damaged, or nothing was drafted.
    """
    return Gain(
        speed_up=positive(speed_up),
        low=positive(low),
        high=positive(high),
        drafted=whole(drafted, least=1),
        rounds=whole(rounds, least=1),
        mode=str(mode),
    )


def usual_seconds(costs: Costs) -> Mapping[int, float]:
    """Return seconds by number of rows in the middle of a reply; empty if nothing was measured."""
    return costs[min(costs, key=lambda depth: abs(depth - _USUAL_DEPTH))] if costs else {}
