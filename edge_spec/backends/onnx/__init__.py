"""GGUF models, transcribed, on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from edge_spec.backends.base import NumericsProfile, Traits
from edge_spec.backends.onnx.footprint import onnx_footprint
from edge_spec.backends.onnx.model import OnnxModel
from edge_spec.backends.onnx.session import runtime_version
from edge_spec.backends.onnx.settings import OnnxSettings
from edge_spec.backends.probe import ProbeResult, probe_cached
from edge_spec.backends.processor import processor
from edge_spec.models.transcribe import Transcription

__all__ = ["OnnxModel", "OnnxSettings", "onnx_footprint", "open_onnx"]

_PLAIN = Traits(can_rollback=False, takes_trees=False, widths=(1,), max_rows=1)


def open_onnx(
    source: Transcription,
    settings: OnnxSettings,
    *,
    file: str,
    cache_dir: Path | None,
    on_probe: Callable[[], None] = lambda: None,
) -> tuple[OnnxModel, ProbeResult]:
    """A session over a transcription, probed.

    Args:
        file: fingerprint of the model file, for the numerics profile and the probe's memory.
        cache_dir: where probe results are kept; None for nowhere.
        on_probe: called before a model is tried out for the first time.
    """
    model = OnnxModel(
        source, settings, name=file, profile=_profile(source, settings, file, ()), traits=_PLAIN
    )
    try:
        result = probe_cached(model, file=file, cache_dir=cache_dir, on_probe=on_probe)
    except BaseException:
        model.close()
        raise
    model.traits = replace(result.traits, can_shift=True)
    model.profile = _profile(source, settings, file, result.traits.widths)
    return model, result


def _profile(
    source: Transcription, settings: OnnxSettings, file: str, widths: tuple[int, ...]
) -> NumericsProfile:
    """All that rounds on ONNX Runtime. Threads do not: each output is summed by one of them."""
    return NumericsProfile(
        engine="onnx",
        facts=(
            ("file", file),
            ("library", runtime_version()),
            # The runtime chooses its own kernels, of norms and the like, by processor.
            ("build", blake2b(processor().encode(), digest_size=6).hexdigest()),
            ("weights", source.form),
            ("kv", f"{settings.kv}/{settings.kv}"),
            ("attention", source.attention),
            ("n_ctx", str(settings.n_ctx)),
            ("prefill", str(settings.prefill_chunk)),
            ("widths", f"{widths[0]}+" if widths else "any"),
        ),
    )
