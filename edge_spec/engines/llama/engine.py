"""llama.cpp as an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from edge_spec.engines.base import OpenedModel
from edge_spec.engines.llama import open_llama, planned_llama
from edge_spec.engines.llama.footprint import DryModel, listen_to_buffers, llama_footprint, loads_mapped
from edge_spec.engines.llama.library import library
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.engines.llama.weights import LlamaWeights
from edge_spec.engines.probe import announce_probe
from edge_spec.engines.settings import ModelSettings
from edge_spec.engines.tokenizers import FileTokenizer, open_tokenizer
from edge_spec.memory import Footprint, kv_cache_bytes
from edge_spec.memory.heap import trim_heap
from edge_spec.models import ModelFile
from edge_spec.speculation.language_model import NumericsProfile

__all__ = ["LlamaEngine"]

_COMMON = frozenset(field.name for field in fields(ModelSettings)) - {"extras"}

_SMALL_CACHE, _BLOCK = "q8_0", 32
"""A type whose rounding hardly shows, and how many numbers of a head it packs together."""

_MAPPED_SLOWDOWN = 1.5
"""How much longer a decode takes with weights in the file's layout than with repacked ones."""


class LlamaEngine:
    """Runs GGUFs on llama.cpp; see ``Engine`` for what the methods promise."""

    name = "llama"
    title = "llama.cpp"
    extras = frozenset(field.name for field in fields(LlamaSettings)) - _COMMON - {"extras"}
    process_bytes = 6 << 20
    hidden_rows = several_texts = False

    def load_library(self, *, verbose: bool = False) -> None:
        library().verbose = verbose

    def why_not(self, file: ModelFile) -> str | None:
        return "it is an ONNX graph" if file.graph is not None else None

    def why_not_here(self, file: ModelFile) -> str | None:
        return None

    def why_not_first(self, file: ModelFile, settings: ModelSettings, *, cache_dir: Path | None) -> str | None:
        unused = ", ".join(self.unused(settings))
        return self.why_not(file) or (f"{unused} would change nothing on {self.title}" if unused else None)

    def unused(self, settings: ModelSettings) -> tuple[str, ...]:
        return tuple(sorted(settings.extras.keys() - self.extras))

    def resolve(self, file: ModelFile, settings: ModelSettings) -> LlamaSettings:
        if not isinstance(settings, LlamaSettings):
            own: dict[str, Any] = {name: getattr(settings, name) for name in _COMMON}
            own |= {name: value for name, value in settings.extras.items() if name in self.extras}
            settings = LlamaSettings(**own)
        settings = settings.for_heads(file.head_dim_k)
        _cell_bytes(file, settings.kv_k, settings.kv_v)
        return settings

    def variants(self, settings: ModelSettings, fixed: frozenset[str]) -> Iterator[ModelSettings]:
        yield settings
        if "repack" not in fixed:
            repack = settings.extras.get("repack", True)
            yield replace(settings, extras={**settings.extras, "repack": not repack})

    def smaller_caches(self, file: ModelFile, settings: ModelSettings) -> list[tuple[str, str]]:
        own = self.resolve(file, settings)
        if not own.flash_attention or file.head_dim_k % _BLOCK or file.head_dim_v % _BLOCK:
            return []
        kinds = (_SMALL_CACHE, _SMALL_CACHE)
        return [kinds] if _cell_bytes(file, *kinds) < _cell_bytes(file, own.kv_k, own.kv_v) else []

    def seconds_per_decode(self, settings: ModelSettings, footprint: Footprint) -> float:
        repacked = settings.repack if isinstance(settings, LlamaSettings) else settings.extras.get("repack", True)
        return footprint.weight_bytes * (1.0 if repacked else _MAPPED_SLOWDOWN)

    def shown(self, settings: ModelSettings, footprint: Footprint) -> Mapping[str, str]:
        weights = "repacked" if footprint.repacked_bytes else "mapped"
        return {"kv": f"{settings.kv_k}/{settings.kv_v}", "weights": weights}

    def estimator(self) -> LlamaEstimator:
        return LlamaEstimator(self)

    def profile(self, file: ModelFile, settings: ModelSettings, *, cache_dir: Path | None) -> NumericsProfile | None:
        own = self.resolve(file, settings)
        return planned_llama(own, file=file.fingerprint, head_dim_k=file.head_dim_k, cache_dir=cache_dir)

    def opener(
        self,
        *,
        cache_dir: Path | None,
        on_wait: Callable[[str], None] = lambda sentence: None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        only_look: bool = False,
    ) -> LlamaOpener:
        return LlamaOpener(self, cache_dir=cache_dir, on_wait=on_wait)


