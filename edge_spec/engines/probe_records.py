"""What probing has found, remembered: once per file, library, processor and what else rounds.

A result serves other settings than those that it was found with where the same decodes were tried. A context is tried
to a depth beyond which nothing changes, and a shorter one in fewer places; prompts are read in all that are smaller
than their chunk as well; and fewer rows are some of those that were tried. What else can change a bit is named by the
numerics profile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from edge_spec.engines.pool import CachedPool
from edge_spec.engines.probe import READINGS, ProbeResult, Readings, probe
from edge_spec.engines.records import FOLDER, read_record, write_record
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import BAD_RECORD
from edge_spec.speculation.language_model import ANYWHERE, Capabilities, NumericsProfile

__all__ = ["ProfileOf", "known_profile", "probe_once"]

_VERSION = 13

_LIMIT_S = 60.0
"""How long probing takes at most the first time. Each time that it was cut short it may take twice as long the next
time, so that a slow computer comes to the end, too."""

_FEW_ROWS = 4
"""With fewer rows trees and texts in company are tried otherwise, or not at all."""

_SERVED = ("n_ctx", "prefill", "widths")
"""Facts of a profile that are no part of a result's name: it says itself what it was found with, or these are found."""

ProfileOf = Callable[[tuple[int, ...]], NumericsProfile]
"""The numerics profile of a model by the widths that probing finds; empty before."""


def probe_once(
    model: CachedPool[Any],
    profile_of: ProfileOf,
    *,
    file: str,
    cache_dir: Path | None,
    on_probe: Callable[[int, int], object],
    can_shift: bool,
    external: bool = False,
    lone: bool = True,
    readings: Readings = READINGS,
    company: bool = False,
    n_different: int | None = None,
    on_busy: Callable[[float], object] = lambda times: None,
) -> ProbeResult:
    """Give a model the capabilities and the profile that ``probe`` finds, or found the last time.

    What is given because probing took too long serves this once.

    Args:
        model: with ``profile_of(())``; closed if probing fails.
        file: fingerprint of the model file.
        cache_dir: where results are kept; None for nowhere.
        can_shift: see ``Capabilities``; not probed.
        external, lone, readings, company, n_different, on_probe, on_busy: see ``probe``.
    """
    record = _Record(cache_dir, file, model.settings, model.profile, readings)
    found = record.find()
    if found is None:
        try:
            found = probe(
                model,
                external=external,
                lone=lone,
                readings=readings,
                company=company,
                n_different=n_different,
                on_probe=on_probe,
                limit_s=record.limit_s(),
                on_busy=on_busy,
            )
        except BaseException:
            model.close()
            raise
        record.add(found)
    # What cannot be shown to be alike serves only where it would be computed in the very same way.
    step = found.capabilities.reuse_step or (model.settings.prefill_chunk if found.capabilities.rollback else 0)
    model.capabilities = replace(
        found.capabilities, can_shift=can_shift, reuse_step=step, prefill_chunk=model.settings.prefill_chunk
    )
    model.profile = profile_of(found.capabilities.widths)
    return found


def known_profile(
    file: str,
    settings: ModelSettings,
    profile_of: ProfileOf,
    *,
    cache_dir: Path | None,
    readings: Readings = READINGS,
) -> NumericsProfile | None:
    """Return the profile that ``probe_once`` would give a model; None if it has yet to be probed."""
    found = _Record(cache_dir, file, settings, profile_of(()), readings).find()
    return profile_of(found.capabilities.widths) if found is not None else None


class _Record:
    """The results of a file on an engine and processor, and which of them serve some settings.

    The first one that serves stays the one: what is found later would name another profile.
    """

    def __init__(
        self, cache_dir: Path | None, file: str, settings: ModelSettings, profile: NumericsProfile, readings: Readings
    ) -> None:
        # What is beyond the deepest place is not read, nor more of it at once.
        self._n_ctx, self._chunk = (min(n, readings.depth) for n in (settings.n_ctx, settings.prefill_chunk))
        self._max_rows = settings.max_rows
        facts = [fact for fact in profile.facts if fact[0] not in _SERVED]
        key = json.dumps([_VERSION, file, settings.exact, settings.trees, profile.engine, facts])
        name = f"{blake2b(key.encode(), digest_size=12).hexdigest()}.json"
        self._path = cache_dir / FOLDER / name if cache_dir is not None else None

    def find(self) -> ProbeResult | None:
        """Return a result that serves; None if there is none, or it is damaged."""
        return next((result for kept in self._kept() if (result := self._served(kept)) is not None), None)

    def limit_s(self) -> float:
        """Return how long probing may take."""
        try:
            return max(_LIMIT_S, 2 * float(self._read().get("cut_short_s", 0)))
        except (TypeError, ValueError):
            return _LIMIT_S

    def add(self, result: ProbeResult) -> None:
        """Keep a result, or how long it took to come to none."""
        if self._path is None:
            return
        kept = list(self._kept())
        if result.cut_short_s:
            write_record(self._path, {"results": kept, "cut_short_s": result.cut_short_s})
            return
        of_these = {"n_ctx": self._n_ctx, "chunk": self._chunk, "max_rows": self._max_rows}
        found = {"capabilities": asdict(result.capabilities), "seconds": dict(result.seconds)}
        write_record(self._path, {"results": [*kept, of_these | found]})

    def _read(self) -> dict[str, Any]:
        return read_record(self._path) if self._path is not None else {}

    def _kept(self) -> list[Mapping[str, Any]]:
        kept = self._read().get("results", [])
        return [each for each in kept if isinstance(each, dict)] if isinstance(kept, list) else []

    def _served(self, kept: Mapping[str, Any]) -> ProbeResult | None:
        """Return what a kept result says of these settings; None if it does not serve them, or is damaged."""
        try:
            values = kept["capabilities"] | {"widths": tuple(map(int, kept["capabilities"]["widths"]))}
            capabilities = Capabilities(**values)
            seconds = {int(n): float(spent) for n, spent in kept["seconds"].items()}
            if int(kept["n_ctx"]) < self._n_ctx or int(kept["chunk"]) < self._chunk:
                return None
            if int(kept["max_rows"]) == self._max_rows:
                return ProbeResult(capabilities=capabilities, seconds=seconds)
            # A model with a state keeps as many earlier ones as there are rows.
            if not _FEW_ROWS <= self._max_rows < int(kept["max_rows"]) or capabilities.rollback != ANYWHERE:
                return None
            most = min(self._max_rows, capabilities.max_rows)
            widths = tuple(n for n in capabilities.widths if n <= most)
            fewer = replace(capabilities, widths=widths, max_rows=widths[-1] if widths else most)
            return ProbeResult(capabilities=fewer, seconds={n: seconds[n] for n in seconds if n <= fewer.max_rows})
        except BAD_RECORD:
            return None
