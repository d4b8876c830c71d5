"""Opens models on llama.cpp for one load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edge_spec.engines.base import OpenedModel
from edge_spec.engines.llama.footprint import listen_to_buffers, loads_mapped
from edge_spec.engines.llama.opening import open_llama
from edge_spec.engines.llama.settings import llama_settings
from edge_spec.engines.llama.weights import LlamaWeights
from edge_spec.engines.probe_cache import announce_probe
from edge_spec.engines.settings import ModelSettings
from edge_spec.engines.tokenizers import FileTokenizer, open_tokenizer
from edge_spec.memory.heap import trim_heap
from edge_spec.models import ModelFile

__all__ = ["LlamaOpener"]


class LlamaOpener:
    """Contexts over weights that are loaded once for each file; see ``Opener``."""

    def __init__(self, *, cache_dir: Path | None, on_wait: Callable[[str], None]) -> None:
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
