"""What a model file holds, as far as planning, pairing and caching need to know."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from edge_spec.errors import ModelNotFound, UnsupportedModel
from edge_spec.models.gguf.cursor import truncated
from edge_spec.models.gguf.header import GGUFArray, GGUFHeader, TensorInfo, Value, read_header
from edge_spec.models.vocabulary import Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from edge_spec.models.onnx import PublishedGraph

__all__ = ["ModelFile", "inspect", "is_published"]

_SAMPLE_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A model file, looked at but not loaded.

    Attributes:
        path: the file, the first one if there are several.
        parts: all files that make the model, ``path`` first.
        fingerprint: identity of its content, see ``inspect``; 32 hexadecimal digits.
        architecture: such as ``llama`` or ``qwen2``.
        name: what the file calls itself (printable characters only), else the file name without its ending.
        n_layers: transformer blocks.
        n_embd: width.
        n_head: query heads of the layer that has most.
        n_head_kv: key and value heads, ``[n_layers]``; 0 where a layer keeps no such cache.
        head_dim_k: width of a key.
        head_dim_v: width of a value.
        n_ctx_train: context it was made for; 0 if the file does not say.
        n_vocab: columns of a row of logits.
        sliding_window: how far back layers with a window look; None if there are none.
        tensors: of all parts.
        n_merges: pairs that its tokeniser joins; 0 for tokenisers of another kind.
        n_params: number of weights.
        weight_bytes: size of all tensors.
        tensor_types: bytes per tensor type, largest first.
        quantisation: the type that holds most bytes of the layers, such as ``Q4_0``. Embeddings do not count:
            in small models they outweigh the layers.
        vocabulary: what its token ids mean.
        chat_template: Jinja template of a conversation; None if the file has none.
        graph: inputs and outputs of a published ONNX model; None for a GGUF.
    """

    path: Path
    parts: tuple[Path, ...]
    fingerprint: str
    architecture: str
    name: str
    n_layers: int
    n_embd: int
    n_head: int
    n_head_kv: tuple[int, ...]
    head_dim_k: int
    head_dim_v: int
    n_ctx_train: int
    n_vocab: int
    sliding_window: int | None
    tensors: tuple[TensorInfo, ...] = field(repr=False)
    n_merges: int
    n_params: int
    weight_bytes: int
    tensor_types: dict[str, int]
    quantisation: str
    vocabulary: Vocabulary
    chat_template: str | None
    graph: PublishedGraph | None = None


def inspect(path: str | os.PathLike[str]) -> ModelFile:
    """Look at a model file, a GGUF or a published ONNX graph, without loading it.

    The fingerprint hashes the size of the file, its whole header, and of each tensor up to 4 KiB from the
    middle: a few megabytes instead of all. Retraining or requantising a tensor changes it; somebody who edits
    single bytes in between goes unnoticed, so it is a cache key and no signature.

    A model that is split into several files is named by the first of them; the others lie beside it.

    Raises:
        ModelNotFound, NotAModel, TruncatedModel: see ``read_header``.
        UnsupportedModel: a GGUF that holds no whole language model, or a later part of one, or an ONNX graph of
            another kind.
    """
    if is_published(path):
        from edge_spec.models.onnx import inspect_published

        return inspect_published(path)
    header = read_header(path)
    headers = (header, *map(read_header, _further_parts(header)))
    tensors = tuple(tensor for part in headers for tensor in part.tensors)
    _refuse_what_is_no_whole_model(header, len(tensors))
    facts = _Facts(header, len(tensors))
    n_layers = facts.required("block_count")
    n_embd = facts.required("embedding_length")
    n_heads = facts.per_layer("attention.head_count", n_layers, default=None)
    n_head = max(n_heads)
    head_dim = n_embd // n_head if n_head else 0
    vocabulary = read_vocabulary(header)
    types = _bytes_per_type(tensors)
    in_layers = _bytes_per_type(tuple(t for t in tensors if t.name.startswith("blk.")))
    merges = header.metadata.get("tokenizer.ggml.merges")
    name = header.metadata.get("general.name")
    template = header.metadata.get("tokenizer.chat_template")
    return ModelFile(
        path=header.path,
        parts=tuple(part.path for part in headers),
        fingerprint=_fingerprint(headers),
        architecture=facts.architecture,
        name=(_printable(name) if isinstance(name, str) else "") or header.path.stem,
        n_layers=n_layers,
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=facts.per_layer("attention.head_count_kv", n_layers, default=n_heads),
        head_dim_k=facts.optional("attention.key_length", head_dim),
        head_dim_v=facts.optional("attention.value_length", head_dim),
        n_ctx_train=facts.optional("context_length", 0),
        n_vocab=_n_vocab(header, tensors, vocabulary, facts),
        sliding_window=facts.optional("attention.sliding_window", 0) or None,
        tensors=tensors,
        n_merges=merges.length if isinstance(merges, GGUFArray) else 0,
        n_params=sum(tensor.n_elements for tensor in tensors),
        weight_bytes=sum(types.values()),
        tensor_types=types,
        quantisation=next(iter(in_layers or types)),
        vocabulary=vocabulary,
        chat_template=template if isinstance(template, str) else None,
    )


