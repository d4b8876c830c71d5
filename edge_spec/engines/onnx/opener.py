"""Estimates and opens models on ONNX Runtime for one load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edge_spec.engines.base import Estimator, OpenedModel, Opener
from edge_spec.engines.onnx.footprint import onnx_footprint
from edge_spec.engines.onnx.opening import open_onnx, open_published
from edge_spec.engines.onnx.settings import onnx_settings
from edge_spec.engines.onnx.transcription.store import Transcriptions
from edge_spec.engines.probe_cache import announce_probe
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import DiskFull, ModelFileError
from edge_spec.memory import Footprint
from edge_spec.models import ModelFile

__all__ = ["OnnxEstimator", "OnnxOpener"]


class OnnxEstimator(Estimator):
    """Footprints on ONNX Runtime, which follow from the file alone."""

    def _footprint(self, file: ModelFile, settings: ModelSettings, *, rough: bool) -> Footprint:
        return onnx_footprint(file, onnx_settings(settings))


class OnnxOpener(Opener):
    """Sessions of ONNX Runtime; see ``Opener``. Each maps the weights for itself."""

    def __init__(self, made: Transcriptions, *, cache_dir: Path | None, on_wait: Callable[[str], None]) -> None:
        super().__init__(cache_dir=cache_dir, on_wait=on_wait)
        self._made = made

    def prepare(self, file: ModelFile) -> str | None:
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

        def on_probe() -> None:
            announce_probe(file, settings, self._on_wait)

        if file.graph is None:
            model, probed = open_onnx(
                self._made.of(file), settings, file=file.fingerprint, cache_dir=self._cache_dir, on_probe=on_probe
            )
        else:
            if settings.exact:
                # While a published tokenizer is loaded it takes more than it keeps: better before the weights.
                self.tokenizer(file)
            model, probed = open_published(file, settings, cache_dir=self._cache_dir, on_probe=on_probe)
        return OpenedModel(model=model, probed=probed)

    def close(self) -> None:
        super().close()
        self._made.close()
