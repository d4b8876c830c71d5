"""Records of measurements on this device, kept from run to run: speed-ups of drafts, and what drafters learned.

None of it changes a token, and no choice that the numerics profile names depends on it: drafts are verified whichever
drafter is chosen.
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
from edge_spec.speculation.chooser.records import positive, whole

__all__ = ["Measurements"]

_VERSION = 3

_GAINS, _LEARNED = "gains", "learned"
"""Entries of a record: speed-ups by mode, and the state of each learner."""


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
            # Earlier versions did not count what was drafted.
            with suppress(*BAD_RECORD):
                timed.append(_gain(**kept))
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
        roles = sorted(candidate.engines)
        models = []
        for role in roles:
            own = candidate.models[role]
            about = {"threads": own.threads, "kv": (own.kv_k, own.kv_v)}
            # Earlier versions kept records of single models as well.
            named = role if len(roles) > 1 else ""
            models.append((candidate.engines[role].name, self._files[role].fingerprint, about, named))
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
