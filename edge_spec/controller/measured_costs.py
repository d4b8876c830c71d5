"""What decodes cost on this device, as ``edge-spec doctor --curves`` has measured it, kept for later runs.

None of it changes a token, and no choice that the numerics profile names depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from edge_spec.controller.candidates import Candidate
from edge_spec.engines.base import ModelSettings
from edge_spec.engines.records import FOLDER, read_record, write_record
from edge_spec.errors import BAD_RECORD
from edge_spec.memory.hardware import processor
from edge_spec.models import ModelFile
from edge_spec.speculation.adaptive.records import positive, whole

__all__ = ["Costs", "MeasuredCosts", "settings_of_costs", "usual_seconds"]

Costs = Mapping[int, Mapping[int, float]]
"""Seconds of a decode by the cells in use before it, and by its number of rows."""

_VERSION = 1

_USUAL_DEPTH = 512
"""Cells in use in the middle of a reply: of several depths the nearest to it stands for all."""


class MeasuredCosts:
    """Remembers the costs of single models by file, engine, threads, types of the cache and processor.

    Args:
        cache_dir: where they are kept; None for nowhere.
        files: by role.
    """

    def __init__(self, cache_dir: Path | None, files: Mapping[str, ModelFile]) -> None:
        self._cache_dir = cache_dir
        self._files = files

    def of(self, candidate: Candidate, role: str) -> Costs:
        """Those of the model that has a role in a candidate; empty if it has none, or none were measured."""
        path = self._place(candidate, role)
        try:
            kept = read_record(path)["costs"] if path is not None else {}
            return {
                whole(depth, least=0): {whole(n, least=1): positive(s) for n, s in seconds.items()}
                for depth, seconds in kept.items()
                if seconds
            }
        except BAD_RECORD:
            return {}

    def keep(self, candidate: Candidate, role: str, costs: Costs) -> None:
        """Keep what was measured now; depths that were measured earlier stay."""
        path = self._place(candidate, role)
        if path is not None and costs:
            write_record(path, {"costs": {**self.of(candidate, role), **costs}})

    def _place(self, candidate: Candidate, role: str) -> Path | None:
        if self._cache_dir is None or role not in candidate.engines:
            return None
        own = settings_of_costs(candidate.models[role])
        about = ["costs", _VERSION, processor(), candidate.engines[role].name, self._files[role].fingerprint, own]
        name = blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=12).hexdigest()
        return self._cache_dir / FOLDER / f"{name}.json"


def usual_seconds(costs: Costs) -> Mapping[int, float]:
    """Seconds by number of rows in the middle of a reply; empty if nothing was measured."""
    return costs[min(costs, key=lambda depth: abs(depth - _USUAL_DEPTH))] if costs else {}


def settings_of_costs(own: ModelSettings) -> dict[str, Any]:
    """Those that the cost of a decode depends on most; how it grows with the rest is learned soon."""
    return {"threads": own.threads, "kv": (own.kv_k, own.kv_v)}
