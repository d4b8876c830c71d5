"""The interface of an engine: what the controller asks of whatever computes rows of logits.

An engine is one object. Nothing outside this folder compares names of engines: the object says which models it can
run, what that takes and how fast it is, and opens them. A new engine derives from ``Engine`` and ``Opener``; what has
a body here need not be written.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy.typing as npt

from edge_spec.engines.probe import ProbeResult
from edge_spec.engines.records import FOLDER
from edge_spec.engines.settings import SMALL_PARAMS, ModelSettings, ThreadCounts
from edge_spec.engines.tokenizers import open_tokenizer, with_tokenizer
from edge_spec.errors import Arguments, Sentence, UnsupportedModel
from edge_spec.extras import how_to_install
from edge_spec.memory import Footprint
from edge_spec.models import ModelFile
from edge_spec.models.heads import is_head, lacking_rows
from edge_spec.speculation.language_model import NumericsProfile
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.speculation.pool import Pool
from edge_spec.tokens.tokenizer import FileTokenizer

__all__ = ["Engine", "Estimator", "HiddenRows", "ModelSettings", "OpenedModel", "Opener", "Progress", "installed"]

Progress = Callable[[str, int, int], object]
"""Called with a stage, ``transcribing`` or ``loading``, bytes done and bytes in all, or ``calibrating`` and tokens; at
its end they are equal."""


@dataclass(frozen=True, kw_only=True)
class OpenedModel:
    """A model that an engine has opened, and what probing it found.

    Attributes:
        pool: the model; its paths are empty.
        reads_target: whether it reads what its open target computes, and is closed before it.
    """

    pool: Pool
    probed: ProbeResult
    reads_target: bool = False


class HiddenRows(Protocol):
    """Hidden states of a text in an open model, one for each token that was read."""

    def __getitem__(self, tokens: slice) -> npt.NDArray[Any]:
        """Return the rows of some tokens of the text, f16 ``[n, width]``, valid until the model reads others."""

    def on(self, path: TextPath) -> HiddenRows:
        """Return those of another path of the model's pool."""


class Estimator(ABC):
    """Says how much memory models take. A context manager: it may hold models without weights meanwhile."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, str, ModelSettings, bool], Footprint] = {}
        self._open = ExitStack()

    def footprint(
        self, file: ModelFile, settings: ModelSettings, *, rough: bool = False, tokenizer: bool = False
    ) -> Footprint:
        """Return what a model takes with these settings.

        Args:
            rough: ask no library; the size of compute buffers is estimated.
            tokenizer: include what the file's tokenizer takes: for the target, whose tokenizer will be opened.
        """
        key = (file.path, file.fingerprint, settings, rough)
        if key not in self._known:
            self._known[key] = self._footprint(file, settings, rough=rough)
        found = self._known[key]
        return with_tokenizer(found, file) if tokenizer and not found.vocabulary_bytes else found

    @abstractmethod
    def _footprint(self, file: ModelFile, settings: ModelSettings, *, rough: bool) -> Footprint:
        """Return what weights, cache and buffers take; what it opens for that goes to ``self._open``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()


