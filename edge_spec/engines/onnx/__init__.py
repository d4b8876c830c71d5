"""Models on ONNX Runtime: GGUFs, transcribed, and published ONNX models as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from edge_spec.engines.onnx.footprint import onnx_footprint
from edge_spec.engines.onnx.model import Computation, OnnxModel
from edge_spec.engines.onnx.published import PublishedSession, prefill_chunk
from edge_spec.engines.onnx.runner import runtime_version
from edge_spec.engines.onnx.session import Session
from edge_spec.engines.onnx.settings import OnnxSettings
from edge_spec.engines.onnx.transcription import Transcription
from edge_spec.engines.probe import ProbeResult, known_probe, probe_cached
from edge_spec.engines.processor import processor
from edge_spec.errors import BackendError, UnsupportedModel
from edge_spec.models import ModelFile
from edge_spec.speculation.language_model import Capabilities, NumericsProfile

__all__ = ["OnnxModel", "OnnxSettings", "onnx_footprint", "open_onnx", "open_published", "planned_onnx"]

_PLAIN = Capabilities(can_rollback=False, takes_trees=False, widths=(1,), max_rows=1)


def open_onnx(
    source: Transcription,
    settings: OnnxSettings,
    *,
    file: str,
    cache_dir: Path | None,
    on_probe: Callable[[], None] = lambda: None,
) -> tuple[OnnxModel, ProbeResult]:
    """A session over a transcription, probed.

    Args:
        file: fingerprint of the model file, for the numerics profile and the probe's memory.
        cache_dir: where probe results are kept; None for nowhere.
        on_probe: called before a model is tried out for the first time.
    """
    return _open(Session(source, settings), settings, _transcribed(settings), file, cache_dir, on_probe)


def open_published(
    file: ModelFile,
    settings: OnnxSettings,
    *,
    cache_dir: Path | None,
    on_probe: Callable[[], None] = lambda: None,
) -> tuple[OnnxModel, ProbeResult]:
    """A session over a published ONNX model, probed.

    Args:
        settings: where the graph returns logits of the last token alone there is one row; where it takes no mask of
            four dimensions there are no trees; prompts are read in smaller chunks if large ones would take too much.
        cache_dir, on_probe: see ``open_onnx``.

    Raises:
        UnsupportedModel: ONNX Runtime cannot load or run it; the error quotes its reason.
    """
    graph = file.graph
    assert graph is not None
    settings, own = _published(file, settings)
    session = PublishedSession(graph, settings, n_vocab=file.n_vocab)
    fp16 = "float16" in (graph.cache_kind, graph.logits.kind)
    return _open(session, settings, own, file.fingerprint, cache_dir, on_probe, check=graph.path, fp16=fp16)


def planned_onnx(file: ModelFile, settings: OnnxSettings, *, cache_dir: Path | None) -> NumericsProfile | None:
    """The profile that ``open_onnx`` or ``open_published`` would give a model; None if it has yet to be tried out."""
    own = _transcribed(settings)
    if file.graph is not None:
        settings, own = _published(file, settings)
    name = file.fingerprint
    known = known_probe(name, settings, _profile(own, settings, name, ()), n_ctx=settings.n_ctx, cache_dir=cache_dir)
    return _profile(own, settings, name, known.capabilities.widths) if known is not None else None


def _transcribed(settings: OnnxSettings) -> tuple[tuple[str, str], ...]:
    """What rounds in a transcription: edge-spec's kernels, matrices and attention alike, and the cache."""
    return (("weights", "rows"), ("kv", f"{settings.kv}/{settings.kv}"), ("attention", "rows"))


def _published(file: ModelFile, settings: OnnxSettings) -> tuple[OnnxSettings, tuple[tuple[str, str], ...]]:
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
        # Nothing is known about the graph's operators, so nothing about how they sum.
        ("threads", str(settings.threads)),
    )


def _open(
    session: Computation,
    settings: OnnxSettings,
    own: tuple[tuple[str, str], ...],
    file: str,
    cache_dir: Path | None,
    on_probe: Callable[[], None],
    *,
    check: Path | None = None,
    fp16: bool = False,
) -> tuple[OnnxModel, ProbeResult]:
    """A model over a session; with ``check``, the name of its graph, it is run once before anything is concluded."""
    model = OnnxModel(session, settings, name=file, profile=_profile(own, settings, file, ()), capabilities=_PLAIN)
    try:
        if check is not None:
            _run_once(model, check)
        result = probe_cached(
            model, file=file, cache_dir=cache_dir, on_probe=on_probe, external=check is not None, fp16=fp16
        )
    except BaseException:
        model.close()
        raise
    # Where a external graph keeps the places of its cells nobody knows.
    model.capabilities = replace(result.capabilities, can_shift=check is None)
    model.profile = _profile(own, settings, file, result.capabilities.widths)
    return model, result


def _run_once(model: OnnxModel, graph: Path) -> None:
    try:
        model.prefill([0] * min(2, model.n_ctx))
    except BackendError as error:
        raise UnsupportedModel(
            f"{graph} cannot be run: {error.message}", hint="get another export of the model, or a newer onnxruntime"
        ) from error
    model.rollback(0)


def _profile(
    own: tuple[tuple[str, str], ...], settings: OnnxSettings, file: str, widths: tuple[int, ...]
) -> NumericsProfile:
    """All that rounds on ONNX Runtime. In our own graphs threads do not: each output is summed by one of them."""
    return NumericsProfile(
        engine="onnx",
        facts=(
            ("file", file),
            ("library", runtime_version()),
            # The runtime chooses its own kernels, of norms and the like, by processor.
            ("build", blake2b(processor().encode(), digest_size=6).hexdigest()),
            *own,
            ("n_ctx", str(settings.n_ctx)),
            ("prefill", str(settings.prefill_chunk)),
            ("widths", f"{widths[0]}+" if widths else "any"),
        ),
    )
