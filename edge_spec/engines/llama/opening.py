"""A context of llama.cpp, probed, and its numerics profile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edge_spec.engines.llama.context import LlamaModel
from edge_spec.engines.llama.library import library
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.engines.llama.weights import LlamaWeights
from edge_spec.engines.probe import PLAIN, ProbeResult
from edge_spec.engines.probe_cache import probe_once
from edge_spec.speculation.language_model import NumericsProfile

__all__ = ["llama_profile", "open_llama"]


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
        file: fingerprint of the model file, for the numerics profile and the probe's cache.
        cache_dir: where probe results are kept; None for nowhere.
        on_probe: called before the model is probed for the first time.
    """
    settings = settings.for_heads(weights.head_dim_k)

    def profile_of(widths: tuple[int, ...]) -> NumericsProfile:
        return llama_profile(settings, file, widths)

    model = LlamaModel(weights, settings, profile=profile_of(()), capabilities=PLAIN)
    found = probe_once(model, profile_of, file=file, cache_dir=cache_dir, on_probe=on_probe, can_shift=model.can_shift)
    return model, found


def llama_profile(settings: LlamaSettings, file: str, widths: tuple[int, ...]) -> NumericsProfile:
    """Everything that rounds on llama.cpp. Threads do: the attention of a lone row can be divided among them."""
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