class Opener(ABC):
    """Opens models of one engine for one load; models of the same file share their weights.

    Args:
        cache_dir: where probe results and transcriptions are kept; None for nowhere.
        on_wait: called with a sentence that says what takes long.
        on_progress: called with what is done with a file, see ``Progress``.
        only_look: ``prepare`` makes nothing and only says whether it would fail.
    """

    def __init__(
        self,
        *,
        cache_dir: Path | None,
        on_wait: Callable[[str], None] = lambda sentence: None,
        on_progress: Progress = lambda stage, done, total: None,
        only_look: bool = False,
    ) -> None:
        self._cache_dir = cache_dir
        self._on_wait = on_wait
        self._on_progress = on_progress
        self._only_look = only_look
        self._tokenizers: dict[Path, FileTokenizer] = {}

    def prepare(self, file: ModelFile) -> str | None:
        """Make what has to be made once for a file, such as a transcription; why that failed, or None."""
        return None

    @abstractmethod
    def open(
        self,
        file: ModelFile,
        settings: ModelSettings,
        *,
        target: tuple[Pool, ModelFile] | None = None,
        measured: Callable[[str, int], None] = lambda name, n_bytes: None,
    ) -> OpenedModel:
        """Return a model without a text, probed.

        Args:
            target: the open model that this one drafts for, and its file: a head reads what it computes, and is closed
                before it. None for the target itself.
            measured: called with what the library says it has allocated, by the names of ``Footprint.lines``.

        Raises:
            UnsupportedModel: the engine cannot load the file. BackendError: the library failed.
            DiskFull, ModelFileError: what has to be made for the file cannot be written.
        """

    def _announce_probe(self, file: ModelFile, settings: ModelSettings, done: int, total: int) -> None:
        """Say that a model is probed, if that takes a noticeable time, and that it is not repeated, if that is so."""
        if not settings.exact and file.n_params <= SMALL_PARAMS:
            return
        self._on_progress("calibrating", done, total)
        if done:
            return
        if self._cache_dir is None:
            once = ""
        elif _is_writable(self._cache_dir / FOLDER):
            once = " (first time only)"
        else:
            once = f" (at every start: the cache folder {self._cache_dir} cannot be written)"
        paged = "; experts that do not stay in memory are read from the disk" if settings.held_experts else ""
        self._on_wait(f"calibrating {file.path.name} for this device and these settings{once}{paged}")

    def _announce_busy(self, settings: ModelSettings, times: float) -> None:
        """Say that decodes take many times as long as they could."""
        slow = f"decodes take about {times:.0f} times as long as they could: other programs seem to use the processor"
        fewer = Sentence("; beside them {instead} may be faster", instead=Arguments(n_threads=1))
        has_several = max(settings.threads) > 1
        self._on_wait(Sentence("{slow}{fewer}", slow=slow, fewer=fewer if has_several else ""))

    def hidden_rows(self, path: TextPath, file: ModelFile, layers: Sequence[int]) -> HiddenRows:
        """From now on keep what goes into some layers of an open model, side by side, ``[n, len(layers) * width]``.

        Args:
            path: a text in it, whose states are returned.
            file: of the model.
            layers: numbers from 1 on.

        Raises:
            UnsupportedModel: it does not give hidden states, see ``Engine.gives_hidden_rows``.
        """
        raise UnsupportedModel(
            f"{file.path.name} does not provide hidden states as it is run here",
            hint=Sentence("run it with edge-spec's own kernels ({instead})", instead=Arguments(engine="onnx")),
        )

    def tokenizer(self, file: ModelFile) -> FileTokenizer:
        """Return the tokenizer of a file, that of its weights if they are loaded and have one.

        Closed with the opener.
        """
        if file.path not in self._tokenizers:
            self._tokenizers[file.path] = self._open_tokenizer(file)
        return self._tokenizers[file.path]

    def _open_tokenizer(self, file: ModelFile) -> FileTokenizer:
        return open_tokenizer(file)

    def release(self, file: ModelFile) -> None:  # noqa: B027  (weights that are mapped need no release)
        """Free the weights of a file whose models are all closed, unless its tokenizer has been handed out."""

    def close(self) -> None:
        """Free everything; models must be closed before. Safe to call twice."""
        while self._tokenizers:
            self._tokenizers.popitem()[1].close()


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def installed(package: str) -> str:
    """Return the version of a package, for people."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


class Engine(ABC):
    """One way to compute rows of logits.

    Attributes:
        name: as on the command line and in numerics profiles.
        title: as in sentences, such as ``llama.cpp``.
        package: the installed package that has its library, if that is one.
        extras: names of settings that only this engine has.
        auto_kv: types of keys and values that ``auto`` stands for, as on the command line.
        extra: the extra of pyproject.toml that brings its library; empty if edge-spec always does.
        reader: a function, ``module:name``, that reads a strange file as its library does, which may end the process;
            empty if it reads none but with what is checked. See ``edge_spec.engines.trial``.
        process_bytes: what its own library grows by while it runs, besides models.
        library_bytes: what loading its library takes, at most.
        is_fallback: whether it takes the files that no other engine takes first; true of one engine.
        estimator, opener: the classes that say what its models take, and that open them.
    """

    name: str
    title: str
    package: str = ""
    extras: frozenset[str] = frozenset()
    auto_kv: str = "f32"
    extra: str = ""
    reader: str = ""
    process_bytes: int
    library_bytes: int
    is_fallback: bool = False
    estimator: type[Estimator]
    opener: type[Opener]

    def libraries(self) -> dict[str, str]:
        """Return what is installed of it, for people: name -> version or state."""
        return {self.package: self.lacking() or installed(self.package)} if self.package else {}

    def why_not_installed(self) -> str | None:
        """Return why its library cannot be used, as a clause; None if it can. Nothing is loaded for that."""
        return None

    def how_to_install(self) -> str:
        """Return the command that installs its library."""
        return how_to_install(self.extra)

    def lacking(self) -> str | None:
        """Return why its library cannot be used, and what helps, as a clause; None if it can."""
        why = self.why_not_installed()
        return f"{why}; run: {self.how_to_install()}" if why is not None else None

    @property
    def architectures(self) -> tuple[str, ...]:
        """Names of the architectures that it runs; empty where its library alone knows."""
        return ()

    @abstractmethod
    def load_library(self, *, verbose: bool = False) -> None:
        """Load its library, if it is not loaded, and say how much of its log is shown.

        Args:
            verbose: let its log through to standard error.
        """

    @property
    @abstractmethod
    def is_loaded(self) -> bool:
        """Whether its library is loaded, so that what it takes is held already."""

    @abstractmethod
    def why_not(self, file: ModelFile) -> str | None:
        """Return why it cannot run a file, as a clause with ``it`` for the file; None if it may be able to.

        Only what the header tells, its vocabulary included, which may need what is not installed. A file that passes
        can still be refused by ``Opener.prepare`` or ``Opener.open``.
        """

    def disk_bytes(self, file: ModelFile, *, cache_dir: Path | None) -> int:
        """Return what is written to the disk before a file first runs; 0 if nothing is, or it is there."""
        return 0

    def why_not_here(self, file: ModelFile) -> str | None:
        """Return what this installation or processor lacks to run a file well, as a clause; None if nothing.

        Another engine should then run it, with a notice, even if this one was asked for by name.
        """
        return None

    def why_not_first(self, file: ModelFile, settings: ModelSettings, *, cache_dir: Path | None) -> str | None:
        """Why ``auto`` should rather take another engine for a file, as a clause; None if this one is a good choice.

        Covers ``why_not`` and ``why_not_here``, and settings that would change nothing.
        """
        unused = ", ".join(self.unused(settings))
        if unused:
            return f"{unused} would change nothing on {self.title}"
        return self.why_not(file) or self.why_not_here(file)

    def why_not_draft(self, file: ModelFile, *, trees: bool) -> str | None:
        """Return why a target cannot verify drafts, as a clause without a subject; None if nothing speaks against it.

        Only what the header tells; an opened model can still turn out not to.

        Args:
            trees: whether drafts are trees.
        """
        return None

    def rows(self, file: ModelFile, most: int, *, drafts: bool) -> Sequence[int]:
        """Return numbers of rows of a target's decode to choose from, at most ``most``, best first.

        Args:
            drafts: whether drafts are verified.
        """
        return (most,)

    def gives_hidden_rows(self, file: ModelFile) -> bool:
        """Return whether its models give what goes into their layers, see ``Opener.hidden_rows``: heads need that."""
        return False

    def why_not_drafter(self, file: ModelFile, target: ModelFile) -> str | None:
        """Return why a file cannot draft for a target that this engine runs, as a clause about the file.

        None if it may.
        """
        return lacking_rows(target) if is_head(file) and not self.gives_hidden_rows(target) else None

    def why_not_network(self, head: ModelFile) -> str | None:
        """Return why it cannot express the network of a head on hidden states, in a sentence; None if it can.

        Its header is read for that.
        """
        return None

    def unused(self, settings: ModelSettings) -> tuple[str, ...]:
        """Return names of settings that were given values and change nothing on this engine, sorted."""
        return tuple(sorted(settings.extras.keys() - self.extras))

    @abstractmethod
    def resolve(self, file: ModelFile, settings: ModelSettings) -> ModelSettings:
        """Return the settings that a model of this file is opened with: nothing is ``auto`` any more.

        Raises:
            SettingsError: one of them contradicts another or the model.
        """

    def variants(self, file: ModelFile, settings: ModelSettings, fixed: frozenset[str]) -> Iterator[ModelSettings]:
        """Settings, not resolved, with the same text but for rounding, that take less memory and more time per decode.

        The given ones come first, then slower and slower ones: the engine knows which are, not how much.

        Args:
            fixed: names of settings that must stay.
        """
        yield settings

    def smaller_caches(self, file: ModelFile, settings: ModelSettings) -> list[tuple[str, str]]:
        """Types of keys and values that take less than those of ``settings`` and hardly round, largest first."""
        return []

    def texts_bytes(self, file: ModelFile, settings: ModelSettings, n_texts: int) -> int:
        """Return what caches of so many texts at once take, each as long as the context.

        0 where they are not needed.
        """
        return 0

    def shown(self, settings: ModelSettings, footprint: Footprint) -> Mapping[str, str]:
        """Return what a plan should show of resolved settings besides context, chunk and rows: name -> value."""
        return {}

    def threads(self, file: ModelFile, settings: ModelSettings, *, cache_dir: Path | None) -> ThreadCounts:
        """Return how many threads will compute an opened model, as far as that is known."""
        return settings.thread_counts

    @abstractmethod
    def profile(self, file: ModelFile, settings: ModelSettings, *, cache_dir: Path | None) -> NumericsProfile | None:
        """Return the numerics profile that an opened model will have.

        None if it has yet to be probed on this device.
        """

    def kept_files(self, cache_dir: Path) -> Iterator[tuple[str, Path]]:
        """Return what it keeps in the cache folder for later loads: names of models, and a file or folder for each."""
        return iter(())

    def verified_files(self, cache_dir: Path) -> Iterator[tuple[str, Path, bool]]:
        """Read all of what this version would use of ``kept_files``, and return with each whether it is whole."""
        return iter(())
