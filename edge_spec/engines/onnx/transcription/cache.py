"""Transcriptions on disk: made once per content, whole or not at all, and checked before they are used."""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from edge_spec.engines.onnx.transcription.architecture import llama_only
from edge_spec.engines.onnx.transcription.cache_folder import (
    check_space,
    disk_full,
    evict,
    existing,
    has_room_for_files,
    is_of,
    mark_used,
    new_part,
    record_source,
    record_whole,
    remove,
    require_name,
    was_whole,
)
from edge_spec.engines.onnx.transcription.graph import ATTENTION_HEADS, Writer, states_of
from edge_spec.engines.onnx.transcription.matrices import LAYOUT, WEIGHTS, StoredBytes, WeightsFile
from edge_spec.engines.onnx.transcription.network import Network, read_network
from edge_spec.engines.onnx.transcription.per_layer import per_layer_table
from edge_spec.engines.onnx.transcription.recurrent import State
from edge_spec.engines.onnx.transcription.rotary import Rotary
from edge_spec.engines.registry import use
from edge_spec.errors import BAD_RECORD, ModelFileError, Sentence, UnsupportedModel
from edge_spec.foreign import read_json
from edge_spec.models.gguf.header import TensorInfo, read_header
from edge_spec.models.model_file import ModelFile

__all__ = [
    "GRAPHS",
    "Transcription",
    "check_transcription",
    "checksum",
    "digests",
    "is_current",
    "is_transcribed",
    "is_whole",
    "read_transcription",
    "stored_bytes",
    "transcribe",
]

VERSION = 10
"""Of the content of a folder; transcriptions of other versions are made again."""

_FACTS = "facts.json"

GRAPHS = {
    "model.onnx": (False, False),
    "half.onnx": (True, False),
    "model-visible.onnx": (False, True),
    "half-visible.onnx": (True, True),
}
"""The graphs, whether their cache holds fp16, and whether further nodes may use what goes into each layer."""

_GRAPHS_BYTES = 2 << 20
"""The graphs, about."""

_PIECE_BYTES = 1 << 20

Progress = Callable[[int, int], None]
"""Called with bytes written and bytes to write."""


@dataclass(frozen=True, kw_only=True)
class Transcription:
    """A model as ONNX Runtime reads it: graphs for both types of cache over the same weights.

    Attributes:
        folder: where its files are.
        heads: of each layer with keys and values of its own: how many, and how wide.
        rotary: rotary embeddings, by the names that the graphs have for them.
        layer_rotary: these names, by layer with keys and values.
        interleaved: rotary embeddings turn neighboring numbers of a head, else numbers half a head apart.
        states: those of a layer without keys and values.
        n_recurrent: how many such layers there are.
        table: what each layer takes in for each token, which stays in the model's file; None where nothing.
    """

    folder: Path
    heads: tuple[tuple[int, int], ...]
    n_vocab: int
    rotary: dict[str, Rotary]
    layer_rotary: tuple[str, ...]
    interleaved: bool
    states: tuple[State, ...] = ()
    n_recurrent: int = 0
    table: TensorInfo | None = None

    @property
    def cell_numbers(self) -> int:
        """How many numbers of keys and values all layers store for a token."""
        return sum(2 * n_heads * dim for n_heads, dim in self.heads)

    def graph(self, *, f16: bool, visible: bool = False) -> Path | bytes:
        """Return the graph whose cache holds fp16, or else fp32.

        Args:
            visible: further nodes may use what goes into each layer.
        """
        return self.folder / next(name for name, kind in GRAPHS.items() if kind == (f16, visible))


def transcribe(
    file: ModelFile,
    cache_dir: Path,
    *,
    sparing: bool = False,
    on_start: Callable[[bool], object] = lambda damaged: None,
    progress: Progress = lambda done, total: None,
) -> Transcription:
    """Return the transcription of a model file, from the cache if it is there and whole, else made.

    Args:
        cache_dir: folder of all transcriptions; created if missing.
        sparing: leave at least as much of the disk free as it takes.
        on_start: called before one is made, with whether one was there that is damaged.

    Raises:
        UnsupportedModel: a GGUF that cannot be transcribed.
        DiskFull: the transcription does not fit; nothing is left behind.
        ModelFileError: the cache cannot be written.
    """
    require_name(cache_dir)
    folder = _folder(file, cache_dir)
    found = read_transcription(folder)
    if found is not None and _is_of(folder, file):
        return replace(found, table=per_layer_table(file))
    damaged = found is None and existing(folder) == folder
    network = read_network(file, read_header(file.path))
    total = stored_bytes(file, network)
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        evict(cache_dir, f"{LAYOUT}-{VERSION}")
        check_space(file, cache_dir, 2 * total if sparing else total)
        on_start(damaged)
        with new_part(cache_dir) as made:
            _write(file, network, Path(made), lambda done: progress(done, total))
            _put_in_place(Path(made), folder, file)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and has_room_for_files(cache_dir):
            raise disk_full(file, cache_dir, total) from error
        raise ModelFileError(
            f"the cache folder {cache_dir} cannot be written ({error.strerror or error})",
            hint=Sentence("give another {cache_dir}, or {use}", use=use("llama")),
        ) from error
    found = read_transcription(folder)
    if found is None:
        raise ModelFileError(f"what was written to {folder} cannot be read back", hint="check the disk")
    return replace(found, table=per_layer_table(file))


def _folder(file: ModelFile, cache_dir: Path) -> Path:
    return cache_dir / f"{file.fingerprint}-{LAYOUT}-{VERSION}"