def is_published(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of an ONNX graph, or of a folder with one, by its name alone."""
    return Path(path).suffix == ".onnx" or Path(path).is_dir()


def _further_parts(header: GGUFHeader) -> list[Path]:
    """The other files of a model that is split, named as llama-gguf-split names them."""
    n_parts, number, path = header.metadata.get("split.count", 0), header.metadata.get("split.no", 0), header.path
    if type(n_parts) is not int or n_parts < 2:
        return []
    name = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", path.name)
    if number != 0 or name is None or int(name[2]) != n_parts:
        raise UnsupportedModel(
            f"{path} is one of {n_parts} parts of a model", hint=f"give the first one, ...-00001-of-{n_parts:05}.gguf"
        )
    return [path.with_name(f"{name[1]}-{part:05}-of-{name[2]}.gguf") for part in range(2, n_parts + 1)]


def _refuse_what_is_no_whole_model(header: GGUFHeader, n_tensors: int) -> None:
    metadata, path = header.metadata, header.path
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(f"{path} is of type {str(kind)[:32]!r}, not a model", hint="give the model itself")
    if not n_tensors:
        raise UnsupportedModel(f"{path} holds no weights", hint="it may be a vocabulary; get the whole model")


class _Facts:
    """The metadata that is named after the architecture, checked as it is read."""

    def __init__(self, header: GGUFHeader, n_tensors: int) -> None:
        self._header = header
        self._n_tensors = n_tensors
        architecture = header.metadata.get("general.architecture")
        # It will be shown: nothing that could steer a terminal.
        if not isinstance(architecture, str) or not 0 < len(architecture) <= 64 or not architecture.isprintable():
            raise self._unsupported("does not say what architecture it has")
        self.architecture = architecture

    def _unsupported(self, what: str) -> UnsupportedModel:
        return UnsupportedModel(f"{self._header.path} {what}", hint="convert the model again with a current llama.cpp")

    def _get(self, key: str) -> Value | None:
        return self._header.metadata.get(f"{self.architecture}.{key}")

    def _checked(self, key: str, value: object) -> int:
        if type(value) is not int or not 0 <= value < 1 << 31:
            raise self._unsupported(f"has no usable number for {self.architecture}.{key}")
        return value

    def required(self, key: str) -> int:
        """A number above 0."""
        value = self._checked(key, self._get(key))
        if value == 0:
            raise self._unsupported(f"has {self.architecture}.{key} = 0")
        return value

    def optional(self, key: str, default: int) -> int:
        """A number, ``default`` where the file says nothing or, as some do, gives one per layer."""
        value = self._get(key)
        return default if value is None or isinstance(value, GGUFArray) else self._checked(key, value)

    def per_layer(self, key: str, n_layers: int, *, default: tuple[int, ...] | None) -> tuple[int, ...]:
        """A number for each layer, ``[n_layers]``, whether the file gives one or all."""
        value = self._get(key)
        if isinstance(value, GGUFArray):
            if value.length != n_layers:
                raise self._unsupported(f"has {value.length} values of {self.architecture}.{key}, {n_layers} layers")
            return tuple(self._checked(key, item) for item in value.decode())
        if value is None and default is not None:
            return default
        # The layers themselves bound what is allocated here: a damaged count must not.
        if n_layers > self._n_tensors:
            raise self._unsupported(f"claims {n_layers} layers and holds {self._n_tensors} tensors")
        return (self._checked(key, value),) * n_layers


def _n_vocab(header: GGUFHeader, tensors: tuple[TensorInfo, ...], vocabulary: Vocabulary, facts: _Facts) -> int:
    embedding = next((t for t in tensors if t.name == "token_embd.weight"), None)
    rows = embedding.shape[-1] if embedding is not None else facts.optional("vocab_size", 0)
    if vocabulary.n_tokens and rows and vocabulary.n_tokens != rows:
        raise UnsupportedModel(
            f"{header.path} lists {vocabulary.n_tokens} tokens and has embeddings for {rows}",
            hint="convert the model again with a current llama.cpp",
        )
    return vocabulary.n_tokens or rows


def _printable(name: str) -> str:
    """The name as it may be shown, without what could steer a terminal."""
    return "".join(letter for letter in name[:128] if letter.isprintable()).strip()


def _bytes_per_type(tensors: tuple[TensorInfo, ...]) -> dict[str, int]:
    types: dict[str, int] = {}
    for tensor in tensors:
        types[tensor.type_name] = types.get(tensor.type_name, 0) + tensor.n_bytes
    return dict(sorted(types.items(), key=lambda item: (-item[1], item[0])))


def _fingerprint(parts: tuple[GGUFHeader, ...]) -> str:
    from hashlib import blake2b

    state = blake2b(digest_size=16)
    for header in parts:
        state.update(header.file_bytes.to_bytes(8, "little"))
        try:
            with header.path.open("rb") as file:
                state.update(file.read(header.data_offset))
                for tensor in header.tensors:
                    n = min(tensor.n_bytes, _SAMPLE_BYTES)
                    file.seek(header.data_offset + tensor.offset + (tensor.n_bytes - n) // 2)
                    sample = file.read(n)
                    if len(sample) < n:
                        raise truncated(header.path, n - len(sample))
                    state.update(sample)
        except OSError as error:
            raise ModelNotFound(f"{header.path} cannot be read ({error.strerror})", hint="was it moved?") from error
    return state.hexdigest()
