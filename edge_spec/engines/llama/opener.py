"""Estimates and opens models on llama.cpp for one load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edge_spec.engines.base import Estimator, OpenedModel, Opener
from edge_spec.engines.llama.footprint import DryModel, listen_to_buffers, llama_footprint, loads_mapped
from edge_spec.engines.llama.opening import open_llama
from edge_spec.engines.llama.settings import llama_settings
from edge_spec.engines.llama.weights import LlamaWeights
from edge_spec.engines.probe_cache import announce_probe
from edge_spec.engines.settings import ModelSettings
from edge_spec.engines.tokenizers import FileTokenizer
from edge_spec.memory import Footprint
from edge_spec.memory.usage import trim_heap
from edge_spec.models import ModelFile

__all__ = ["LlamaEstimator", "LlamaOpener"]


class LlamaEstimator(Estimator):
    """Footprints on llama.cpp, which include tokenizers: weights bring their own."""

    def __init__(self) -> None:
        super().__init__()
        self._dry: dict[Path, DryModel] = {}

    def _footprint(self, file: ModelFile, settings: ModelSettings, *, rough: bool) -> Footprint:
        own = llama_settings(file, settings)
        if not rough and file.path not in self._dry:
            self._dry[file.path] = self._open.enter_context(DryModel(file))
        return llama_footprint(file, own, dry=None if rough else self._dry[file.path])


class LlamaOpener(Opener):
    """Contexts over weights that are loaded once for each file; see ``Opener``."""

    def __init__(self, *, cache_dir: Path | None, on_wait: Callable[[str], None]) -> None:
        super().__init__(cache_dir=cache_dir, on_wait=on_wait)
        self._weights: dict[Path, LlamaWeights] = {}

    def open(
        self,
        file: ModelFile,
        settings: ModelSettings,
        *,
        measured: Callable[[str, int], None] = lambda name, n_bytes: None,
    ) -> OpenedModel:
        own = llama_settings(file, settings)
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

    def _open_tokenizer(self, file: ModelFile) -> FileTokenizer:
        return self._weights.get(file.path) or super()._open_tokenizer(file)

    def release(self, file: ModelFile) -> None:
        if file.path not in self._tokenizers and file.path in self._weights:
            self._weights.pop(file.path).close()
            trim_heap()

    def close(self) -> None:
        super().close()
        while self._weights:
            self._weights.popitem()[1].close()
