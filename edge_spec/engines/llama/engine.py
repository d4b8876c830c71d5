"""llama.cpp as an engine: it estimates, opens and probes models, and names what rounds in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from edge_spec.engines.base import Engine, Estimator, OpenedModel, Opener
from edge_spec.engines.llama.architectures import KEEPS_SNAPSHOTS, RECURRENT, most_rows
from edge_spec.engines.llama.footprint import (
    DryModel,
    listen_to_buffers,
    llama_footprint,
    loads_mapped,
    repacks_k_quants,
)
from edge_spec.engines.llama.pool import LlamaPool
from edge_spec.engines.llama.recurrent import RecurrentPool
from edge_spec.engines.llama.settings import LLAMA_EXTRAS, LlamaSettings, llama_settings
from edge_spec.engines.probe import PLAIN, ProbeResult
from edge_spec.engines.probe_records import known_profile, probe_once
from edge_spec.engines.settings import ModelSettings
from edge_spec.llama_cpp.library import library, why_not_installed
from edge_spec.llama_cpp.weights import LlamaWeights, read_as_a_trial
from edge_spec.memory import Footprint
from edge_spec.memory.usage import trim_heap
from edge_spec.models import ModelFile
from edge_spec.models.heads import head_of
from edge_spec.models.model_file import CTX_STEP, kv_cache_bytes
from edge_spec.speculation.language_model import READ_AGAIN, NumericsProfile
from edge_spec.speculation.pool import Pool
from edge_spec.tokens.tokenizer import FileTokenizer

__all__ = ["LlamaEngine", "LlamaEstimator", "LlamaOpener", "llama_profile", "open_llama"]

_ROWS = (8, 4)
"""Fewer rows of a decode than usual, for models of which a row takes much memory."""

_SNAPSHOT_SHARE = 1 / 8
"""Snapshots may take this share of the weights' memory before there are fewer of them."""

_MASKS = 6
"""Bytes of the masks of a row for each cell: in 16 bits and in 32."""

_K_ROWS = 3
"""From one more on the library multiplies with repacked K-quants by a kernel that rounds otherwise."""

_SMALL_CACHE, _BLOCK = "q8_0", 32
"""A type whose rounding hardly shows, and how many numbers of a head it packs together."""


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

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._weights: dict[Path, LlamaWeights] = {}

    def open(
        self,
        file: ModelFile,
        settings: ModelSettings,
        *,
        target: tuple[Pool, ModelFile] | None = None,
        measured: Callable[[str, int], None] = lambda name, n_bytes: None,
    ) -> OpenedModel:
        own = llama_settings(file, settings)
        with listen_to_buffers(measured, own):
            if file.path not in self._weights:
                mapped = loads_mapped(file, own)
                self._weights[file.path] = LlamaWeights(
                    file.path, repack=own.repack, mapped=mapped, on_share=lambda share: self._has_loaded(file, share)
                )
            pool, probed = open_llama(
                self._weights[file.path],
                own,
                file=file.fingerprint,
                cache_dir=self._cache_dir,
                on_probe=partial(self._announce_probe, file, own),
                on_busy=partial(self._announce_busy, own),
                cell_bytes=cell_bytes(file, own),
            )
        return OpenedModel(pool=pool, probed=probed)

    def _has_loaded(self, file: ModelFile, share: float) -> None:
        self._on_progress("loading", round(share * file.weight_bytes), file.weight_bytes)

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


def open_llama(
    weights: LlamaWeights,
    settings: LlamaSettings,
    *,
    file: str,
    cache_dir: Path | None,
    on_probe: Callable[[int, int], object] = lambda done, total: None,
    on_busy: Callable[[float], object] = lambda times: None,
    cell_bytes: int = 0,
) -> tuple[LlamaPool, ProbeResult]:
    """Return a context over ``weights``, probed.

    Args:
        file: fingerprint of the model file, for the numerics profile and the probe's cache.
        cache_dir: where probe results are kept; None for nowhere.
        on_probe, on_busy: called with what is done of probing the model for the first time, see ``probe``.
        cell_bytes: what a further cell takes.
    """
    settings = settings.for_heads(weights.head_dim_k).for_states(weights.architecture)
    if settings.exact and not settings.flash_attention:
        # Its sums over cells are grouped by their places: those of a branch differ from those of the same text in a
        # row, if in few of a hundred places.
        settings = replace(settings, trees=False)

    def profile_of(widths: tuple[int, ...]) -> NumericsProfile:
        return llama_profile(settings, file, widths, recurrent=weights.is_recurrent)

    kind = RecurrentPool if weights.is_recurrent and not settings.shares_cells else LlamaPool
    pool = kind(weights, settings, profile=profile_of(()), capabilities=PLAIN, cell_bytes=cell_bytes)
    found = probe_once(
        pool,
        profile_of,
        file=file,
        cache_dir=cache_dir,
        on_probe=on_probe,
        on_busy=on_busy,
        can_shift=pool.context.can_shift and not weights.is_recurrent,
        company=True,
        # Without it the attention of a single row is a product that llama.cpp sums in another order, which shows in
        # two of a hundred rows. Scores of experts are such a product, too, and show in fewer: the weights behind them
        # take activations rounded to 8 bits.
        lone=settings.flash_attention and not weights.has_experts,
    )
    return pool, found


