"""ONNX Runtime as an engine: GGUFs, transcribed for edge-spec's kernels, and published ONNX models as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Self

from edge_spec.engines.base import OpenedModel
from edge_spec.engines.onnx import open_onnx, open_published, planned_onnx
from edge_spec.engines.onnx.footprint import onnx_footprint
from edge_spec.engines.onnx.runner import runtime_version
from edge_spec.engines.onnx.settings import KV_KINDS, OnnxSettings
from edge_spec.engines.onnx.transcription import ATTENTION_HEADS
from edge_spec.engines.onnx.transcription.architecture import unfit
from edge_spec.engines.onnx.transcription.store import Transcriptions
from edge_spec.engines.probe import announce_probe
from edge_spec.engines.settings import ModelSettings
from edge_spec.engines.tokenizers import FileTokenizer, open_tokenizer, with_tokenizer
from edge_spec.errors import DiskFull, ModelFileError
from edge_spec.memory import Footprint
from edge_spec.models import ModelFile
from edge_spec.speculation.language_model import NumericsProfile

__all__ = ["OnnxEngine"]

_MIN_SHARE = 0.75
"""Of a model's bytes, in types that our kernels multiply: other matrices are slower and larger than on llama.cpp."""

_SPEED_UP = 0.7
"""A decode takes so much of llama.cpp's time with repacked weights (measured on a 1.0B shape)."""

_COMMON = frozenset(field.name for field in fields(ModelSettings)) - {"kv_k", "kv_v", "extras"}


class OnnxEngine:
    """Runs models on ONNX Runtime; see ``Engine`` for what the methods promise."""

    name = "onnx"
    title = "ONNX Runtime"
    extras: frozenset[str] = frozenset()
    process_bytes = 2 << 20
    hidden_rows = several_texts = False

    def load_library(self, *, verbose: bool = False) -> None:
        runtime_version()

    def why_not(self, file: ModelFile) -> str | None:
        what = unfit(file) if file.graph is None else None
        return f"it {what}" if what is not None else None

    def why_not_here(self, file: ModelFile) -> str | None:
        from edge_spec.engines.onnx.kernels import why_slow

        if file.graph is not None:
            return None
        if file.head_dim_k not in ATTENTION_HEADS:
            return f"edge-spec's kernels have no attention for heads of {file.head_dim_k} numbers"
        return why_slow()

    def why_not_first(self, file: ModelFile, settings: ModelSettings, *, cache_dir: Path | None) -> str | None:
        if file.graph is not None:
            return None
        unused = ", ".join(self.unused(settings))
        if unused:
            return f"{unused} would change nothing on {self.title}"
        return (
            self.why_not(file)
            or self.why_not_here(file)
            or _too_few_packed(file)
            or (None if cache_dir is not None else "there is no cache folder to keep its ONNX form in")
        )

    def unused(self, settings: ModelSettings) -> tuple[str, ...]:
        names = {*settings.extras, *(["n_threads_batch"] if settings.n_threads_batch else [])}
        if _cache_kind(settings) is None:
            names |= {name for name in ("kv_k", "kv_v") if getattr(settings, name) != "auto"}
        return tuple(sorted(names))

    def resolve(self, file: ModelFile, settings: ModelSettings) -> OnnxSettings:
        kind = _cache_kind(settings) or "f32"
        return OnnxSettings(**{name: getattr(settings, name) for name in _COMMON}, kv_k=kind, kv_v=kind)

    def variants(self, settings: ModelSettings, fixed: frozenset[str]) -> Iterator[ModelSettings]:
        yield settings

    def smaller_caches(self, file: ModelFile, settings: ModelSettings) -> list[tuple[str, str]]:
        # A published graph brings its own type.
        return [("f16", "f16")] if file.graph is None and self.resolve(file, settings).kv == "f32" else []

    def seconds_per_decode(self, settings: ModelSettings, footprint: Footprint) -> float:
        return footprint.weight_bytes * _SPEED_UP

    def shown(self, settings: ModelSettings, footprint: Footprint) -> Mapping[str, str]:
        return {"kv": f"{settings.kv_k}/{settings.kv_v}"} if settings.kv_k != "f32" else {}

    def estimator(self) -> OnnxEstimator:
        return OnnxEstimator(self)

    def profile(self, file: ModelFile, settings: ModelSettings, *, cache_dir: Path | None) -> NumericsProfile | None:
        return planned_onnx(file, self.resolve(file, settings), cache_dir=cache_dir)

    def opener(
        self,
        *,
        cache_dir: Path | None,
        on_wait: Callable[[str], None] = lambda sentence: None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        only_look: bool = False,
    ) -> OnnxOpener:
        made = Transcriptions(cache_dir, on_wait=on_wait, on_progress=on_progress, only_look=only_look)
        return OnnxOpener(self, made, cache_dir=cache_dir, on_wait=on_wait)


class OnnxEstimator:
    """Footprints on ONNX Runtime, which all follow from the file."""

    def __init__(self, engine: OnnxEngine) -> None:
        self._engine = engine
        self._known: dict[tuple[Path, OnnxSettings], Footprint] = {}

    def footprint(
        self, file: ModelFile, settings: ModelSettings, *, rough: bool = False, tokenizer: bool = False
    ) -> Footprint:
        """See ``Estimator``."""
        own = self._engine.resolve(file, settings)
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
    """Sessions of ONNX Runtime, which maps the weights of a file once for all of them; see ``Opener``."""

    def __init__(
        self, engine: OnnxEngine, made: Transcriptions, *, cache_dir: Path | None, on_wait: Callable[[str], None]
    ) -> None:
        self._engine = engine
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
        own = self._engine.resolve(file, settings)

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


def _cache_kind(settings: ModelSettings) -> str | None:
    """The type that keys and values are both wanted in, if this engine has it."""
    kind = settings.kv_k
    return kind if kind in KV_KINDS and settings.kv_v == kind else None


def _too_few_packed(file: ModelFile) -> str | None:
    """That too much of a model is of types that our kernels do not multiply; None if not."""
    from edge_spec.engines.onnx.kernels import KINDS

    packed = sum(file.tensor_types.get(kind, 0) for kind in KINDS)
    if packed >= _MIN_SHARE * file.weight_bytes:
        return None
    kind = max(set(file.tensor_types) - set(KINDS), key=lambda kind: file.tensor_types[kind])
    share = 100 * file.tensor_types[kind] // max(1, file.weight_bytes)
    return f"{share} % of it are weights of type {kind}, which edge-spec's kernels do not multiply"
