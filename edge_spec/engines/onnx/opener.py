"""Opens and probes models on ONNX Runtime, and names what rounds in them."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

from edge_spec.engines.base import HiddenRows, OpenedModel, Opener
from edge_spec.engines.onnx.head_model import HeadPool, HeadSession
from edge_spec.engines.onnx.pool import OnnxPath, OnnxPool
from edge_spec.engines.onnx.published import PublishedSession, prefill_chunk
from edge_spec.engines.onnx.published_pool import PublishedPool
from edge_spec.engines.onnx.runner import runtime_version
from edge_spec.engines.onnx.session import Session
from edge_spec.engines.onnx.transcription.cache import Transcription, check_transcription, transcribe
from edge_spec.engines.onnx.transcription.head import FEATURE, HIDDEN, hidden_rows_tail, transcribe_head
from edge_spec.engines.probe import OWN_READINGS, PLAIN, READINGS, ProbeResult
from edge_spec.engines.probe_records import ProfileOf, known_profile, probe_once
from edge_spec.engines.settings import ModelSettings
from edge_spec.engines.thread_counts import measured_once
from edge_spec.errors import Arguments, BackendError, DiskFull, ModelFileError, Sentence, UnsupportedModel
from edge_spec.memory import format_size
from edge_spec.memory.hardware import processor
from edge_spec.models import ModelFile
from edge_spec.models.heads import is_head, lacking_rows
from edge_spec.speculation.language_model import READ_AGAIN, NumericsProfile
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.speculation.pool import Pool

__all__ = [
    "CACHE_KINDS",
    "OnnxOpener",
    "cache_kind",
    "drafter_settings",
    "known_onnx_profile",
    "onnx_settings",
    "open_onnx",
    "open_published",
]

_SMALL_BYTES = 20 << 20
"""A smaller model is transcribed too quickly to be worth a sentence."""

CACHE_KINDS = ("f16", "f32")
"""What a cache can hold, the usual type first: f16 takes half of the memory and of the time that reading it takes, and
rounds keys and values to 11 bits, which changes a text's likelihood by less than rounding activations does."""


def cache_kind(settings: ModelSettings) -> str | None:
    """Return the type that keys and values are both wanted in, if there is such a cache here."""
    kind = settings.kv_k
    return kind if kind in CACHE_KINDS and settings.kv_v == kind else None


def onnx_settings(settings: ModelSettings) -> ModelSettings:
    """Settings as a session is made with them: a type of cache that there is, and none that only others have."""
    kind = cache_kind(settings) or CACHE_KINDS[0]
    # A mask is all that trees need; the same is found out, and remembered, with and without.
    return replace(settings, kv_k=kind, kv_v=kind, trees=True, n_threads_batch=0, extras={})


def drafter_settings(settings: ModelSettings) -> ModelSettings:
    """Settings of a head. It only drafts, so rounding in its cache changes no text."""
    return onnx_settings(replace(settings, kv_k="auto", kv_v="auto"))


