"""llama.cpp as an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from edge_spec.engines.base import Engine
from edge_spec.engines.llama.library import library
from edge_spec.engines.llama.opener import LlamaEstimator, LlamaOpener
from edge_spec.engines.llama.opening import llama_profile
from edge_spec.engines.llama.settings import LLAMA_EXTRAS, LlamaSettings, llama_settings
from edge_spec.engines.probe_cache import known_profile
from edge_spec.engines.settings import ModelSettings
from edge_spec.memory import Footprint
from edge_spec.models import ModelFile
from edge_spec.models.kv_cache import kv_cache_bytes
from edge_spec.speculation.language_model import NumericsProfile

__all__ = ["LlamaEngine"]

_SMALL_CACHE, _BLOCK = "q8_0", 32
"""A type whose rounding hardly shows, and how many numbers of a head it packs together."""

_MAPPED_SLOWDOWN = 1.5
"""How much longer a decode takes with weights in the file's layout than with repacked ones."""


class LlamaEngine(Engine):
    """Runs GGUFs on llama.cpp."""

    name = "llama"
    title = "llama.cpp"
    extras = LLAMA_EXTRAS
    process_bytes = 6 << 20

    def load_library(self, *, verbose: bool = False) -> None:
        library().verbose = verbose

    def why_not(self, file: ModelFile) -> str | None:
        return "it is an ONNX graph" if file.graph is not None else None

    def resolve(self, file: ModelFile, settings: ModelSettings) -> LlamaSettings:
        return llama_settings(file, settings)

    def variants(self, settings: ModelSettings, fixed: frozenset[str]) -> Iterator[ModelSettings]:
        yield settings
        if "repack" not in fixed:
            repack = settings.extras.get("repack", True)
            yield replace(settings, extras={**settings.extras, "repack": not repack})

    def smaller_caches(self, file: ModelFile, settings: ModelSettings) -> list[tuple[str, str]]:
        own = llama_settings(file, settings)
        if not own.flash_attention or file.head_dim_k % _BLOCK or file.head_dim_v % _BLOCK:
            return []
        kinds = (_SMALL_CACHE, _SMALL_CACHE)
        return [kinds] if kv_cache_bytes(file, 1, *kinds) < kv_cache_bytes(file, 1, own.kv_k, own.kv_v) else []

    def seconds_per_decode(self, settings: ModelSettings, footprint: Footprint) -> float:
        repacked = settings.repack if isinstance(settings, LlamaSettings) else settings.extras.get("repack", True)
        return footprint.weight_bytes * (1.0 if repacked else _MAPPED_SLOWDOWN)

    def shown(self, settings: ModelSettings, footprint: Footprint) -> Mapping[str, str]:
        weights = "repacked" if footprint.repacked_bytes else "mapped"
        return {"kv": f"{settings.kv_k}/{settings.kv_v}", "weights": weights}

    def estimator(self) -> LlamaEstimator:
        return LlamaEstimator()

    def profile(self, file: ModelFile, settings: ModelSettings, *, cache_dir: Path | None) -> NumericsProfile | None:
        own = llama_settings(file, settings)
        return known_profile(
            file.fingerprint, own, lambda widths: llama_profile(own, file.fingerprint, widths), cache_dir=cache_dir
        )

    def opener(
        self,
        *,
        cache_dir: Path | None,
        on_wait: Callable[[str], None] = lambda sentence: None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        only_look: bool = False,
    ) -> LlamaOpener:
        return LlamaOpener(cache_dir=cache_dir, on_wait=on_wait)
