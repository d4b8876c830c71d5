"""Records of measurements on this device, kept from run to run: speed-ups of drafts, and what drafters learned.

None of it changes a token, and no choice that the numerics profile names depends on it: drafts are verified whichever
drafter is chosen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from edge_spec.controller.candidates import Candidate
from edge_spec.engines.records import FOLDER, read_record, write_record
from edge_spec.errors import BAD_RECORD
from edge_spec.memory.hardware import processor
from edge_spec.models import ModelFile
from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.chooser.records import positive, whole

__all__ = ["Gain", "Measurements"]

_VERSION = 4

_GAINS, _LEARNED = "gains", "learned"
"""Entries of a record: speed-ups by mode, and the state of each learner."""


_LEAST = 0.05
"""A speed-up of 1 plus this pays: ``bench`` with its defaults cannot tell a smaller one from none. The 95 % intervals
in the README reach some 5 % to either side."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """The measured speed-up of a mode on this device.

    Attributes:
        speed_up: tokens per second over those of plain decoding.
        low, high: its 95 % interval.
        drafted: tokens that were drafted meanwhile.
        rounds: how many rounds it was measured over.
        mode: the mode that ``bench`` or ``pair`` has measured.
    """

    speed_up: float
    low: float
    high: float
    drafted: int
    rounds: int
    mode: str

    @property
    def is_sure(self) -> bool:
        """Whether the interval excludes 1, so that drafts changed the speed."""
        return self.drafted > 0 and not self.low <= 1 <= self.high

    @property
    def pays(self) -> bool:
        """Whether the mode is worth its memory."""
        return self.is_sure and self.speed_up >= 1 + _LEAST


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("speed_up", "low", "high"), positive),
    **dict.fromkeys(("drafted", "rounds"), partial(whole, least=1)),
    "mode": str,
}
"""The fields of a gain that are kept, and what reads each."""


class Measurements:
    """Remembers what was measured of models that work together, in a record.

    A record belongs to files, engines, threads, types of caches and the processor: costs depend on these most, and how
    they change with the rest is learned soon.

    Args:
        cache_dir: where they are kept; None for nowhere.
        files: by role.
    """

    def __init__(self, cache_dir: Path | None, files: Mapping[str, ModelFile]) -> None:
        self._cache_dir = cache_dir
        self._files = files

    def recall(self, candidate: Candidate, learners: Mapping[str, Chooser]) -> None:
        """Initialize the learners of a candidate with their stored state."""
        learned = self._entry(candidate, _LEARNED)
        for name, learner in learners.items():
            if name in learned:
                # A damaged record counts as missing.
                with suppress(*BAD_RECORD):
                    learner.recall(learned[name])

    def keep(self, candidate: Candidate, learners: Mapping[str, Chooser]) -> None:
        """Store the state of the learners of a candidate."""
        learned = {name: learner.as_json() for name, learner in learners.items() if learner.has_learned}
        if learned:
            content = self._entry(candidate, _LEARNED) | learned
            self._write(candidate, entry=_LEARNED, content=content)

    def keep_gain(self, candidate: Candidate, gain: Gain) -> None:
        """Store the speed-up that ``bench`` or ``pair`` has measured for a candidate."""
        content = self._entry(candidate, _GAINS) | {gain.mode: vars(gain)}
        self._write(candidate, entry=_GAINS, content=content)

    def gain(self, candidate: Candidate) -> Gain | None:
        """Return the best speed-up measured for a candidate's models; None if there is none.

        ``bench`` and ``pair`` measure it, in turns with plain decoding. Use alone shows what drafts brought, but not
        what the machine did meanwhile.
        """
        timed = []
        for kept in self._entry(candidate, _GAINS).values():
            # What is damaged, or of an earlier version, which did not count what was drafted.
            with suppress(*BAD_RECORD):
                timed.append(Gain(**{name: check(kept[name]) for name, check in _CHECKS.items()}))
        return max(timed, key=lambda gain: (gain.pays, gain.speed_up), default=None)

    def _entry(self, candidate: Candidate, name: str) -> dict[str, Any]:
        path = self._place(candidate)
        found = read_record(path).get(name) if path is not None else None
        return found if isinstance(found, dict) else {}

    def _write(self, candidate: Candidate, *, entry: str, content: Mapping[Any, object]) -> None:
        path = self._place(candidate)
        if path is not None:
            write_record(path, {**read_record(path), entry: content})

    def _place(self, candidate: Candidate) -> Path | None:
        if self._cache_dir is None:
            return None
        models = [
            (role, candidate.engines[role].name, self._files[role].fingerprint, own.threads, own.kv_k, own.kv_v)
            for role, own in sorted(candidate.models.items(), key=lambda each: each[0])
        ]
        key = json.dumps([_VERSION, processor(), models], sort_keys=True)
        return self._cache_dir / FOLDER / f"{blake2b(key.encode(), digest_size=12).hexdigest()}.json"
