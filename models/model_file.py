"""What a model file holds, as far as planning, pairing and caching need to know."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edge_spec.errors import ModelNotFound, UnsupportedModel
from edge_spec.models.gguf_cursor import truncated
from edge_spec.models.gguf_header import GGUFArray, GGUFHeader, TensorInfo, Value, read_header
from edge_spec.models.vocabulary import Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from edge_spec.models.published import PublishedGraph

__all__ = ["ModelFile", "inspect", "is_published"]

_SAMPLE_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A model file, looked at but not loaded.

    Attributes:
        path: the file.
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

    Raises:
        ModelNotFound, NotAModel, TruncatedModel: see ``read_header``.
        UnsupportedModel: a GGUF that holds no whole language model, or an ONNX graph of another kind.
    """
    if is_published(path):
        from edge_spec.models.published import inspect_published

        return inspect_published(path)
    header = read_header(path)
    _refuse_what_is_no_whole_model(header)
    facts = _Facts(header)
    n_layers = facts.required("block_count")
    n_embd = facts.required("embedding_length")
    n_heads = facts.per_layer("attention.head_count", n_layers, default=None)
    n_head = max(n_heads)
    head_dim = n_embd // n_head if n_head else 0
    vocabulary = read_vocabulary(header)
    types = _bytes_per_type(header.tensors)
    in_layers = _bytes_per_type(tuple(t for t in header.tensors if t.name.startswith("blk.")))
    name = header.metadata.get("general.name")
    template = header.metadata.get("tokenizer.chat_template")
    return ModelFile(
        path=header.path,
        fingerprint=_fingerprint(header),
        architecture=facts.architecture,
        name=(_printable(name) if isinstance(name, str) else "") or header.path.stem,
        n_layers=n_layers,
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=facts.per_layer("attention.head_count_kv", n_layers, default=n_heads),
        head_dim_k=facts.optional("attention.key_length", head_dim),
        head_dim_v=facts.optional("attention.value_length", head_dim),
        n_ctx_train=facts.optional("context_length", 0),
        n_vocab=_n_vocab(header, vocabulary, facts),
        sliding_window=facts.optional("attention.sliding_window", 0) or None,
        n_params=sum(tensor.n_elements for tensor in header.tensors),
        weight_bytes=sum(types.values()),
        tensor_types=types,
        quantisation=next(iter(in_layers or types)),
        vocabulary=vocabulary,
        chat_template=template if isinstance(template, str) else None,
    )


def is_published(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of an ONNX graph, or of a folder with one, by its name alone."""
    return Path(path).suffix == ".onnx" or Path(path).is_dir()


def _refuse_what_is_no_whole_model(header: GGUFHeader) -> None:
    metadata, path = header.metadata, header.path
    n_parts = metadata.get("split.count", 0)
    if isinstance(n_parts, int) and n_parts > 1:
        raise UnsupportedModel(
            f"{path} is one of {n_parts} parts of a model", hint="join them with llama-gguf-split --merge"
        )
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(
            f"{path} is of type {str(kind)[:32]!r}, not a model", hint="give the model itself"
        )
    if not header.tensors:
        raise UnsupportedModel(f"{path} holds no weights", hint="it may be a vocabulary; get the whole model")


class _Facts:
    """The metadata that is named after the architecture, checked as it is read."""

    def __init__(self, header: GGUFHeader) -> None:
        self._header = header
        architecture = header.metadata.get("general.architecture")
        # It will be shown: nothing that could steer a terminal.
        if (
            not isinstance(architecture, str)
            or not 0 < len(architecture) <= 64
            or not architecture.isprintable()
        ):
            raise self._unsupported("does not say what architecture it has")
        self.architecture = architecture

    def _unsupported(self, what: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{self._header.path} {what}", hint="convert the model again with a current llama.cpp"
        )

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
                raise self._unsupported(
                    f"has {value.length} values of {self.architecture}.{key}, {n_layers} layers"
                )
            return tuple(self._checked(key, item) for item in value.decode())
        if value is None and default is not None:
            return default
        # The layers themselves bound what is allocated here: a damaged count must not.
        if n_layers > len(self._header.tensors):
            raise self._unsupported(f"claims {n_layers} layers and holds {len(self._header.tensors)} tensors")
        return (self._checked(key, value),) * n_layers


def _n_vocab(header: GGUFHeader, vocabulary: Vocabulary, facts: _Facts) -> int:
    embedding = next((t for t in header.tensors if t.name == "token_embd.weight"), None)
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


def _fingerprint(header: GGUFHeader) -> str:
    from hashlib import blake2b

    state = blake2b(header.file_bytes.to_bytes(8, "little"), digest_size=16)
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
        raise ModelNotFound(
            f"{header.path} cannot be read ({error.strerror})", hint="was it moved?"
        ) from error
    return state.hexdigest()
