"""GGUF models on llama.cpp.

The library's low-level functions are named only in this package, and its failures become ours here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from edge_spec.engines.llama.context import LlamaModel
from edge_spec.engines.llama.footprint import DryModel, listen_to_buffers, llama_footprint, loads_mapped
from edge_spec.engines.llama.library import library
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.engines.llama.weights import LlamaWeights
from edge_spec.engines.probe import ProbeResult, known_probe, probe, probe_cached
from edge_spec.speculation.language_model import Capabilities, NumericsProfile

__all__ = [
    "DryModel",
    "LlamaModel",
    "LlamaSettings",
    "LlamaWeights",
    "ProbeResult",
    "listen_to_buffers",
    "llama_footprint",
    "loads_mapped",
    "open_llama",
    "planned_llama",
    "probe",
]

_PLAIN = Capabilities(can_rollback=False, takes_trees=False, widths=(1,), max_rows=1)


def open_llama(
    weights: LlamaWeights,
    settings: LlamaSettings,
    *,
    file: str,
    cache_dir: Path | None,
    on_probe: Callable[[], None] = lambda: None,
) -> tuple[LlamaModel, ProbeResult]:
    """A context over ``weights``, probed.

    Args:
        file: fingerprint of the model file, for the numerics profile and the probe's memory.
        cache_dir: where probe results are kept; None for nowhere.
        on_probe: called before a model is tried out for the first time.
    """
    settings = settings.for_heads(weights.head_dim_k)
    model = LlamaModel(weights, settings, profile=_profile(settings, file, ()), capabilities=_PLAIN)
    try:
        result = probe_cached(model, file=file, cache_dir=cache_dir, on_probe=on_probe)
    except BaseException:
        model.close()
        raise
    model.capabilities = replace(result.capabilities, can_shift=model.can_shift)
    model.profile = _profile(settings, file, result.capabilities.widths)
    return model, result


def planned_llama(
    settings: LlamaSettings, *, file: str, head_dim_k: int, cache_dir: Path | None
) -> NumericsProfile | None:
    """The profile that ``open_llama`` would give a model; None if it has yet to be tried out."""
    settings = settings.for_heads(head_dim_k)
    known = known_probe(file, settings, _profile(settings, file, ()), n_ctx=settings.n_ctx, cache_dir=cache_dir)
    return _profile(settings, file, known.capabilities.widths) if known is not None else None


def _profile(settings: LlamaSettings, file: str, widths: tuple[int, ...]) -> NumericsProfile:
    """All that rounds on llama.cpp. Threads do: the attention of a lone row can be split among them."""
    return NumericsProfile(
        engine="llama",
        facts=(
            ("file", file),
            ("library", library().version),
            ("build", library().build),
            ("weights", "repacked" if settings.repack else "mapped"),
            ("kv", f"{settings.kv_k}/{settings.kv_v}"),
            ("attention", "flash" if settings.flash_attention else "plain"),
            ("n_ctx", str(settings.n_ctx)),
            ("prefill", str(settings.prefill_chunk)),
            ("widths", f"{widths[0]}+" if widths else "any"),
            ("threads", "/".join(map(str, settings.threads))),
        ),
    )
