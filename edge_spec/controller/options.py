"""The options of ``load``: as keyword arguments, and checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypedDict

from edge_spec.engines.base import ModelSettings, Progress
from edge_spec.engines.registry import AUTO, settings_of
from edge_spec.errors import Sentence, SettingsError
from edge_spec.generation.options import ignore
from edge_spec.memory.budget import SHARE, parse_memory
from edge_spec.memory.pressure import PressureWatch
from edge_spec.options import Option, options_of, own_number, python_option, refuse_unknown, require_path, require_whole
from edge_spec.speculation.modes import Mode

__all__ = ["DEFAULT_N_CTX", "LOAD_OPTIONS", "LoadKeywords", "LoadOptions", "StrPath", "require_n_ctx"]

StrPath = str | os.PathLike[str]

DEFAULT_N_CTX = 4096

_SMALLER = "as `engine`"


class LoadKeywords(TypedDict, total=False):
    """The keyword arguments of ``load`` beside the model."""

    draft: Annotated[StrPath | None, Option("The drafter.", shown="made or chosen for the model, else the family's")]
    intermediate: Annotated[
        StrPath | None, Option("The intermediate model of the hierarchy.", shown="the family's own")
    ]
    draft_limit: Annotated[int | None, Option("Maximum tokens drafted per round.", shown="the mode's own")]
    next_limit: Annotated[
        Callable[[], int] | None, python_option("Called before every round for the most tokens to draft instead.")
    ]
    speculation: Annotated[
        str | Mode,
        Option("How to draft; affects speed, not the text: auto, off, sequence, tree, hierarchy, ngram, or a `Mode`."),
    ]
    engine: Annotated[
        str,
        Option(
            "What runs the models. llama is llama.cpp; onnx is ONNX Runtime, on weights transcribed once; auto is ONNX "
            "Runtime if edge-spec's kernels are built and support the model, else llama.cpp, with a note."
        ),
    ]
    draft_engine: Annotated[str | None, Option("What runs the drafter.", shown=_SMALLER)]
    intermediate_engine: Annotated[str | None, Option("What runs the intermediate model.", shown=_SMALLER)]
    n_ctx: Annotated[
        int | None,
        Option(
            "The most tokens of prompt and reply together.",
            shown=f"what the model was trained for, up to {DEFAULT_N_CTX}, or less to fit the memory",
            flag="--ctx",
        ),
    ]
    min_n_ctx: Annotated[
        int | None,
        Option(
            "Instead of `n_ctx`: the least tokens of context. More are used, up to what the model was trained for, if "
            "they fit the memory. The number is part of the numerics profile.",
            flag="--ctx",
        ),
    ]
    texts: Annotated[
        int,
        python_option(
            "Keep room in the memory limit for the caches of this many texts of `n_ctx` tokens, see `generate_many`."
        ),
    ]
    memory: Annotated[
        str | int | None,
        Option(
            "Memory limit, such as 2GiB. A number alone counts bytes. It covers all private memory of the process, and "
            "the mapped weights, which decoding reads for every token. Settings that you do not give are reduced to "
            "fit it, with a note. The default decides what is loaded and is no limit afterwards.",
            shown=f"{SHARE[0] * 100 // SHARE[1]}% of what is free",
        ),
    ]
    kv_k: Annotated[str, Option("Type of cached keys; `auto` leaves it to the engine.", flag="--kv")]
    kv_v: Annotated[str, Option("Type of cached values.", flag="--kv")]
    session: Annotated[
        StrPath | None,
        python_option(
            "A saved conversation that the model is to go on with: types of caches that you do not give are those that "
            "it was saved with, where the memory has room for them. It may be a file that is not there yet."
        ),
    ]
    n_threads: Annotated[
        int,
        Option(
            "Threads, at most those of the processor; 0 for the number of cores, or fewer where measured to be faster.",
            flag="--threads",
        ),
    ]
    n_threads_batch: Annotated[
        int, Option("Threads for reading prompts and verifying drafts; 0 for the same number.", flag="--threads-batch")
    ]
    prefill_chunk: Annotated[int, python_option("Tokens per decode while a prompt is read.")]
    max_rows: Annotated[int, python_option("The most rows of one decode that returns logits.")]
    trees: Annotated[bool, python_option("Whether one decode may hold several continuations.")]
    exact: Annotated[bool, python_option("Compute rows only in widths that round alike.")]
    flash_attention: Annotated[bool, python_option("llama.cpp's fused attention.", default=True)]
    repack: Annotated[
        bool, Option("Copy weights into a faster layout; else they stay mapped.", default=True, flag="--no-repack")
    ]
    cache_dir: Annotated[
        Path | str | None,
        Option(
            "The folder for transcribed models and for measurements of this device; None to keep none.",
            shown="the user's cache",
        ),
    ]
    on_wait: Annotated[Callable[[str], None], python_option("Called with a sentence about a step that takes long.")]
    on_progress: Annotated[
        Progress,
        python_option(
            "Called with a stage, the amount done and the total; at the end of a stage they are equal. The stages "
            "of a file are `transcribing`, if it has to be transcribed first, and `loading`, both counted in "
            "bytes, and `calibrating`, counted in tokens, when a configuration first runs."
        ),
    ]
    watch: Annotated[
        PressureWatch | None,
        python_option("Checks whether memory is scarce while the model runs.", shown="watches this computer"),
    ]
    verbose: Annotated[bool, Option("Let llama.cpp's log through to standard error.", short="-v")]


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """The options of ``load``, checked as far as that needs no file.

    Attributes:
        model: the path or name of a model; None for the default one.
        settings: fields of ``ModelSettings`` and of single engines, by name.

    The others are described above.

    Raises:
        SettingsError: a value is out of its range, or contradicts another.
    """

    model: StrPath | None = None
    draft: StrPath | None = None
    intermediate: StrPath | None = None
    draft_limit: int | None = None
    next_limit: Callable[[], int] | None = None
    speculation: str | Mode = "auto"
    engine: str = AUTO
    draft_engine: str | None = None
    intermediate_engine: str | None = None
    n_ctx: int | None = None
    min_n_ctx: int | None = None
    texts: int = 1
    memory: str | int | None = None
    session: StrPath | None = None
    cache_dir: Path | str | None = "default"
    on_wait: Callable[[str], None] = ignore
    on_progress: Progress = ignore
    watch: PressureWatch | None = None
    verbose: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("model", "draft", "intermediate", "session", "cache_dir"):
            if getattr(self, name) is not None:
                require_path(name, getattr(self, name))
        require_whole("texts", self.texts, 1, 1 << 20)
        if self.n_ctx is not None and self.min_n_ctx is not None:
            raise SettingsError(
                Sentence("{n_ctx} and {min_n_ctx} both set the size of the context"), hint="give one of them"
            )
        for name in ("n_ctx", "min_n_ctx"):
            if getattr(self, name) is not None:
                require_n_ctx(name, getattr(self, name))
        settings = settings_of(self.n_ctx or self.min_n_ctx or DEFAULT_N_CTX, self.settings)
        if self.draft_limit is not None:
            require_whole("draft_limit", self.draft_limit, 1, settings.max_rows - 1)
        _ = self.memory_bytes
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))

    @classmethod
    def of(cls, model: StrPath | None, given: Mapping[str, Any]) -> LoadOptions:
        """Return options from keyword arguments of ``load``.

        Raises:
            SettingsError: a name that is not known, or a value that cannot be.
        """
        refuse_unknown(given, LOAD_OPTIONS)
        given = {name: own_number(value) for name, value in given.items()}
        own = {name: value for name, value in given.items() if name in cls.__dataclass_fields__}
        return cls(model=model, settings={name: given[name] for name in given.keys() - own}, **own)

    def but(self, given: Mapping[str, Any]) -> LoadOptions:
        """Return the same options with others in place of those of the same names.

        Raises:
            SettingsError: a value that cannot be.
        """
        own = {name: value for name, value in given.items() if name in self.__dataclass_fields__}
        settings = {name: value for name, value in given.items() if name not in own}
        return replace(self, settings={**self.settings, **settings}, **own)

    @property
    def memory_bytes(self) -> int | None:
        """The memory limit; None if there is none."""
        return parse_memory(self.memory) if self.memory is not None else None

    @property
    def folder(self) -> Path | None:
        """The folder for caches between runs; None to keep none."""
        if self.cache_dir == "default":
            from platformdirs import user_cache_path

            return user_cache_path("edge-spec")
        return Path(self.cache_dir) if self.cache_dir is not None else None

    def engine_of(self, role: str) -> str | None:
        """Return the name of the engine that was asked for, for a role; None for the target's."""
        return {"target": self.engine, "draft": self.draft_engine, "intermediate": self.intermediate_engine}[role]


LOAD_OPTIONS = options_of(LoadKeywords, ModelSettings, LoadOptions)


def require_n_ctx(name: str, n_ctx: object) -> None:
    """Raise if a context has no room for a prompt and a reply of one token each.

    Raises:
        SettingsError: it is not a whole number, or too small.
    """
    require_whole(name, n_ctx, 2, (1 << 31) - 1, hint="leave it out for what the model and the memory allow")
