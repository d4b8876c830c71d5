"""What drafters have learned of this device, kept from run to run.

None of it changes a token: drafts that are chosen differently are verified all the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from edge_spec.controller.candidates import Candidate
from edge_spec.controller.measured_costs import Costs, MeasuredCosts, settings_of_costs, usual_seconds
from edge_spec.controller.paying import Gain
from edge_spec.engines.records import FOLDER, read_record, write_record
from edge_spec.errors import BAD_RECORD
from edge_spec.memory.hardware import processor
from edge_spec.models import ModelFile
from edge_spec.speculation.adaptive.costs import CostCurve
from edge_spec.speculation.adaptive.records import positive, whole
from edge_spec.speculation.modes import Learner

__all__ = ["Experience"]

_VERSION = 2

_TIMED = "timed"
"""Under which name a record has what ``bench`` and ``pair`` have measured, by mode."""

_CURVES = {"text": "target", "leaf": "intermediate"}
"""Whose decodes each learner knows the costs of."""


class Experience:
    """Remembers what was learned with the same models, engines, threads and caches on the same processor.

    Args:
        cache_dir: where it is kept; None for nowhere.
        files: by role.

    Attributes:
        costs: what decodes of each model cost, where that was measured by itself.
    """

    def __init__(self, cache_dir: Path | None, files: Mapping[str, ModelFile]) -> None:
        self.costs = MeasuredCosts(cache_dir, files)
        self._cache_dir = cache_dir
        self._files = files

    def recall(self, candidate: Candidate, learners: Mapping[str, Learner]) -> None:
        """Let the learners of a candidate begin with what was kept of them."""
        kept = self._read(candidate)
        for name, learner in learners.items():
            if name in kept:
                # A record that is damaged is worth less than one that is missing, and no reason to fail.
                with suppress(*BAD_RECORD):
                    learner.recall(kept[name])

    def keep(self, candidate: Candidate, learners: Mapping[str, Learner]) -> None:
        """Keep what they have learned."""
        learned = {name: learner.as_json() for name, learner in learners.items() if learner.has_learned}
        path = self._place(candidate)
        if path is None or not learned:
            return
        write_record(path, self._read(candidate) | learned)

    def keep_costs(self, candidate: Candidate, costs: Mapping[str, Costs]) -> None:
        """Keep what decodes of a candidate's models cost, by role; what was learned before gives way to it."""
        for role, measured in costs.items():
            self.costs.keep(candidate, role, measured)
        kept, path = self._read(candidate), self._place(candidate)
        for name, role in _CURVES.items():
            seconds = usual_seconds(costs.get(role, {}))
            if path is not None and seconds and isinstance(kept.get(name), dict):
                kept[name]["seconds"] = {str(n): s for n, s in seconds.items()}
                write_record(path, kept)

    def keep_gain(self, candidate: Candidate, gain: Gain) -> None:
        """Keep what ``bench`` or ``pair`` has measured of a mode with a candidate's models."""
        path = self._place(candidate)
        if path is not None:
            kept = self._read(candidate)
            timed = kept.get(_TIMED)
            write_record(path, {**kept, _TIMED: {**(timed if isinstance(timed, dict) else {}), gain.mode: vars(gain)}})

    def gain(self, candidate: Candidate) -> Gain | None:
        """The best that drafts of a candidate's models have brought here: as ``bench`` or ``pair`` has measured it, or
        else as ``auto`` did in use; None if none of them ever did."""
        kept = self._read(candidate)
        with suppress(*BAD_RECORD):
            timed = [Gain(**gain) for gain in kept[_TIMED].values()]
            return max(timed, key=lambda gain: (gain.pays, positive(gain.speed_up)))
        with suppress(*BAD_RECORD):
            speed_up = positive(kept["text"]["speed_up"])
            return Gain(speed_up=speed_up, low=speed_up, rounds=whole(kept["text"]["rounds"], least=1), mode="auto")
        return None

    def drafting_costs(self, candidate: Candidate) -> tuple[Mapping[int, float], float] | None:
        """Seconds of the target's decodes by rows, and of drafting a token; None where one of them was not measured."""
        seconds = {role: usual_seconds(self.costs.of(candidate, role)) for role in candidate.engines}
        if not all(seconds.values()):
            return None
        # An intermediate model drafts at most as slowly as it writes by itself.
        drafting = seconds.get("intermediate") or seconds.get("draft") or {1: 0.0}
        return seconds["target"], CostCurve(drafting)(1)

    def _read(self, candidate: Candidate) -> dict[str, Any]:
        path = self._place(candidate)
        return read_record(path) if path is not None else {}

    def _place(self, candidate: Candidate) -> Path | None:
        if self._cache_dir is None:
            return None
        models = {
            role: (engine.name, self._files[role].fingerprint, settings_of_costs(candidate.models[role]))
            for role, engine in candidate.engines.items()
        }
        key = json.dumps([_VERSION, processor(), models], sort_keys=True)
        return self._cache_dir / FOLDER / f"{blake2b(key.encode(), digest_size=12).hexdigest()}.json"
