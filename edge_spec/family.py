"""The models that work together on one text, opened from their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from edge_spec.backends.base import LanguageModel
from edge_spec.backends.llama import (
    LlamaSettings,
    LlamaWeights,
    listen_to_buffers,
    llama_footprint,
    loads_mapped,
    open_llama,
)
from edge_spec.backends.onnx import onnx_footprint, open_onnx
from edge_spec.backends.probe import ProbeResult
from edge_spec.errors import BackendError, UnsupportedModel
from edge_spec.memory import Footprint, Ledger, probe, require, usage
from edge_spec.models import ModelFile
from edge_spec.models.transcribe import transcribe
from edge_spec.role_settings import llama_settings, onnx_settings

__all__ = ["OpenFamily"]

_LESS = "raise --memory, or use a smaller --ctx or another --speculation"

_SMALL_PARAMS = 20_000_000
"""Below this many parameters trying out a model takes no time worth a word."""


class OpenFamily:
    """Opens target, drafter and intermediate model.

    Whoever asks for a model may close it; the family closes what is left, and frees the weights. Before anything
    is loaded, what it will take is claimed in the ledger. Text becomes tokens by llama.cpp, whatever computes.

    Args:
        settings: the target's; the smaller models get the same context and their own threads.
        engines: by role (target, draft, middle), see ``edge_spec.engines``.
        ledger: where everything that is loaded has been claimed before, line by line.
        footprints: what was planned for, by role; what is not in it is estimated when it is opened.
        cache_dir: where transcriptions and probe results are kept; None for nowhere.
        on_wait: told, in a sentence, what takes long.
    """

    def __init__(
        self,
        target: ModelFile,
        draft: ModelFile | None,
        middle: ModelFile | None,
        settings: LlamaSettings,
        *,
        engines: Mapping[str, str],
        ledger: Ledger,
        footprints: Mapping[str, Footprint],
        cache_dir: Path | None,
        on_wait: Callable[[str], None],
    ) -> None:
        self._files = {"target": target, "draft": draft, "middle": middle}
        self._settings = settings
        self.ledger = ledger
        self._footprints = footprints
        self._engines = engines
        self._cache_dir = cache_dir
        self._on_wait = on_wait
        self._weights: dict[tuple[Path, bool], LlamaWeights] = {}
        self._models: list[LanguageModel] = []
        self._scratch: TemporaryDirectory[str] | None = None

    def target(self, *, trees: bool) -> tuple[LanguageModel, ProbeResult]:
        """The target, exact, and what probing found."""
        return self._open("target", trees=trees)

    def draft(self, *, trees: bool) -> LanguageModel:
        """The drafter's model."""
        return self._open("draft", trees=trees)[0]

    def middle(self, *, trees: bool) -> LanguageModel:
        """The intermediate model."""
        return self._open("middle", trees=trees)[0]

    @property
    def helpers(self) -> tuple[LanguageModel, ...]:
        """All models but the target, as far as they are open."""
        return tuple(self._models[1:])

    def tokenizer(self) -> LlamaWeights:
        """The target's tokeniser: that of its weights where llama.cpp holds them, else loaded without them."""
        return self._load("target", vocab_only=self._engines["target"] != "llama")

    def close(self) -> None:
        """Free everything: models, closed already or not, and then the weights below them."""
        for model in self._models:
            model.close()
        for weights in self._weights.values():
            weights.close()
        self._weights.clear()
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def _load(self, role: str, *, vocab_only: bool) -> LlamaWeights:
        file = self._file(role)
        key = (file.path, vocab_only)
        if key not in self._weights:
            self._weights[key] = LlamaWeights(
                file.path,
                repack=self._settings.repack,
                mapped=loads_mapped(file, self._settings),
                vocab_only=vocab_only,
            )
        return self._weights[key]

    def _file(self, role: str) -> ModelFile:
        file = self._files[role]
        assert file is not None, f"mode_of() lets no mode through that lacks its {role} model"
        return file

    def _open(self, role: str, *, trees: bool) -> tuple[LanguageModel, ProbeResult]:
        file, engine = self._file(role), self._engines[role]
        settings = llama_settings(role, file, self._settings, trees=trees)
        footprint = self._footprints.get(role)
        if footprint is None:
            if engine == "onnx":
                footprint = onnx_footprint(file, onnx_settings(role, settings))
            else:
                footprint = llama_footprint(file, settings)
        self.ledger.claim_all(role, footprint.lines(), hint=_LESS)
        before = usage().resident_bytes
        try:
            opened = self._open_onnx(role, settings) if engine == "onnx" else self._open_llama(role, settings)
        except (UnsupportedModel, BackendError, MemoryError):
            # The library does not say that memory was the reason; what is left does.
            what = f"{file.path.name} with a context of {settings.n_ctx} tokens"
            require(what, footprint.held_bytes, probe(), hint=_LESS)
            raise
        self.ledger.note_growth(role, usage().resident_bytes - before)
        self._models.append(opened[0])
        return opened

    def _open_llama(self, role: str, settings: LlamaSettings) -> tuple[LanguageModel, ProbeResult]:
        file = self._file(role)
        with listen_to_buffers(lambda name, n_bytes: self.ledger.measure(role, name, n_bytes)):
            return open_llama(
                self._load(role, vocab_only=False),
                settings,
                file=file.fingerprint,
                cache_dir=self._cache_dir,
                on_probe=lambda: self._announce(role, file, "trying out {} on this device, once"),
            )

    def _open_onnx(self, role: str, settings: LlamaSettings) -> tuple[LanguageModel, ProbeResult]:
        file = self._file(role)
        if self._cache_dir is None and self._scratch is None:
            self._scratch = TemporaryDirectory(prefix="edge-spec-", ignore_cleanup_errors=True)
        base = Path(self._scratch.name) if self._scratch is not None else self._cache_dir
        assert base is not None
        source = transcribe(
            file, base / "onnx", on_start=lambda: self._announce(role, file, "transcribing {} for ONNX Runtime, once")
        )
        return open_onnx(
            source,
            onnx_settings(role, settings),
            file=file.fingerprint,
            cache_dir=self._cache_dir,
            on_probe=lambda: self._announce(role, file, "trying out {} on this device, once"),
        )

    def _announce(self, role: str, file: ModelFile, sentence: str) -> None:
        if role == "target" or file.n_params > _SMALL_PARAMS:
            self._on_wait(sentence.format(file.path.name))
