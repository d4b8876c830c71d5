"""The sampler that is recommended for a model file: settings that are used where the user gives none.

They are its author's, in its own metadata, or edge-spec's, in a ``sampling.json`` of a family's folder: a map from
fingerprints of files to fields of ``SamplerSettings``. What is there was measured on that very file and is used instead
of everything that its author recommends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

__all__ = ["of_edge_spec", "of_generation_config", "of_gguf"]

_IN_GGUF = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repeat_penalty",
    "penalty_last_n": "penalty_window",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}
"""Keys that follow ``general.sampling.``, and the settings that they stand for (``gguf.constants.Keys.General``). The
order of samplers, ``sequence``, is always the one of ``SamplerSettings``."""

_WHEN_DRAWN = ("temperature", "top_k", "top_p", "min_p", "typical_p")


def of_edge_spec(fingerprint: str) -> dict[str, Any]:
    """Return the fields of ``SamplerSettings`` that edge-spec recommends for a file; empty for most files."""
    for folder in files("edge_spec.models").iterdir():
        path = folder / "sampling.json"
        if path.is_file():
            chosen: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8"))
            if fingerprint in chosen:
                return chosen[fingerprint]
    return {}


def of_gguf(metadata: Mapping[str, object]) -> dict[str, float]:
    """Fields of ``SamplerSettings`` in the metadata of a GGUF, which may be out of their ranges."""
    found = {ours: metadata.get(f"general.sampling.{theirs}") for theirs, ours in _IN_GGUF.items()}
    return _numbers(found)


def of_generation_config(config: Mapping[str, object]) -> dict[str, float]:
    """Fields of ``SamplerSettings`` in a ``generation_config.json``, which may be out of their ranges.

    Temperature and filters count where ``do_sample`` is true, as in transformers. There a penalty is for the whole
    text, not for its last tokens.
    """
    found: dict[str, object] = {}
    if config.get("do_sample") is True:
        found = {name: config.get(name) for name in _WHEN_DRAWN}
    if config.get("repetition_penalty") not in (None, 1, 1.0):
        found |= {"repeat_penalty": config["repetition_penalty"], "penalty_window": -1}
    return _numbers(found)


def _numbers(found: Mapping[str, object]) -> dict[str, float]:
    # Files hold 32 bits, in which 0.7 is 0.699999988.
    kept = {name: float(f"{value:.7g}") if isinstance(value, float) else value for name, value in found.items()}
    return {name: x for name, x in kept.items() if isinstance(x, int | float) and not isinstance(x, bool)}
