"""Files of a training: the state to continue from, finished weights, and records beside them.

Finished weights are 16-bit floats. Every later use of a model, in PyTorch or in a GGUF, starts from them, so all agree
to the last bit. They take a tenth of the state, and reading them does not take PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edge_spec.errors import BAD_RECORD, ModelFileError
from edge_spec.foreign import BAD_ARCHIVE, parse_json
from edge_spec.models.beside import beside
from edge_spec.training.settings import HeadShape, Shape

if TYPE_CHECKING:
    from edge_spec.training.model import Llama
    from edge_spec.training.modules import Trainable

__all__ = [
    "arrays_of",
    "ids_type",
    "load_model",
    "read_json",
    "read_weights",
    "save_state",
    "save_weights",
    "whole_file",
    "write_json",
]


_BAD_HEADER = (MemoryError, SyntaxError, TokenError)
"""What NumPy raises besides, of an array that is larger than memory, and of a header that is no expression."""

_SMALL_BYTES = 1 << 24
_MOST_GROWTH = 100


def ids_type(n_vocab: int) -> type[np.uint16 | np.uint32]:
    """Return the type in which token ids of a vocabulary are kept in files."""
    return np.uint16 if n_vocab <= 1 << 16 else np.uint32


@contextmanager
def arrays_of(path: Path, what: str, *, hint: str) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
    """The arrays of a file, by name, while they are read.

    Args:
        what: it should hold.

    Raises:
        ModelFileError: there is none, or it or what is made of it is damaged.
    """
    try:
        # Of a path, NumPy leaves the file open if it is damaged.
        with path.open("rb") as file, np.load(file) as found:
            _require_content(found)
            yield found
    except (*BAD_ARCHIVE, *BAD_RECORD, *_BAD_HEADER) as error:
        raise ModelFileError(f"{path} holds no {what} ({error})", hint=hint) from error


def _require_content(found: Any) -> None:
    """Refuse what unpacks to far more than it takes, which ids of tokens and weights never do.

    Raises:
        ValueError: it does so, or is a single array.
    """
    if not isinstance(found, np.lib.npyio.NpzFile):
        raise ValueError("it is a single array")
    for each in found.zip.infolist() if found.zip is not None else ():
        if each.file_size > _SMALL_BYTES + _MOST_GROWTH * each.compress_size:
            raise ValueError(f"{each.filename} unpacks to {each.file_size >> 20} MiB, more than it can hold")


class whole_file:
    """A temporary path next to ``path`` to write to, which replaces ``path`` when the block ends without an error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beside = beside(path, ".part")

    def __enter__(self) -> Path:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return self._beside

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self._beside.replace(self._path)
        else:
            self._beside.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object that ``write_json`` has written.

    Raises:
        ModelFileError: the file is damaged.
    """
    try:
        found = parse_json(path.read_text("utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no object")
        return found
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} is damaged ({error})", hint="remove it and run again") from error


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write what a training continues from."""
    import torch

    with whole_file(path) as temporary:
        torch.save(dict(state), temporary)


def save_weights(path: Path, model: Trainable) -> None:
    """Write a trained model's weights, rounded to 16 bits."""
    arrays = {name: weight.detach().half().cpu().numpy() for name, weight in model.named_weights().items()}
    shape = np.frombuffer(json.dumps(asdict(model.shape)).encode(), np.uint8)
    with whole_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, shape=shape, **arrays)


def read_weights(path: Path) -> tuple[Shape, dict[str, npt.NDArray[np.float16]]]:
    """Return the shape and the weights, by their names in a GGUF.

    Raises:
        ModelFileError: the file does not exist or is damaged.
    """
    with arrays_of(path, "trained weights", hint="run the stage that trains it") as found:
        arrays = dict(found)
        return _shape_of(parse_json(arrays.pop("shape").tobytes())), arrays


def _shape_of(sizes: dict[str, Any]) -> Shape:
    if "target_layers" in sizes:
        return HeadShape(**{**sizes, "target_layers": tuple(sizes["target_layers"])})
    return Shape(**sizes)


def load_model(path: Path, device: str) -> Llama:
    """Return a trained model with the weights of a file, ready to compute."""
    import torch

    from edge_spec.training.model import Llama

    shape, arrays = read_weights(path)
    model = Llama(shape)
    with torch.no_grad():
        for name, weight in model.named_weights().items():
            weight.copy_(torch.from_numpy(arrays[name]))
    return model.eval().to(device)