class OnnxOpener(Opener):
    """Sessions of ONNX Runtime; see ``Opener``. Each maps the weights for itself.

    GGUFs are transcribed into the cache folder, or into a folder that is removed when this is closed.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._made: dict[Path, Transcription] = {}
        self._scratch: TemporaryDirectory[str] | None = None

    def prepare(self, file: ModelFile) -> str | None:
        """See ``Opener``. Leaves at least as much of the disk free as a transcription takes."""
        try:
            if file.graph is None and self._only_look:
                check_transcription(file, (self._cache_dir or Path(gettempdir())) / "onnx")
            elif file.graph is None:
                self._transcription(file, sparing=True)
        except (ModelFileError, DiskFull) as error:
            return error.message
        return None

    def open(
        self,
        file: ModelFile,
        settings: ModelSettings,
        *,
        target: tuple[Pool, ModelFile] | None = None,
        measured: Callable[[str, int], None] = lambda name, n_bytes: None,
    ) -> OpenedModel:
        """See ``Opener``. The library does not say what it allocates; only states are told."""
        if is_head(file):
            return self._open_head(file, settings, target)

        on_probe = partial(self._announce_probe, file, settings)
        on_busy = partial(self._announce_busy, settings)
        if settings.exact:
            # While a tokenizer is loaded it takes more than it keeps: better before the weights.
            self.tokenizer(file)
        source = self._transcription(file) if file.graph is None else None
        self._on_progress("loading", 0, file.weight_bytes)
        pool: Pool
        if source is not None:
            pool, probed = open_onnx(
                source,
                settings,
                file=file.fingerprint,
                cache_dir=self._cache_dir,
                n_different=_n_different(file, settings),
                on_probe=on_probe,
                on_busy=on_busy,
            )
            states = pool.session.states
            if states is not None:
                measured("recurrent state", states.state_bytes)
                measured("snapshots for drafts", states.kept_bytes)
        else:
            pool, probed = open_published(file, settings, cache_dir=self._cache_dir, on_probe=on_probe, on_busy=on_busy)
        self._on_progress("loading", file.weight_bytes, file.weight_bytes)
        return OpenedModel(pool=pool, probed=probed)

    def _open_head(
        self, file: ModelFile, settings: ModelSettings, target: tuple[Pool, ModelFile] | None
    ) -> OpenedModel:
        """Open a head on the hidden rows of its target.

        Raises:
            UnsupportedModel: there is no target, it does not give hidden rows, or the head belongs to another one.
            BackendError: the library failed.
        """
        pool, target_file = target or (None, None)
        if not isinstance(pool, OnnxPool) or target_file is None:
            why = (
                lacking_rows(target_file) if target_file is not None else "drafts for another model, and is none itself"
            )
            raise UnsupportedModel(
                f"{file.path.name} {why}",
                hint=Sentence(
                    "run its target with edge-spec's own kernels ({instead}), or draft with a small model",
                    instead=Arguments(engine="onnx"),
                ),
            )
        head = transcribe_head(file, target_file, self._transcription(target_file).folder)
        features = pool.session.give_features(head.tail, FEATURE, head.width, coarse=True)
        try:
            session = HeadSession(head, settings)
        except BaseException:
            pool.drop_features(features)
            raise
        opened = HeadPool(session, settings, name=file.fingerprint, target=pool, features=features)
        return OpenedModel(
            pool=opened, probed=ProbeResult(capabilities=opened.capabilities, seconds={}), reads_target=True
        )

    def hidden_rows(self, path: TextPath, file: ModelFile, layers: Sequence[int]) -> HiddenRows:
        if not isinstance(path, OnnxPath):
            return super().hidden_rows(path, file, layers)
        return path.features(hidden_rows_tail(layers, file.n_embd), HIDDEN, len(layers) * file.n_embd)

    def close(self) -> None:
        super().close()
        self._made.clear()
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def _transcription(self, file: ModelFile, *, sparing: bool = False) -> Transcription:
        """Return the transcription of a file, made when it is first needed; raises what ``transcribe`` does."""
        if file.path not in self._made:
            self._made[file.path] = self._transcribe(file, sparing=sparing)
        return self._made[file.path]

    def _transcribe(self, file: ModelFile, *, sparing: bool) -> Transcription:
        folder = self._cache_dir
        if folder is None:
            self._scratch = self._scratch or TemporaryDirectory(prefix="edge-spec-", ignore_cleanup_errors=True)
            folder = Path(self._scratch.name)
        small = file.weight_bytes < _SMALL_BYTES
        total = 0

        def progress(done: int, of: int) -> None:
            nonlocal total
            total = of
            if done < total and not small:
                self._on_progress("transcribing", done, total)

        def on_start(damaged: bool) -> None:
            why = "the copy there is damaged" if damaged else "first run only"
            if damaged or not small:
                self._on_wait(
                    f"transcribing {file.path.name} losslessly for ONNX Runtime: "
                    f"{format_size(file.weight_bytes)} in {folder / 'onnx'} ({why})"
                )

        try:
            return transcribe(file, folder / "onnx", sparing=sparing, progress=progress, on_start=on_start)
        finally:
            if total and not small:
                self._on_progress("transcribing", total, total)


Facts = tuple[tuple[str, str], ...]


def open_onnx(
    source: Transcription,
    settings: ModelSettings,
    *,
    file: str,
    cache_dir: Path | None,
    n_different: int | None = None,
    on_probe: Callable[[int, int], object] = lambda done, total: None,
    on_busy: Callable[[float], object] = lambda times: None,
) -> tuple[OnnxPool, ProbeResult]:
    """Return a session over a transcription, probed.

    Args:
        file: fingerprint of the model file, for the numerics profile and the probe's cache.
        cache_dir: where probe results are kept; None for nowhere.
        n_different: see ``probe``.
        on_probe, on_busy: called with what is done of probing the model for the first time, see ``probe``.
    """
    settings = onnx_settings(settings)
    profile_of = _profile_of(file, settings, _transcribed(settings, recurrent=bool(source.states)))
    settings = replace(settings, trees=not source.states)
    pool = OnnxPool(Session(source, settings), settings, name=file, profile=profile_of(()), capabilities=PLAIN)
    found = probe_once(
        pool,
        profile_of,
        file=file,
        cache_dir=cache_dir,
        on_probe=on_probe,
        on_busy=on_busy,
        can_shift=not source.states,
        readings=OWN_READINGS,
        n_different=n_different,
    )
    pool.threads = measured_once(pool, file=file, cache_dir=cache_dir)
    return pool, found


def _n_different(file: ModelFile, settings: ModelSettings) -> int | None:
    """Return how many different tokens use about as many experts as stay in memory; None if all of them do.

    That many tokens are read from the disk once, however often decodes of several widths go over them.
    """
    n_experts, n_used = file.experts
    n_held = settings.held_experts
    if not n_used < n_experts or not 0 < n_held < n_experts:
        return None
    # If tokens choose independently, each leaves out the same share of those that none before it has chosen.
    return max(1, int(math.log(1 - n_held / n_experts) / math.log(1 - n_used / n_experts)))


def open_published(
    file: ModelFile,
    settings: ModelSettings,
    *,
    cache_dir: Path | None,
    on_probe: Callable[[int, int], object] = lambda done, total: None,
    on_busy: Callable[[float], object] = lambda times: None,
) -> tuple[PublishedPool, ProbeResult]:
    """Return a session over a published ONNX model, probed.

    Args:
        settings: where the graph returns logits of the last token only there is one row; where it takes no mask of
            four dimensions there are no trees; prompts are read in smaller chunks if large ones would take too much.
        cache_dir, on_probe, on_busy: see ``open_onnx``.

    Raises:
        UnsupportedModel: ONNX Runtime cannot load or run it; the error quotes its reason.
    """
    graph, name = file.graph, file.fingerprint
    assert graph is not None
    settings, facts = _published(file, onnx_settings(settings))
    profile_of = _profile_of(name, settings, facts)
    session = PublishedSession(graph, settings, n_vocab=file.n_vocab)
    pool = PublishedPool(session, settings, name=name, profile=profile_of(()), capabilities=PLAIN)
    _run_once(pool, graph.path)
    found = probe_once(
        pool,
        profile_of,
        file=name,
        cache_dir=cache_dir,
        on_probe=on_probe,
        on_busy=on_busy,
        # It is not known where an external graph keeps the positions of its cells.
        can_shift=False,
        external=True,
        lone="float16" not in (graph.cache_kind, graph.logits.kind),
    )
    return pool, found


def known_onnx_profile(file: ModelFile, settings: ModelSettings, *, cache_dir: Path | None) -> NumericsProfile | None:
    """Return the profile that an opened model will have; None if it has yet to be probed."""
    settings = replace(onnx_settings(settings), trees=not file.state_bytes)
    own = _transcribed(settings, recurrent=bool(file.state_bytes))
    settings, facts = _published(file, settings) if file.graph is not None else (settings, own)
    profile_of = _profile_of(file.fingerprint, settings, facts)
    readings = READINGS if file.graph is not None else OWN_READINGS
    return known_profile(file.fingerprint, settings, profile_of, cache_dir=cache_dir, readings=readings)


def _run_once(pool: PublishedPool, graph: Path) -> None:
    """Find out whether a graph runs at all, and close the pool if not."""
    try:
        with closing(pool.path()) as path:
            path.prefill([0] * min(2, pool.n_ctx))
    except BaseException as error:
        pool.close()
        if not isinstance(error, BackendError):
            raise
        raise UnsupportedModel(
            f"{graph} cannot be run: {error.message}", hint="get another export of the model, or a newer onnxruntime"
        ) from error


def _transcribed(settings: ModelSettings, *, recurrent: bool) -> Facts:
    """Return what rounds in a transcription: edge-spec's kernels, for matrices and attention alike, and the cache."""
    facts: Facts = (("weights", "rows"), ("kv", f"{settings.kv_k}/{settings.kv_k}"), ("attention", "rows"))
    if platform.machine().lower() not in ("x86_64", "amd64"):
        # Norms were ONNX Runtime's up to 0.3.0, whose bits ours have where it uses AVX2.
        facts = (*facts, ("norms", "rows"))
    return (*facts, READ_AGAIN) if recurrent else facts


