"""Results of probing, kept on disk: each model is tried once per file, settings, library and processor."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path

from edge_spec.engines.probe import Probed, ProbeResult, probe, probed_depths
from edge_spec.engines.settings import ModelSettings
from edge_spec.models import ModelFile
from edge_spec.speculation.language_model import Capabilities, NumericsProfile

__all__ = ["announce_probe", "known_profile", "probe_once"]

_VERSION = 4

_SMALL_PARAMS = 20_000_000
"""A drafter with fewer parameters is probed too quickly to be worth a sentence."""

ProfileOf = Callable[[tuple[int, ...]], NumericsProfile]
"""The numerics profile of a model by the widths that probing finds; empty before."""


def announce_probe(file: ModelFile, settings: ModelSettings, on_wait: Callable[[str], None]) -> None:
    """Say that a model is probed, if that takes a noticeable time."""
    if settings.exact or file.n_params > _SMALL_PARAMS:
        on_wait(f"calibrating {file.path.name} for this device (first run only)")


def probe_once(
    model: Probed,
    profile_of: ProfileOf,
    *,
    file: str,
    cache_dir: Path | None,
    on_probe: Callable[[], None],
    can_shift: bool,
    external: bool = False,
    fp16: bool = False,
) -> ProbeResult:
    """Give a model the capabilities and the profile that ``probe`` finds, or found the last time.

    Args:
        model: with ``profile_of(())``; closed if probing fails.
        file: fingerprint of the model file.
        cache_dir: where results are kept; None for nowhere.
        on_probe: called before anything is tried, which takes as long as reading some 600 tokens.
        can_shift: see ``Capabilities``; not probed.
        external, fp16: see ``probe``.
    """
    path = _place(cache_dir, file, model.settings, model.profile) if cache_dir is not None else None
    found = _read(path)
    if found is None:
        on_probe()
        try:
            found = probe(model, external=external, fp16=fp16)
        except BaseException:
            model.close()
            raise
        _write(path, found)
    model.capabilities = replace(found.capabilities, can_shift=can_shift)
    model.profile = profile_of(found.capabilities.widths)
    return found


def known_profile(
    file: str, settings: ModelSettings, profile_of: ProfileOf, *, cache_dir: Path | None
) -> NumericsProfile | None:
    """The profile that ``probe_once`` would give a model; None if it has yet to be probed."""
    found = _read(_place(cache_dir, file, settings, profile_of(())) if cache_dir is not None else None)
    return profile_of(found.capabilities.widths) if found is not None else None


def _place(cache_dir: Path, file: str, settings: ModelSettings, profile: NumericsProfile) -> Path:
    """The file of a result."""
    # n_ctx only decides how deep the probe can go.
    values = asdict(settings) | {"n_ctx": None, "threads": settings.threads}
    facts = [fact for fact in profile.facts if fact[0] != "n_ctx"]
    key = json.dumps([_VERSION, file, values, probed_depths(settings.n_ctx), facts], sort_keys=True)
    return cache_dir / "probes" / f"{blake2b(key.encode(), digest_size=12).hexdigest()}.json"


def _read(path: Path | None) -> ProbeResult | None:
    """A kept result; None if there is none or it is damaged."""
    if path is None:
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
        capabilities = found["capabilities"] | {"widths": tuple(map(int, found["capabilities"]["widths"]))}
        seconds = {int(n): float(s) for n, s in found["seconds"].items()}
        return ProbeResult(capabilities=Capabilities(**capabilities), seconds=seconds)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _write(path: Path | None, result: ProbeResult) -> None:
    """Keep a result, whole or not at all; a cache that cannot be written is not a reason to fail."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            json.dump({"capabilities": asdict(result.capabilities), "seconds": dict(result.seconds)}, file)
        Path(file.name).replace(path)
    except OSError:
        pass
