"""Estimates and opens models on ONNX Runtime for one load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from edge_spec.engines.base import OpenedModel
from edge_spec.engines.onnx.footprint import onnx_footprint
from edge_spec.engines.onnx.opening import open_onnx, open_published
from edge_spec.engines.onnx.settings import OnnxSettings, onnx_settings
from edge_spec.engines.onnx.transcription.store import Transcriptions
from edge_spec.engines.probe_cache import announce_probe
from edge_spec.engines.settings import ModelSettings
from edge_spec.engines.tokenizers import FileTokenizer, open_tokenizer, with_tokenizer
from edge_spec.errors import DiskFull, ModelFileError
from edge_spec.memory import Footprint
from edge_spec.models import ModelFile

__all__ = ["OnnxEstimator", "OnnxOpener"]


class OnnxEstimator:
    """Footprints on ONNX Runtime, which follow from the file alone; see ``Estimator``."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, OnnxSettings], Footprint] = {}

    def footprint(
        self, file: ModelFile, settings: ModelSettings, *, rough: bool = False, tokenizer: bool = False
    ) -> Footprint:
        """See ``Estimator``."""
        own = onnx_settings(settings)
        key = (file.path, own)
        if key not in self._known:
            self._known[key] = onnx_footprint(file, own)
        return with_tokenizer(self._known[key], file) if tokenizer else self._known[key]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing was opened."""


class OnnxOpener:
    """Sessions of ONNX Runtime; see ``Opener``."""

    def __init__(self, made: Transcriptions, *, cache_dir: Path | None, on_wait: Callable[[str], None]) -> None:
        self._made = made
        self._cache_dir = cache_dir
        self._on_wait = on_wait
        self._tokenizers: dict[Path, FileTokenizer] = {}

    def prepare(self, file: ModelFile) -> str | None:
        """See ``Opener``."""
        try:
            if file.graph is None:
                self._made.prepare(file)
        except (ModelFileError, DiskFull) as error:
            return error.message
        return None

    def open(
        self,
        file: ModelFile,
        settings: ModelSettings,
        *,
        measured: Callable[[str, int], None] = lambda name, n_bytes: None,
    ) -> OpenedModel:
        """See ``Opener``. The library does not say what it allocates."""
        own = onnx_settings(settings)

        def on_probe() -> None:
            announce_probe(file, own, self._on_wait)

        if file.graph is None:
            model, probed = open_onnx(
                self._made.of(file), own, file=file.fingerprint, cache_dir=self._cache_dir, on_probe=on_probe
            )
        else:
            if own.exact:
                # While a published tokenizer is loaded it takes more than it keeps: better before the weights.
                self.tokenizer(file)
            model, probed = open_published(file, own, cache_dir=self._cache_dir, on_probe=on_probe)
        return OpenedModel(model=model, probed=probed)

    def tokenizer(self, file: ModelFile) -> FileTokenizer:
        """See ``Opener``."""
        if file.path not in self._tokenizers:
            self._tokenizers[file.path] = open_tokenizer(file)
        return self._tokenizers[file.path]

    def release(self, file: ModelFile) -> None:
        """Every session maps the weights for itself."""

    def close(self) -> None:
        """See ``Opener``."""
        for each in self._tokenizers.values():
            each.close()
        self._tokenizers.clear()
        self._made.close()
