"""The sampler that a model file recommends: its author's settings, used where the user gives none."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["of_generation_config", "of_gguf"]

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
"""Keys behind ``general.sampling.``, and what they are called here (``gguf.constants.Keys.General``). The order of
samplers, ``sequence``, is always the one of ``SamplerSettings``."""

_WHEN_DRAWN = ("temperature", "top_k", "top_p", "min_p", "typical_p")


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
