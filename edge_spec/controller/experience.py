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
from edge_spec.engines.base import ModelSettings
from edge_spec.engines.records import FOLDER, write_record
from edge_spec.engines.settings import processor
from edge_spec.errors import BAD_RECORD
from edge_spec.models import ModelFile
from edge_spec.speculation.modes import Learner

__all__ = ["Experience"]

_VERSION = 2


class Experience:
    """Remembers what was learned with the same models, engines, threads and caches on the same processor.

    Args:
        cache_dir: where it is kept; None for nowhere.
        files: by role.
    """

    def __init__(self, cache_dir: Path | None, files: Mapping[str, ModelFile]) -> None:
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

    def speed_up(self, candidate: Candidate) -> float | None:
        """Tokens per second of ``auto`` over plain decoding with these models, as measured here; None if never."""
        with suppress(*BAD_RECORD):
            return float(self._read(candidate)["text"]["speed_up"])
        return None

    def _read(self, candidate: Candidate) -> dict[str, Any]:
        path = self._place(candidate)
        if path is None:
            return {}
        try:
            found = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _place(self, candidate: Candidate) -> Path | None:
        if self._cache_dir is None:
            return None
        models = {
            role: (engine.name, self._files[role].fingerprint, _settings(candidate.models[role]))
            for role, engine in candidate.engines.items()
        }
        key = json.dumps([_VERSION, processor(), models], sort_keys=True)
        return self._cache_dir / FOLDER / f"{blake2b(key.encode(), digest_size=12).hexdigest()}.json"


def _settings(own: ModelSettings) -> dict[str, Any]:
    """Those that the cost of a decode depends on most; how it grows with the rest is learned soon."""
    return {"threads": own.threads, "kv": (own.kv_k, own.kv_v)}