def cell_bytes(file: ModelFile, settings: LlamaSettings) -> int:
    """Return what a further cell takes: keys and values, and a place in the masks of a chunk."""
    of_cells = kv_cache_bytes(file, CTX_STEP, settings.kv_k, settings.kv_v) // CTX_STEP
    return of_cells + _MASKS * settings.prefill_chunk


def llama_profile(settings: LlamaSettings, file: str, widths: tuple[int, ...], *, recurrent: bool) -> NumericsProfile:
    """Everything that rounds on llama.cpp. Threads do: the attention of a single row can be divided among them."""
    return NumericsProfile(
        engine="llama",
        facts=(
            ("file", file),
            ("library", library().version),
            ("build", library().build),
            ("weights", "repacked" if settings.repack else "mapped"),
            ("kv", f"{settings.kv_k}/{settings.kv_v}"),
            ("attention", "flash" if settings.flash_attention else "plain"),
            ("n_ctx", str(settings.n_ctx)),
            ("prefill", str(settings.prefill_chunk)),
            ("widths", f"{widths[0]}+" if widths else "any"),
            ("threads", "/".join(map(str, settings.threads))),
            *([READ_AGAIN] if recurrent else []),
        ),
    )


class LlamaEngine(Engine):
    """Runs GGUFs on llama.cpp."""

    name = "llama"
    title = "llama.cpp"
    package = "llama-cpp-python"
    extras = LLAMA_EXTRAS
    auto_kv = "q8_0/f16"
    extra = "llama"
    reader = f"{read_as_a_trial.__module__}:{read_as_a_trial.__name__}"
    process_bytes = 6 << 20
    library_bytes = 6 << 20
    is_fallback = True
    estimator = LlamaEstimator
    opener = LlamaOpener

    def why_not_installed(self) -> str | None:
        return why_not_installed()

    def load_library(self, *, verbose: bool = False) -> None:
        library().verbose = verbose

    @property
    def is_loaded(self) -> bool:
        return library.cache_info().currsize > 0

    def why_not(self, file: ModelFile) -> str | None:
        if head_of(file):
            return "it reads hidden states, which llama.cpp does not provide"
        return "it is an ONNX graph" if file.graph is not None else None

    def why_not_draft(self, file: ModelFile, *, trees: bool) -> str | None:
        if file.architecture in RECURRENT - KEEPS_SNAPSHOTS:
            return "llama.cpp keeps no earlier states of this model's recurrent layers"
        return "this model's recurrent layers take no trees" if trees and file.architecture in RECURRENT else None

    def rows(self, file: ModelFile, most: int, *, drafts: bool) -> Sequence[int]:
        if file.architecture not in RECURRENT:
            return (most,)
        if file.architecture not in KEEPS_SNAPSHOTS:
            return (1,)
        most = min(most, most_rows(file.architecture) or most)
        # Each row but one takes the memory of a whole state, and the fifth and later ones of a draft rarely pay.
        allowed = file.weight_bytes * _SNAPSHOT_SHARE
        wanted = [n for n in _ROWS if n < most and (n == _ROWS[-1] or (n - 1) * file.state_bytes <= allowed)]
        if not wanted or (most - 1) * file.state_bytes <= allowed:
            wanted = [most, *wanted]
        return wanted if drafts else [*wanted, 1]

    def resolve(self, file: ModelFile, settings: ModelSettings) -> LlamaSettings:
        return llama_settings(file, settings)

    def variants(self, file: ModelFile, settings: ModelSettings, fixed: frozenset[str]) -> Iterator[ModelSettings]:
        yield settings
        if "repack" not in fixed:
            # A decode takes about 1.5 times as long with weights in the file's layout as with repacked ones.
            repack = settings.extras.get("repack", True)
            yield replace(settings, extras={**settings.extras, "repack": not repack})

    def smaller_caches(self, file: ModelFile, settings: ModelSettings) -> list[tuple[str, str]]:
        own = llama_settings(file, settings)
        if not own.flash_attention or file.head_dim_k % _BLOCK or file.head_dim_v % _BLOCK:
            return []
        kinds = (_SMALL_CACHE, _SMALL_CACHE)
        return [kinds] if kv_cache_bytes(file, 1, *kinds) < kv_cache_bytes(file, 1, own.kv_k, own.kv_v) else []

    def texts_bytes(self, file: ModelFile, settings: ModelSettings, n_texts: int) -> int:
        own = llama_settings(file, settings)
        if not own.shares_cells:
            return 0
        most = min(own.max_rows, _K_ROWS) if repacks_k_quants(file, own) else own.max_rows
        return min(n_texts, most) * (own.n_ctx + own.max_rows) * cell_bytes(file, own)

    def shown(self, settings: ModelSettings, footprint: Footprint) -> Mapping[str, str]:
        weights = "repacked" if footprint.repacked_bytes else "mapped"
        return {"kv": f"{settings.kv_k}/{settings.kv_v}", "weights": weights}

    def profile(self, file: ModelFile, settings: ModelSettings, *, cache_dir: Path | None) -> NumericsProfile | None:
        own, recurrent = llama_settings(file, settings), file.architecture in RECURRENT

        def profile_of(widths: tuple[int, ...]) -> NumericsProfile:
            return llama_profile(own, file.fingerprint, widths, recurrent=recurrent)

        return known_profile(file.fingerprint, own, profile_of, cache_dir=cache_dir)
