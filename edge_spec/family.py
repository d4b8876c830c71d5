"""The models that work together on one text, opened from their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from edge_spec.backends.base import LanguageModel
from edge_spec.backends.llama import LlamaSettings, LlamaWeights, open_llama
from edge_spec.backends.onnx import OnnxSettings, open_onnx, open_published, published_bytes
from edge_spec.backends.probe import ProbeResult
from edge_spec.errors import BackendError, UnsupportedModel
from edge_spec.json_tokenizer import JsonTokenizer
from edge_spec.memory import Device, kv_cache_bytes, logits_bytes, require
from edge_spec.models import ModelFile
from edge_spec.models.published import TOKENIZER
from edge_spec.models.transcribe import transcribe
from edge_spec.text_model import Tokenizer

__all__ = ["OpenFamily", "needed_bytes"]

_SMALL_PARAMS = 20_000_000
"""Below this many parameters a second thread costs more in waiting than it computes."""

_LESS = "use a smaller --ctx, a smaller model, or --speculation off"

_RESERVE_BYTES = 48 << 20
"""Stacks of threads, the library's own tables and what else no estimate names."""


def needed_bytes(file: ModelFile, settings: LlamaSettings, *, engine: str = "llama") -> int:
    """What one model takes: weights, KV cache, logits and compute buffers.

    Weights count once: where llama.cpp copies them into another layout, the mapped file can be evicted. Compute
    buffers grow with the prefill chunk and the width. For 512 tokens llama.cpp's log said 10.3, 19.3 and 65.3 MiB at
    widths of 384, 768 and 2048, so up to 16.3 floats per token and embedding value; 17 covers these.
    """
    if file.graph is not None:
        return published_bytes(file, onnx_settings(settings))
    cache = kv_cache_bytes(
        n_ctx=settings.n_ctx + 2 * settings.max_rows,
        n_layers=file.n_layers,
        n_head_kv=file.n_head_kv,
        head_dim_k=file.head_dim_k,
        head_dim_v=file.head_dim_v,
        type_k=settings.kv_k if engine == "llama" else "f32",
        type_v=settings.kv_v if engine == "llama" else "f32",
    )
    compute = settings.prefill_chunk * file.n_embd * 17 * 4
    return int(file.weight_bytes) + cache + compute + logits_bytes(settings.max_rows, file.n_vocab)


def onnx_settings(settings: LlamaSettings, *, spin: bool = True) -> OnnxSettings:
    """The same settings for ONNX Runtime."""
    return OnnxSettings(
        n_ctx=settings.n_ctx,
        n_threads=settings.n_threads,
        prefill_chunk=settings.prefill_chunk,
        max_rows=settings.max_rows,
        trees=settings.trees,
        exact=settings.exact,
        spin=spin,
    )


