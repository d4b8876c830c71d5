"""The models that work together on one text, opened from their files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from edge_spec.backends.llama import LlamaModel, LlamaSettings, LlamaWeights, ProbeResult, open_llama
from edge_spec.memory import Device, kv_cache_bytes, logits_bytes, require
from edge_spec.models import ModelFile

__all__ = ["OpenFamily", "needed_bytes"]

_SMALL_PARAMS = 20_000_000
"""Below this many parameters a second thread costs more in waiting than it computes."""


def needed_bytes(file: ModelFile, settings: LlamaSettings) -> int:
    """What weights, KV cache and logits of one model take; compute buffers are small beside them."""
    cache = kv_cache_bytes(
        n_ctx=settings.n_ctx + 2 * settings.max_rows,
        n_layers=file.n_layers,
        n_head_kv=file.n_head_kv,
        head_dim_k=file.head_dim_k,
        head_dim_v=file.head_dim_v,
        type_k=settings.kv_k,
        type_v=settings.kv_v,
    )
    return file.weight_bytes + cache + logits_bytes(settings.max_rows, file.n_vocab)


class OpenFamily:
    """Opens target, drafter and intermediate model; whoever asks for one owns its context.

    Weights belong to the family and are freed with it. Every opening is checked against the memory that is
    available at that moment, before anything is loaded.

    Args:
        settings: the target's; the smaller models get the same context and their own threads.
        cache_dir: where probe results are kept; None for nowhere.
        on_wait: told, in a sentence, what takes long.
    """

    def __init__(
        self,
        target: ModelFile,
        draft: ModelFile | None,
        middle: ModelFile | None,
        settings: LlamaSettings,
        *,
        device: Device,
        cache_dir: Path | None,
        on_wait: Callable[[str], None],
    ) -> None:
        self._files = {"target": target, "draft": draft, "middle": middle}
        self._settings = settings
        self._device = device
        self._cache_dir = cache_dir
        self._on_wait = on_wait
        self._weights: dict[Path, LlamaWeights] = {}
        self._claimed_bytes = 0

    def target(self, *, trees: bool) -> tuple[LlamaModel, ProbeResult]:
        """The target's context, exact, and what probing found."""
        return self._open("target", replace(self._settings, trees=trees))

    def draft(self, *, trees: bool) -> LlamaModel:
        """A context of the drafter's model."""
        return self._open_small("draft", trees=trees)

    def middle(self, *, trees: bool) -> LlamaModel:
        """A context of the intermediate model."""
        return self._open_small("middle", trees=trees)

    def weights(self, role: str) -> LlamaWeights:
        """The weights of a role, loaded at the first call."""
        file = self._file(role)
        if file.path not in self._weights:
            self._weights[file.path] = LlamaWeights(file.path, repack=self._settings.repack)
        return self._weights[file.path]

    def close(self) -> None:
        """Free all weights; contexts must be closed before."""
        for weights in self._weights.values():
            weights.close()
        self._weights.clear()

    def _file(self, role: str) -> ModelFile:
        file = self._files[role]
        assert file is not None, f"mode_of() lets no mode through that lacks its {role} model"
        return file

    def _open_small(self, role: str, *, trees: bool) -> LlamaModel:
        n, n_batch = self._settings.n_threads, self._settings.n_threads_batch
        if self._file(role).n_params < _SMALL_PARAMS:
            n = n_batch = 1
        settings = replace(self._settings, trees=trees, exact=False, n_threads=n, n_threads_batch=n_batch)
        return self._open(role, settings)[0]

    def _open(self, role: str, settings: LlamaSettings) -> tuple[LlamaModel, ProbeResult]:
        file = self._file(role)
        wanted = needed_bytes(file, settings) - (file.weight_bytes if file.path in self._weights else 0)
        self._claimed_bytes += wanted
        require(
            f"{file.path.name} with a context of {settings.n_ctx} tokens"
            + (" on top of the other models" if self._claimed_bytes > wanted else ""),
            self._claimed_bytes,
            self._device,
            hint="use a smaller --ctx, a smaller model, or --speculation off",
        )
        return open_llama(
            self.weights(role),
            settings,
            file=file.fingerprint,
            cache_dir=self._cache_dir,
            on_probe=lambda: self._announce(file),
        )

    def _announce(self, file: ModelFile) -> None:
        if file.n_params > _SMALL_PARAMS:
            self._on_wait(f"trying out {file.path.name} on this device, once")