def _is_of(folder: Path, file: ModelFile) -> bool:
    if not is_of(folder, file.parts):
        return False
    mark_used(folder)
    return True


def is_transcribed(file: ModelFile, cache_dir: Path) -> bool:
    """Return whether the cache has a transcription of a model file."""
    folder = _folder(file, cache_dir)
    return read_transcription(folder) is not None and _is_of(folder, file)


def check_transcription(file: ModelFile, cache_dir: Path) -> None:
    """Raise what a sparing ``transcribe`` would, as far as that can be told without writing anything."""
    require_name(cache_dir)
    if is_transcribed(file, cache_dir):
        return
    total = stored_bytes(file, read_network(file, read_header(file.path)))
    check_space(file, existing(cache_dir), 2 * total)


def read_transcription(folder: Path) -> Transcription | None:
    """Return the transcription in a folder; None if there is none, or it is damaged or of another version.

    The graphs are compared with their hashes each time. So are the weights, unless they were found whole before and
    nothing was written to their file since then: to read all of them can take longer than loading the model.
    """
    try:
        facts = read_json(folder / _FACTS)
        if facts["version"] != VERSION or facts["graphs"] != digests(folder):
            return None
        weights = folder / WEIGHTS
        if not was_whole(weights):
            if facts["weights"] != checksum(weights):
                return None
            record_whole(weights)
        return Transcription(
            folder=folder,
            rotary={name: Rotary.of(rotary) for name, rotary in facts["turns"].items()},
            layer_rotary=tuple(map(str, facts["layer_turns"])),
            interleaved=bool(facts["interleaved"]),
            states=tuple(State.of(state) for state in facts["states"]),
            n_recurrent=int(facts["n_recurrent"]),
            heads=tuple((int(n_heads), int(dim)) for n_heads, dim in facts["heads"]),
            n_vocab=int(facts["n_vocab"]),
        )
    except (OSError, *BAD_RECORD):
        return None


def is_current(folder: Path) -> bool:
    """Return whether a folder is that of a transcription of this version."""
    return folder.name.endswith(f"-{LAYOUT}-{VERSION}")


def is_whole(folder: Path) -> bool:
    """Return whether the transcription in a folder is as it was written, of which all is read."""
    try:
        return read_json(folder / _FACTS)["weights"] == checksum(folder / WEIGHTS) and (
            read_transcription(folder) is not None
        )
    except (OSError, *BAD_RECORD):
        return False


def _write(file: ModelFile, network: Network, folder: Path, progress: Callable[[int], None]) -> None:
    with (folder / WEIGHTS).open("wb") as weights:
        store = WeightsFile(weights, progress)
        for name, (f16, visible) in GRAPHS.items():
            (folder / name).write_bytes(Writer(network, store, f16=f16, visible=visible).write().serialize())
        weights.flush()
        os.fsync(weights.fileno())
        written = store.checksum
    facts: dict[str, Any] = {
        "version": VERSION,
        "heads": [(network.n_head_kv[layer], network.head_dims[layer]) for layer in network.attention_layers],
        "n_vocab": network.n_vocab,
        "turns": {name: rotary.facts() for name, rotary in network.rotary.items()},
        "layer_turns": [network.rotary_of(layer) for layer in network.attention_layers],
        "states": [state.facts() for state in states_of(network)],
        "n_recurrent": len(network.recurrent_layers),
        "interleaved": network.kind.interleaved,
        "graphs": digests(folder),
        "weights": written,
    }
    (folder / _FACTS).write_text(json.dumps(facts), "utf-8")
    record_source(folder, file.parts)
    record_whole(folder / WEIGHTS)


def _put_in_place(made: Path, folder: Path, file: ModelFile) -> None:
    """Move a finished folder to its name, unless another process has put a sound one there."""
    for _ in range(3):
        try:
            made.rename(folder)
            made.mkdir()  # the context manager of the caller removes it
            return
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.EACCES):
                raise
        if read_transcription(folder) is not None and is_of(folder, file.parts):
            return
        # Damaged or of other content: moved away first, so that no process sees half of it.
        with suppress(FileNotFoundError):
            remove(folder)
    raise OSError(errno.EBUSY, "another process keeps replacing it")


def digests(folder: Path, names: Iterable[str] = GRAPHS) -> dict[str, str]:
    """Return a hash of each graph in a folder."""
    return {name: blake2b((folder / name).read_bytes(), digest_size=16).hexdigest() for name in names}


def checksum(path: Path) -> int:
    """Return the checksum that ``WeightsFile`` computes, which takes half a second for a gigabyte in memory."""
    found, piece = 0, bytearray(_PIECE_BYTES)
    with path.open("rb", buffering=0) as file:
        while n := file.readinto(piece):
            found = zlib.crc32(memoryview(piece)[:n], found)
    return found


def stored_bytes(file: ModelFile, network: Network) -> int:
    """Return the most that a transcription takes.

    Raises:
        UnsupportedModel: the kernels do not know the type of a matrix, or have no attention for heads of this size.
    """
    odd = next((dim for dim in network.head_dims if dim not in ATTENTION_HEADS), None)
    if odd is not None:
        raise llama_only(file, f"has heads of {odd} numbers, which edge-spec's attention does not know")
    store = StoredBytes()
    try:
        Writer(network, store, f16=True).write()
    except UnsupportedModel as error:
        raise llama_only(file, f"cannot be transcribed: {error.message}") from error
    return store.total + _GRAPHS_BYTES
