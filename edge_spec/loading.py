"""From a name or a path to a model that writes text."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge_spec.backends.llama import LlamaSettings, LlamaWeights
from edge_spec.backends.llama.grammar import LlamaGrammar
from edge_spec.backends.llama.library import library
from edge_spec.drafters.plain import NoDrafter
from edge_spec.engines import engines_of, refuse_idle_settings, settle_engines
from edge_spec.errors import SettingsError
from edge_spec.family import OpenFamily, fits_memory
from edge_spec.memory import probe as probe_device
from edge_spec.models import ModelFile, check_pair, inspect, is_published, resolve, resolve_family
from edge_spec.policy import AdaptivePolicy, FixedPolicy, Policy
from edge_spec.requirements import require_path, require_whole
from edge_spec.speculation import MODES, Mode, mode_of, require_models
from edge_spec.speculator import Speculator
from edge_spec.text_model import TextModel
from edge_spec.transcriptions import Transcriptions

__all__ = ["load", "possible_modes"]

_DEFAULT_N_CTX = 4096

StrPath = str | os.PathLike[str]


def load(
    model: StrPath = "demo",
    *,
    draft: StrPath | None = None,
    middle: StrPath | None = None,
    speculation: str | Mode = "auto",
    engine: str = "auto",
    draft_engine: str | None = None,
    middle_engine: str | None = None,
    draft_limit: int | None = None,
    policy: Policy | None = None,
    n_ctx: int | None = None,
    cache_dir: Path | str | None = "default",
    on_wait: Callable[[str], None] = lambda sentence: None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    verbose: bool = False,
    **llama: Any,
) -> TextModel:
    """Load a model and the smaller ones that speed it up.

    Args:
        model: path of a GGUF, of a published ONNX model or its folder, or the name of a family that comes with the
            package (``demo``).
        draft: path of the drafter, the same kinds; a family brings its own.
        middle: path of the intermediate model; a family brings its own.
        speculation: ``auto``, ``off``, ``sequence``, ``tree``, ``hierarchy``, ``ngram``, or a ``Mode``.
        engine: what runs the models: ``llama`` (llama.cpp), ``onnx`` (ONNX Runtime, on weights transcribed once),
            or ``auto``: ONNX Runtime for published ONNX models and where edge-spec's kernels are there and know the
            model, else llama.cpp, and ``notes`` of what is returned say why.
        draft_engine, middle_engine: the same for the smaller models; the target's engine by default.
        draft_limit: tokens drafted per round; the mode's own default if None.
        policy: chooses the limit of each round instead.
        n_ctx: the most tokens of prompt and reply; if None what the model was trained for, up to 4,096.
        cache_dir: where transcribed models and what was found out about this device are kept; the user's cache
            directory by default, None for nowhere.
        on_wait: told, in a sentence, what takes long.
        on_progress: told bytes written and bytes to write while a model is transcribed, which ``on_wait`` announces;
            at its end they are equal.
        verbose: let llama.cpp's log through to standard error.
        **llama: further fields of ``LlamaSettings``, such as ``n_threads``, ``kv_k`` and ``kv_v``.

    Raises:
        ModelFileError: a file cannot be used. VocabularyMismatch: a drafter speaks another vocabulary.
        OutOfMemory: it would not fit. DiskFull: a transcription would not.
        SettingsError: a setting is out of range or contradicts another.
    """
    for name, value in (("model", model), ("draft", draft), ("middle", middle)):
        if value is not None:
            require_path(name, value)
    family = resolve_family(model)
    draft_path = resolve(draft) if draft is not None else family.draft
    middle_path = resolve(middle) if middle is not None else family.middle
    given = _given(draft_path, middle_path)
    mode = speculation if isinstance(speculation, Mode) else mode_of(speculation, given=given)
    require_models(mode, given)
    paths = {"target": family.target, "draft": draft_path, "middle": middle_path}
    published = [role for role, path in paths.items() if path is not None and is_published(path)]
    engines = engines_of(engine, draft_engine, middle_engine, published=published)
    refuse_idle_settings(engines, ("target", *mode.needs), llama)
    target_file = inspect(family.target)
    draft_file = inspect(draft_path) if draft_path and "draft" in mode.needs else None
    middle_file = inspect(middle_path) if middle_path and "middle" in mode.needs else None
    for file in (draft_file, middle_file):
        if file is not None:
            check_pair(target_file, file)
    settings = _settings(n_ctx, target_file, llama)
    if draft_limit is not None:
        require_whole("draft_limit", draft_limit, 1, settings.max_rows - 1)
    notes: list[str] = []
    if 0 < target_file.n_ctx_train < settings.n_ctx:
        notes.append(f"{target_file.path.name} was trained for {target_file.n_ctx_train} tokens, not {settings.n_ctx}")
    library().verbose = verbose
    transcriptions = Transcriptions(_cache_dir(cache_dir), on_wait=on_wait, on_progress=on_progress)
    files = {"target": target_file, "draft": draft_file, "middle": middle_file}
    present = {role: file for role, file in files.items() if file is not None}
    engines, left = settle_engines(
        engines, present, llama, transcriptions,
        fits=lambda engines: fits_memory(present, settings, engines, probe_device()),
    )  # fmt: skip
    opened = OpenFamily(
        target_file, draft_file, middle_file, settings, engines=engines, asked=llama, transcriptions=transcriptions,
        probe_device=probe_device, cache_dir=_cache_dir(cache_dir), on_wait=on_wait,
    )  # fmt: skip
    try:
        return _assemble(opened, mode, draft_limit, policy, target_file.chat_template, [*notes, *left])
    except BaseException:
        opened.close()
        raise


def possible_modes(model: StrPath = "demo", draft: StrPath | None = None, middle: StrPath | None = None) -> list[str]:
    """Names of the modes for which these arguments of ``load`` bring the models; nothing is opened."""
    family = resolve_family(model)
    given = _given(draft or family.draft, middle or family.middle)
    return [name for name, mode in MODES.items() if given.issuperset(mode.needs)]


def _given(draft: StrPath | None, middle: StrPath | None) -> frozenset[str]:
    return frozenset(role for role, path in (("draft", draft), ("middle", middle)) if path is not None)


def _assemble(
    opened: OpenFamily, mode: Mode, limit: int | None, policy: Policy | None, template: str | None, notes: list[str]
) -> TextModel:
    target, probed = opened.target(trees=mode.target_trees)
    if not target.traits.can_rollback and mode.name != "off":
        notes.append("speculation is off: this model's cache cannot be rolled back")
        mode = MODES["off"]
    elif mode.target_trees and not target.traits.takes_trees:
        notes.append(f"speculation {mode.name!r} is off: this model does not compute trees like sequences")
        mode = MODES["off"]
    elif target.traits.identity == "rounding" and mode.name != "off":
        notes.append("this model's rows round differently from width to width: drafts may change near ties")
    drafter = NoDrafter() if mode.name == "off" else mode.build(opened)
    speculator = Speculator(target, drafter, helpers=opened.helpers)
    tokenizer = opened.tokenizer()
    most = limit or mode.limit

    def new_policy() -> Policy:
        return AdaptivePolicy(most=most, seconds=probed.seconds) if mode.adapts else FixedPolicy(most)

    first = policy or (new_policy() if mode.adapts else None)
    return TextModel(
        speculator,
        # What an adaptive policy has learned about this device holds for the next reply as well.
        (lambda: first) if first else new_policy,
        tokenizer,
        mode=mode.name,
        lossless=mode.lossless,
        chat_template=template,
        notes=notes,
        grammars=(lambda text: LlamaGrammar(tokenizer, text)) if isinstance(tokenizer, LlamaWeights) else None,
        on_close=opened.close,
    )


def _settings(n_ctx: int | None, target: ModelFile, llama: dict[str, Any]) -> LlamaSettings:
    known = sorted(LlamaSettings.__dataclass_fields__)
    unknown = sorted(set(llama) - set(known))
    if unknown:
        raise SettingsError(f"unknown setting {', '.join(unknown)}", hint=f"known are {', '.join(known)}")
    if n_ctx is None:
        n_ctx = min(target.n_ctx_train or _DEFAULT_N_CTX, _DEFAULT_N_CTX)
    return LlamaSettings(n_ctx=n_ctx, **llama)


def _cache_dir(cache_dir: Path | str | None) -> Path | None:
    if cache_dir == "default":
        from platformdirs import user_cache_path

        return user_cache_path("edge-spec")
    return Path(cache_dir) if cache_dir is not None else None
