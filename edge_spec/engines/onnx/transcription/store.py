"""Transcriptions for one load, made when they are first needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from edge_spec.engines.onnx.transcription.cache import Transcription, check_transcription, transcribe
from edge_spec.memory import format_size
from edge_spec.models import ModelFile

__all__ = ["Transcriptions"]

_SMALL_BYTES = 20 << 20
"""A smaller model is transcribed too quickly to be worth a sentence."""


class Transcriptions:
    """Transcribes model files into the cache folder, or into a folder that is removed when this is closed.

    Args:
        cache_dir: where to keep them; None for nowhere.
        on_wait: told, in a sentence, that one is made.
        on_progress: told bytes written and bytes to write; at its end they are equal.
        only_look: make none; ``prepare`` only raises what making one would, as far as that can be told.
    """

    def __init__(
        self,
        cache_dir: Path | None,
        *,
        on_wait: Callable[[str], None] = lambda sentence: None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        only_look: bool = False,
    ) -> None:
        self._only_look = only_look
        self._cache_dir = cache_dir
        self._on_wait = on_wait
        self._on_progress = on_progress
        self._made: dict[Path, Transcription] = {}
        self._scratch: TemporaryDirectory[str] | None = None

    def of(self, file: ModelFile) -> Transcription:
        """The transcription of a file; raises what ``transcribe`` does."""
        if file.path not in self._made:
            self._made[file.path] = self._transcribe(file, sparing=False)
        return self._made[file.path]

    def prepare(self, file: ModelFile) -> None:
        """Make sure that there is one, and leave as much of the disk free as it takes; raises what ``of`` does."""
        if self._only_look and self._cache_dir is not None:
            check_transcription(file, self._cache_dir / "onnx")
        elif file.path not in self._made:
            self._made[file.path] = self._transcribe(file, sparing=True)

    def close(self) -> None:
        """Remove what is not kept. Safe to call twice."""
        self._made.clear()
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def _transcribe(self, file: ModelFile, *, sparing: bool) -> Transcription:
        folder = self._cache_dir
        if folder is None:
            self._scratch = self._scratch or TemporaryDirectory(prefix="edge-spec-", ignore_cleanup_errors=True)
            folder = Path(self._scratch.name)
        if file.weight_bytes < _SMALL_BYTES:
            return transcribe(file, folder / "onnx", sparing=sparing)
        total = 0

        def progress(done: int, of: int) -> None:
            nonlocal total
            total = of
            if done < total:
                self._on_progress(done, total)

        try:
            return transcribe(
                file,
                folder / "onnx",
                sparing=sparing,
                progress=progress,
                on_start=lambda: self._on_wait(
                    f"repacking {file.path.name} losslessly for ONNX Runtime: "
                    f"{format_size(file.weight_bytes)} in {folder / 'onnx'} (first run only)"
                ),
            )
        finally:
            if total:
                self._on_progress(total, total)
