"""Which engine runs which model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from edge_spec.engines.onnx.settings import KV_KINDS
from edge_spec.engines.onnx.transcription import ATTENTION_HEADS
from edge_spec.engines.onnx.transcription.store import Transcriptions
from edge_spec.engines.registry import engine
from edge_spec.errors import DiskFull, ModelFileError, SettingsError
from edge_spec.models import ModelFile

__all__ = ["AUTO", "ENGINES", "engines_of", "onnx_kv", "refuse_idle_settings", "settle_engines"]

ENGINES = ("llama", "onnx")
"""llama.cpp, and ONNX Runtime with the same weights transcribed."""

AUTO = "auto"
"""ONNX Runtime for models that our kernels speed up there, llama.cpp for all others."""

_ONLY_LLAMA = ("n_threads_batch", "kv_k", "kv_v", "flash_attention", "repack")

_MIN_SHARE = 0.75
"""Of a model's bytes, in types that our kernels multiply with: other matrices are slower and larger than there."""


def engines_of(
    engine: str, draft: str | None, intermediate: str | None, *, published: Collection[str] = ()
) -> dict[str, str]:
    """The engine asked for, by role: target, draft and intermediate; the smaller models follow the target if not told.

    Args:
        published: the roles whose models are ONNX graphs, which only ONNX Runtime runs.

    Raises:
        SettingsError: there is no such engine, or it was asked for by name to run what it cannot.
    """
    wanted = {"target": engine, "draft": draft or engine, "intermediate": intermediate or engine}
    for name in wanted.values():
        if name not in (AUTO, *ENGINES):
            raise SettingsError(f"there is no engine {name!r}", hint=f"choose {AUTO}, {' or '.join(ENGINES)}")
    asked = {"target": engine, "draft": draft, "intermediate": intermediate}
    for role in published:
        if asked[role] == "llama":
            raise SettingsError(
                f"llama.cpp cannot run the {role} model, which is an ONNX graph", hint="leave the engine to auto"
            )
    return wanted | dict.fromkeys(published, "onnx")


def settle_engines(
    wanted: Mapping[str, str],
    files: Mapping[str, ModelFile],
    settings: Mapping[str, Any],
    transcriptions: Transcriptions,
    *,
    n_ctx_on: Callable[[Mapping[str, str]], int] = lambda engines: 1,
) -> tuple[dict[str, str], list[str]]:
    """Decide what ``auto`` means for each model. Those that it gives to ONNX Runtime are transcribed.

    Args:
        wanted: by role, see ``engines_of``.
        files: by role, those that will be opened.
        settings: what was asked for by name.
        n_ctx_on: tokens of context that the memory has room for with the models on these engines; 0 for none.

    Returns:
        Engines by role, and a sentence for every model that is left to llama.cpp, which says why.
    """
    wanted, without = _without_kernels(wanted, files)
    free = [role for role in files if wanted[role] == AUTO]
    obstacles = {role: _obstacle(files[role], settings, transcriptions) for role in free}
    engines = {**wanted, **{role: "onnx" if why is None else "llama" for role, why in obstacles.items()}}
    elsewhere = engines | dict.fromkeys(free, "llama")
    if engines != elsewhere and n_ctx_on(engines) < n_ctx_on(elsewhere):
        obstacles = {role: why or "its ONNX form would not fit the memory" for role, why in obstacles.items()}
    for role in free:
        if obstacles[role] is None:
            try:
                transcriptions.prepare(files[role])
            except (ModelFileError, DiskFull) as error:
                obstacles[role] = error.message.removesuffix(": llama.cpp only")
    engines |= {role: "onnx" if why is None else "llama" for role, why in obstacles.items()}
    notes = {f"llama.cpp runs {files[role].path.name}: {why}": None for role, why in obstacles.items() if why}
    return engines, [*without, *notes]


def _without_kernels(wanted: Mapping[str, str], files: Mapping[str, ModelFile]) -> tuple[dict[str, str], list[str]]:
    """What becomes of models that were to run on ONNX Runtime where our kernels are missing or slow, and sentences."""
    chosen = dict(wanted)
    notes: dict[str, None] = {}
    onnx, llama = engine("onnx"), engine("llama")
    for role, file in files.items():
        why = onnx.why_not_here(file) if wanted[role] == onnx.name else None
        if why is not None and onnx.why_not(file) is None:
            chosen[role] = llama.name
            notes[f"{llama.title} runs {file.path.name}: {why}"] = None
    return chosen, list(notes)


def _obstacle(file: ModelFile, settings: Mapping[str, Any], transcriptions: Transcriptions) -> str | None:
    """Why it is not even tried to transcribe a model, as a clause; None if it is tried."""
    from edge_spec.engines.onnx.kernels import KINDS, why_slow

    idle = _idle(settings)
    if idle:
        return f"{', '.join(idle)} only has a meaning there"
    slow = why_slow()
    if slow is not None:
        return slow
    if sum(file.tensor_types.get(kind, 0) for kind in KINDS) < _MIN_SHARE * file.weight_bytes:
        kind = max(set(file.tensor_types) - set(KINDS), key=lambda kind: file.tensor_types[kind])
        return f"edge-spec has no kernels for weights of type {kind}"
    if file.head_dim_k not in ATTENTION_HEADS:
        return f"edge-spec has no attention for heads of {file.head_dim_k} numbers"
    if not transcriptions.are_kept:
        return "there is no cache folder to keep its ONNX form in"
    return None


def refuse_idle_settings(engines: Mapping[str, str], roles: tuple[str, ...], settings: Mapping[str, Any]) -> None:
    """Refuse settings of llama.cpp where it runs nothing.

    Args:
        roles: those that are opened.
        settings: what was asked for by name.

    Raises:
        SettingsError: a setting would change nothing.
    """
    idle = _idle(settings)
    if idle and all(engines[role] == "onnx" for role in roles):
        raise SettingsError(
            f"{', '.join(idle)} only has a meaning for llama.cpp, which runs none of these models",
            hint="leave it out, or use --engine llama",
        )


def onnx_kv(settings: Mapping[str, Any]) -> str | None:
    """What was asked for as the type of keys and values alike, if ONNX Runtime's cache can hold it."""
    kind = settings.get("kv_k")
    return kind if kind in KV_KINDS and settings.get("kv_v") == kind else None


def _idle(settings: Mapping[str, Any]) -> list[str]:
    """Names of settings that change nothing on ONNX Runtime."""
    idle = set(settings) & set(_ONLY_LLAMA)
    return sorted(idle if onnx_kv(settings) is None else idle - {"kv_k", "kv_v"})