class LlamaEstimator:
    """Footprints on llama.cpp, whose buffers models without weights tell."""

    def __init__(self, engine: LlamaEngine) -> None:
        self._engine = engine
        self._dry: dict[Path, DryModel] = {}
        self._known: dict[tuple[Path, LlamaSettings, bool], Footprint] = {}
        self._open = ExitStack()

    def footprint(
        self, file: ModelFile, settings: ModelSettings, *, rough: bool = False, tokenizer: bool = False
    ) -> Footprint:
        """See ``Estimator``; weights always bring their tokenizer."""
        own = self._engine.resolve(file, settings)
        key = (file.path, own, rough)
        if key not in self._known:
            self._known[key] = llama_footprint(file, own, dry=None if rough else self._dry_model(file))
        return self._known[key]

    def _dry_model(self, file: ModelFile) -> DryModel:
        if file.path not in self._dry:
            self._dry[file.path] = self._open.enter_context(DryModel(file))
        return self._dry[file.path]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()


class LlamaOpener:
    """Contexts of llama.cpp over weights that each file has once; see ``Opener``."""

    def __init__(self, engine: LlamaEngine, *, cache_dir: Path | None, on_wait: Callable[[str], None]) -> None:
        self._engine = engine
        self._cache_dir = cache_dir
        self._on_wait = on_wait
        self._weights: dict[Path, LlamaWeights] = {}
        self._tokenizers: dict[Path, FileTokenizer] = {}

    def prepare(self, file: ModelFile) -> str | None:
        """Nothing has to be made."""
        return None

    def open(
        self,
        file: ModelFile,
        settings: ModelSettings,
        *,
        measured: Callable[[str, int], None] = lambda name, n_bytes: None,
    ) -> OpenedModel:
        """See ``Opener``."""
        own = self._engine.resolve(file, settings)
        with listen_to_buffers(measured):
            if file.path not in self._weights:
                mapped = loads_mapped(file, own)
                self._weights[file.path] = LlamaWeights(file.path, repack=own.repack, mapped=mapped)
            model, probed = open_llama(
                self._weights[file.path],
                own,
                file=file.fingerprint,
                cache_dir=self._cache_dir,
                on_probe=lambda: announce_probe(file, own, self._on_wait),
            )
        return OpenedModel(model=model, probed=probed)

    def tokenizer(self, file: ModelFile) -> FileTokenizer:
        """See ``Opener``."""
        if file.path not in self._tokenizers:
            self._tokenizers[file.path] = self._weights.get(file.path) or open_tokenizer(file)
        return self._tokenizers[file.path]

    def release(self, file: ModelFile) -> None:
        """See ``Opener``."""
        if file.path not in self._tokenizers and file.path in self._weights:
            self._weights.pop(file.path).close()
            trim_heap()

    def close(self) -> None:
        """See ``Opener``."""
        for each in (*self._weights.values(), *self._tokenizers.values()):
            each.close()
        self._weights.clear()
        self._tokenizers.clear()


def _cell_bytes(file: ModelFile, keys: str, values: str) -> int:
    """What a cell takes in all layers.

    Raises:
        SettingsError: the blocks of a type do not divide a row.
    """
    return kv_cache_bytes(
        n_ctx=1,
        n_layers=file.n_layers,
        n_head_kv=file.n_head_kv,
        head_dim_k=file.head_dim_k,
        head_dim_v=file.head_dim_v,
        type_k=keys,
        type_v=values,
    )
