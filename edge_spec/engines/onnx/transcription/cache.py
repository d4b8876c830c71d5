"""Transcriptions on disk: made once per content, whole or not at all, and looked at before they are used."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from edge_spec.engines.onnx.transcription.architecture import Network, read_network
from edge_spec.engines.onnx.transcription.eviction import mark_used, new_part, remove, sweep
from edge_spec.engines.onnx.transcription.graph import Writer
from edge_spec.engines.onnx.transcription.plan import check_space, disk_full, stored_bytes
from edge_spec.engines.onnx.transcription.rotary import Turns
from edge_spec.engines.onnx.transcription.source import is_of, note_source
from edge_spec.engines.onnx.transcription.weight_formats import FORMS, Form, best_form
from edge_spec.engines.onnx.transcription.weights import WEIGHTS, WeightsFile
from edge_spec.errors import ModelFileError, SettingsError
from edge_spec.models.gguf.header import read_header
from edge_spec.models.model_file import ModelFile

__all__ = ["Transcription", "check_transcription", "read_transcription", "transcribe"]

VERSION = 3
"""Of what a folder holds and how; another version is made anew."""

_FACTS = "facts.json"
_GRAPHS = {
    "rows": {"model.onnx": (True, False), "half.onnx": (True, True)},
    "gqa": {"plain.onnx": (False, False), "tree.onnx": (True, False)},
}
"""The graphs of each kind of attention: whether they take trees, and whether their cache holds halves."""

_SAMPLES, _SAMPLE_BYTES = 256, 4096

Progress = Callable[[int, int], None]
"""Told bytes written and bytes to write."""


@dataclass(frozen=True, kw_only=True)
class Transcription:
    """A model as ONNX Runtime reads it: graphs for sequences and for trees over the same weights.

    Attributes:
        folder: where its files are.
        form: how matrices are stored, see ``forms``.
        attention: ``rows`` or ``gqa``, see ``graph``.
        turns: how positions turn heads, by the names that the graphs have for them.
        layer_turns: these names, by layer.
        interleaved: positions turn neighbouring numbers of a head, else those half apart.
    """

    folder: Path
    form: str
    attention: str
    n_layers: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    turns: dict[str, Turns]
    layer_turns: tuple[str, ...]
    interleaved: bool

    def graph(self, *, trees: bool, f16: bool = False) -> Path:
        """The graph that takes sequences only, or trees as well, and whose cache holds halves or floats.

        Raises:
            SettingsError: ONNX Runtime's own attention has no cache of halves.
        """
        for name, (takes_trees, halves) in _GRAPHS[self.attention].items():
            if (takes_trees or not trees) and halves == f16:
                return self.folder / name
        raise SettingsError("a KV cache in f16 needs edge-spec's own kernels", hint="use f32, or --engine llama")


def transcribe(
    file: ModelFile,
    cache_dir: Path,
    *,
    form: Form | None = None,
    sparing: bool = False,
    on_start: Callable[[], None] = lambda: None,
    progress: Progress = lambda done, total: None,
) -> Transcription:
    """The transcription of a model file, from the cache if it is there and whole, else made.

    Args:
        cache_dir: folder of all transcriptions; made if missing.
        form: how to store matrices; the best that this installation has by default.
        sparing: leave at least as much room on the disk as it takes.
        on_start: called before one is made.

    Raises:
        UnsupportedModel: a GGUF that cannot be transcribed.
        DiskFull: the transcription does not fit; nothing is left behind.
        ModelFileError: the cache cannot be written.
    """
    form = form or best_form()
    folder = cache_dir / f"{file.fingerprint}-{form.layout}-{VERSION}"
    found = _found(file, folder)
    if found is not None:
        return found
    network = read_network(file, read_header(file.path))
    total = stored_bytes(file, network, form)
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        sweep(cache_dir, [known.layout for known in FORMS.values()], VERSION)
        check_space(file, cache_dir, 2 * total if sparing else total)
        on_start()
        with new_part(cache_dir) as made:
            _write(network, form, Path(made), lambda done: progress(done, total))
            _put_in_place(Path(made), folder, file)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(file, cache_dir, total) from error
        raise ModelFileError(
            f"{file.path.name} cannot be transcribed into {cache_dir} ({error.strerror or error})",
            hint="choose another cache folder, or use --engine llama",
        ) from error
    found = read_transcription(folder)
    if found is None:
        raise ModelFileError(f"what was written to {folder} reads back wrong", hint="check the disk")
    return found


def _found(file: ModelFile, folder: Path) -> Transcription | None:
    found = read_transcription(folder)
    if found is None or not is_of(folder, file.path):
        return None
    mark_used(folder)
    return found


def check_transcription(file: ModelFile, cache_dir: Path) -> None:
    """Raise what ``transcribe`` would, sparing, as far as that can be told without writing anything."""
    form = best_form()
    if _found(file, cache_dir / f"{file.fingerprint}-{form.layout}-{VERSION}") is not None:
        return
    total = stored_bytes(file, read_network(file, read_header(file.path)), form)
    existing = next(folder for folder in (cache_dir, *cache_dir.parents) if folder.exists())
    check_space(file, existing, 2 * total)


def read_transcription(folder: Path) -> Transcription | None:
    """The transcription in a folder; None if there is none, or it is damaged or of another version.

    The graphs are compared with their hashes, the weights with their size and the hash of samples: reading all
    of them would take longer than loading the model.
    """
    try:
        facts = json.loads((folder / _FACTS).read_text("utf-8"))
        attention = str(facts["attention"])
        if facts["version"] != VERSION or facts["files"] != _digests(folder, attention):
            return None
        network = facts["network"]
        return Transcription(
            folder=folder,
            form=str(facts["form"]),
            attention=attention,
            turns={name: Turns.of(turns) for name, turns in facts["turns"].items()},
            layer_turns=tuple(map(str, facts["layer_turns"])),
            interleaved=bool(facts["interleaved"]),
            **{name: int(value) for name, value in network.items()},
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _write(network: Network, form: Form, folder: Path, progress: Callable[[int], None]) -> None:
    attention = form.attention(network.head_dim)
    with (folder / WEIGHTS).open("wb") as file:
        store = WeightsFile(file, progress)
        for name, (trees, f16) in _GRAPHS[attention].items():
            writer = Writer(network, form, store, attention=attention, trees=trees, f16=f16)
            (folder / name).write_bytes(writer.write().serialize())
        file.flush()
        os.fsync(file.fileno())
    facts: dict[str, Any] = {
        "version": VERSION,
        "form": form.name,
        "attention": attention,
        "network": {
            "n_layers": network.n_layers,
            "n_head_kv": network.n_head_kv,
            "head_dim": network.head_dim,
            "n_vocab": network.n_vocab,
        },
        "turns": {name: turns.facts() for name, turns in network.turns.items()},
        "layer_turns": [network.turns_of(layer) for layer in range(network.n_layers)],
        "interleaved": network.kind.interleaved,
        "files": _digests(folder, attention),
    }
    (folder / _FACTS).write_text(json.dumps(facts), "utf-8")
    note_source(folder, network.header.path)


def _put_in_place(made: Path, folder: Path, file: ModelFile) -> None:
    """Move a finished folder to its name. Whoever comes second to a sound one leaves it there."""
    for _ in range(3):
        try:
            made.rename(folder)
            made.mkdir()  # for whoever wants to remove it
            return
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.EACCES):
                raise
        if read_transcription(folder) is not None and is_of(folder, file.path):
            return
        # Damaged or of another content: out of the way first, so that nobody ever sees a half of it.
        with suppress(FileNotFoundError):
            remove(folder)
    raise OSError(errno.EBUSY, "another process keeps replacing it")


def _digests(folder: Path, attention: str) -> dict[str, str]:
    return {name: _digest(folder / name) for name in (*_GRAPHS[attention], WEIGHTS)}


def _digest(path: Path) -> str:
    """Hash of the size and of evenly spread samples, which is all of a small file."""
    size = path.stat().st_size
    state = blake2b(size.to_bytes(8, "little"), digest_size=16)
    with path.open("rb") as file:
        step = max(_SAMPLE_BYTES, size // _SAMPLES)
        for start in range(0, size, step):
            file.seek(start)
            state.update(file.read(_SAMPLE_BYTES))
    return state.hexdigest()