class OpenFamily:
    """Opens target, drafter and intermediate model.

    Whoever asks for a model may close it; the family closes what is left, and frees the weights. Before anything
    is loaded, all that has been opened and this are held against what the device had to begin with. Text becomes
    tokens by llama.cpp, whatever computes, but for a published ONNX model as the files beside it say.

    Args:
        settings: the target's; the smaller models get the same context and their own threads.
        engines: by role (target, draft, middle), see ``edge_spec.engines``.
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
        probe_device: Callable[[], Device],
        cache_dir: Path | None,
        on_wait: Callable[[str], None],
    ) -> None:
        self._files = {"target": target, "draft": draft, "middle": middle}
        self._settings = settings
        self._probe_device = probe_device
        self._device = probe_device()
        self._engines = engines
        self._cache_dir = cache_dir
        self._on_wait = on_wait
        self._weights: dict[tuple[Path, bool], LlamaWeights] = {}
        self._models: list[LanguageModel] = []
        self._claimed: set[Path] = set()
        self._claimed_bytes = 0
        self._scratch: TemporaryDirectory[str] | None = None

    def target(self, *, trees: bool) -> tuple[LanguageModel, ProbeResult]:
        """The target, exact, and what probing found."""
        return self._open("target", replace(self._settings, trees=trees))

    def draft(self, *, trees: bool) -> LanguageModel:
        """The drafter's model."""
        return self._open_small("draft", trees=trees)

    def middle(self, *, trees: bool) -> LanguageModel:
        """The intermediate model."""
        return self._open_small("middle", trees=trees)

    @property
    def helpers(self) -> tuple[LanguageModel, ...]:
        """All models but the target, as far as they are open."""
        return tuple(self._models[1:])

    def tokenizer(self) -> Tokenizer:
        """The target's tokeniser: that of its weights where llama.cpp holds them, else loaded without them."""
        graph = self._file("target").graph
        if graph is not None:
            return JsonTokenizer(graph.folder / TOKENIZER, bos=graph.bos, eos=graph.eos, ends=graph.ends)
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
            self._weights[key] = LlamaWeights(file.path, repack=self._settings.repack, vocab_only=vocab_only)
        return self._weights[key]

    def _file(self, role: str) -> ModelFile:
        file = self._files[role]
        assert file is not None, f"mode_of() lets no mode through that lacks its {role} model"
        return file

    def _open_small(self, role: str, *, trees: bool) -> LanguageModel:
        n, n_batch = self._settings.n_threads, self._settings.n_threads_batch
        if self._file(role).n_params < _SMALL_PARAMS:
            n = n_batch = 1
        settings = replace(self._settings, trees=trees, exact=False, n_threads=n, n_threads_batch=n_batch)
        return self._open(role, settings)[0]

    def _open(self, role: str, settings: LlamaSettings) -> tuple[LanguageModel, ProbeResult]:
        file, engine = self._file(role), self._engines[role]
        settings = settings.for_heads(file.head_dim_k)
        wanted = needed_bytes(file, settings, engine=engine) - (file.weight_bytes if file.path in self._claimed else 0)
        what = f"{file.path.name} with a context of {settings.n_ctx} tokens"
        if self._claimed_bytes:
            what += " on top of the other models"
        self._claimed.add(file.path)
        self._claimed_bytes += wanted
        require(what, self._claimed_bytes + _RESERVE_BYTES, self._device, hint=_LESS)
        try:
            opened = self._open_onnx(role, settings) if engine == "onnx" else self._open_llama(role, settings)
        except (UnsupportedModel, BackendError, MemoryError):
            # The library does not say that memory was the reason; what is left does.
            require(what, wanted + _RESERVE_BYTES, self._probe_device(), hint=_LESS)
            raise
        self._models.append(opened[0])
        return opened

    def _open_llama(self, role: str, settings: LlamaSettings) -> tuple[LanguageModel, ProbeResult]:
        file = self._file(role)
        return open_llama(
            self._load(role, vocab_only=False),
            settings,
            file=file.fingerprint,
            cache_dir=self._cache_dir,
            on_probe=lambda: self._announce(role, file, "trying out {} on this device, once"),
        )

    def _open_onnx(self, role: str, settings: LlamaSettings) -> tuple[LanguageModel, ProbeResult]:
        file = self._file(role)
        # Drafters take turns with the target on the same cores.
        own = onnx_settings(settings, spin=role == "target")

        def on_probe() -> None:
            self._announce(role, file, "trying out {} on this device, once")

        if file.graph is not None:
            return open_published(file, own, cache_dir=self._cache_dir, on_probe=on_probe)
        if self._cache_dir is None and self._scratch is None:
            self._scratch = TemporaryDirectory(prefix="edge-spec-", ignore_cleanup_errors=True)
        base = Path(self._scratch.name) if self._scratch is not None else self._cache_dir
        assert base is not None
        source = transcribe(
            file, base / "onnx", on_start=lambda: self._announce(role, file, "transcribing {} for ONNX Runtime, once")
        )
        return open_onnx(source, own, file=file.fingerprint, cache_dir=self._cache_dir, on_probe=on_probe)

    def _announce(self, role: str, file: ModelFile, sentence: str) -> None:
        if role == "target" or file.n_params > _SMALL_PARAMS:
            self._on_wait(sentence.format(file.path.name))