def _published(file: ModelFile, settings: ModelSettings) -> tuple[ModelSettings, Facts]:
    """Settings as far as a published graph can follow them, and what rounds in it."""
    graph = file.graph
    assert graph is not None
    settings = replace(
        settings,
        max_rows=1 if graph.last_row_only else settings.max_rows,
        trees=settings.trees and graph.takes_trees,
        prefill_chunk=prefill_chunk(file, graph, settings),
    )
    return settings, (
        ("weights", "as published"),
        ("provider", "CPUExecutionProvider"),
        ("kv", graph.cache_kind),
        ("cache", "in place" if graph.in_place else "by turns"),
        # The graph's operators are not known, nor whether they sum alike with other numbers of threads.
        ("threads", str(settings.threads[0])),
    )


def _profile_of(file: str, settings: ModelSettings, facts: Facts) -> ProfileOf:
    """Everything that rounds. In our own graphs threads do not: each output is summed by one of them."""

    def profile_of(widths: tuple[int, ...]) -> NumericsProfile:
        return NumericsProfile(
            engine="onnx",
            facts=(
                ("file", file),
                ("library", runtime_version()),
                # The runtime chooses its own kernels, of norms and the like, by processor.
                ("build", blake2b(processor().encode(), digest_size=6).hexdigest()),
                *facts,
                ("n_ctx", str(settings.n_ctx)),
                ("prefill", str(settings.prefill_chunk)),
                ("widths", f"{widths[0]}+" if widths else "any"),
            ),
        )

    return profile_of
