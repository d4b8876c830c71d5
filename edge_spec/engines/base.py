"""What the controller asks of an engine, and the engines there are.

An engine is one object. Nobody outside this folder compares names of engines: the object says what it can run, what
that would take, how fast it would be, and opens it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from edge_spec.engines.probe import ProbeResult
from edge_spec.memory import Footprint
from edge_spec.models import ModelFile
from edge_spec.speculation.language_model import LanguageModel, NumericsProfile

__all__ = ["Engine", "Estimator", "ModelSettings", "OpenedModel", "Opener"]


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """How one model is run, whatever runs it.

    Attributes:
        n_ctx: the most tokens that can be committed. Room for drafts comes on top.
        n_threads, n_threads_batch: threads for one row, and for many; 0 for the number of physical cores.
        kv_k, kv_v: types of cached keys and values; ``auto`` leaves them to the engine.
        prefill_chunk: tokens per decode while a prompt is read.
        max_rows: the most rows of one decode that returns logits.
        trees: whether one decode may hold several continuations.
        exact: compute rows only in widths that round alike; a drafter can do without.
        extras: settings that only one engine understands (``Engine.extras``), by name.

    Raises:
        SettingsError: a value out of its range.
    """

    n_ctx: int
    n_threads: int = 0
    n_threads_batch: int = 0
    kv_k: str = "auto"
    kv_v: str = "auto"
    prefill_chunk: int = 512
    max_rows: int = 16
    trees: bool = False
    exact: bool = True
    extras: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OpenedModel:
    """A model that an engine has opened, and what probing it found."""

    model: LanguageModel
    probed: ProbeResult


class Estimator(Protocol):
    """Says what models would take. A context manager, since it may hold models without weights meanwhile."""

    def footprint(self, file: ModelFile, settings: ModelSettings, *, rough: bool = False) -> Footprint:
        """What a model takes with these settings; ``rough`` asks no library and may be off by its buffers."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Opener(Protocol):
    """Opens models of one engine for one load; models of the same file share their weights."""

    def prepare(self, file: ModelFile, settings: ModelSettings) -> str | None:
        """Make what has to be made once for a file, such as a transcription; why that failed, or None."""

    def open(
        self,
        file: ModelFile,
        settings: ModelSettings,
        *,
        on_probe: Callable[[], None] = lambda: None,
        measured: Callable[[str, int], None] = lambda name, n_bytes: None,
    ) -> OpenedModel:
        """A model with an empty cache, probed.

        Args:
            on_probe: called before a model is tried out on this device for the first time.
            measured: told what the library says it has allocated, by the names of ``Footprint.lines``.
        """

    def release(self, file: ModelFile) -> None:
        """Free the weights of a file whose models are all closed."""

    def close(self) -> None:
        """Free everything. Safe to call twice."""


class Engine(Protocol):
    """One way to compute rows of logits.

    Attributes:
        name: as on the command line and in numerics profiles.
        title: as in sentences, such as ``llama.cpp``.
        extras: names of settings that only this engine understands.
        process_bytes: what its libraries grow by while it runs, beside its models.
        hidden_rows: whether its graphs can return hidden rows.
        several_texts: whether one decode can advance several texts.
    """

    name: str
    title: str
    extras: frozenset[str]
    process_bytes: int
    hidden_rows: bool
    several_texts: bool

    def load_library(self) -> None:
        """Load what it runs on, so that this is counted before the rest is planned."""

    def why_not(self, file: ModelFile, settings: ModelSettings) -> str | None:
        """Why it cannot run a model with these settings, as a clause; None if it can."""

    def why_not_first(self, file: ModelFile, *, cache_dir: Path | None) -> str | None:
        """Why ``auto`` should rather take another engine that can run the model; None if this one is a good choice."""

    def resolve(self, file: ModelFile, settings: ModelSettings) -> ModelSettings:
        """The same settings with everything decided that was left to the engine."""

    def variants(self, file: ModelFile, settings: ModelSettings, fixed: frozenset[str]) -> Iterator[ModelSettings]:
        """Settings that write the same text at another speed and size, the fastest first; the given ones included."""

    def smaller_caches(self, file: ModelFile, settings: ModelSettings) -> list[tuple[str, str]]:
        """Types of keys and values that take less than those of ``settings`` and hardly round, largest first."""

    def seconds_per_decode(self, file: ModelFile, settings: ModelSettings) -> float:
        """Seconds of a plain decode up to a factor that all engines share: an estimate to compare plans by."""

    def estimator(self) -> Estimator:
        """A new estimator."""

    def profile(self, file: ModelFile, settings: ModelSettings, *, cache_dir: Path | None) -> NumericsProfile | None:
        """The numerics profile that an opened model will have; None if it has yet to be probed on this device."""

    def opener(
        self,
        *,
        cache_dir: Path | None,
        on_wait: Callable[[str], None] = lambda sentence: None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        only_look: bool = False,
    ) -> Opener:
        """What opens models for one load.

        Args:
            cache_dir: where probe results and transcriptions are kept; None for nowhere.
            on_wait: told, in a sentence, what takes long.
            on_progress: told bytes written and bytes to write.
            only_look: make nothing, only say what would become of it.
        """
