"""Inspect a GGUF: facts about its model, its parts, and its fingerprint."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path

from edge_spec.errors import ModelNotFound, UnsupportedModel
from edge_spec.models.gguf.cursor import truncated
from edge_spec.models.gguf.experts import wrong_experts
from edge_spec.models.gguf.header import GGUFArray, GGUFHeader, TensorInfo, Value, read_header
from edge_spec.models.gguf.layer_shapes import layer_shapes, wrong_shapes
from edge_spec.models.gguf.recurrent import recurrence_of
from edge_spec.models.gguf.trimmed import TARGET_TOKENS, trimmed_of
from edge_spec.models.head_facts import EAGLE3, head_facts, listed_layers
from edge_spec.models.model_file import ModelFile, bytes_by_type
from edge_spec.models.mtp import is_mtp_alone, mtp_head
from edge_spec.models.recommended_sampling import of_gguf
from edge_spec.models.safetensors_head import config_bytes, layers_read, read_safetensors_head
from edge_spec.models.split_files import parts_of, stem_of
from edge_spec.tokens.tokenizer import VocabularyIdentity

__all__ = ["inspect_gguf", "inspect_safetensors_head", "read_vocabulary"]

_SAMPLE_BYTES = 4096

_POSITIONS = "position_embd.weight"
_GROUPS = {"n_groups": "group_count", "n_groups_used": "group_used_count"}

_DIFFUSION = frozenset(("dream", "llada", "llada-moe", "rnd1"))
"""Architectures that llama.cpp runs by diffusion; as a model that writes token after token they end the process."""


def inspect_gguf(path: str | os.PathLike[str]) -> ModelFile:
    """Inspect a GGUF without loading it.

    A model that is split into several files is named by the first of them; the others are in the same folder.

    Raises:
        ModelNotFound, NotAModel, TruncatedModel: see ``read_header``.
        UnsupportedModel: it does not hold a whole language model, or is a later part of one.
    """
    header = read_header(path)
    headers = (header, *_further_parts(header))
    return _inspected(headers, layers=listed_layers(header.metadata))


def inspect_safetensors_head(path: str | os.PathLike[str]) -> ModelFile:
    """Inspect an EAGLE-3 head as it is published, a ``.safetensors`` file; raises what ``read_safetensors_head`` does.

    The fingerprint also covers the settings in the file beside it.
    """
    header = read_safetensors_head(Path(path))
    return _inspected((header,), config_bytes(header.path), layers=layers_read(header.path))


def _inspected(headers: tuple[GGUFHeader, ...], settings: bytes = b"", *, layers: tuple[int, ...] | None) -> ModelFile:
    """Return the facts of the parts of a model.

    Args:
        settings: the content of a file that belongs to it.
        layers: of a head, see ``HeadFacts``.
    """
    header = headers[0]
    tensors = tuple(tensor for part in headers for tensor in part.tensors)
    _require_a_whole_model(header, len(tensors))
    facts = _Facts(header, len(tensors))
    is_head = facts.architecture == EAGLE3
    _require_computable(header, () if is_head else tensors)
    if facts.architecture in _DIFFUSION:
        raise UnsupportedModel(
            f"{header.path} is a diffusion model ({facts.architecture}), which fills in a whole text at once",
            hint="choose a model that writes one token after another",
        )
    what = _NO_TEXT.get(facts.architecture, "")
    if what:
        raise UnsupportedModel(
            f"{header.path} is {what} ({facts.architecture}), which writes no text", hint="choose a language model"
        )
    n_layers = facts.required("block_count")
    n_embd = facts.required("embedding_length")
    # A layer for further tokens beside its model is all that its file has of the model's layers.
    is_mtp = is_mtp_alone(tensors)
    n_here = 1 if is_mtp else n_layers
    n_heads = facts.per_layer("attention.head_count", n_here, default=None)
    n_head = max(n_heads)
    head_dim = n_embd // n_head if n_head else 0
    experts = _experts(facts, n_here)
    state_bytes, without_cells = recurrence_of(tensors, n_embd, facts.optional)
    facts.refuse(_wrong_rotary(facts))
    n_head_kv = facts.per_layer("attention.head_count_kv", n_here, default=n_heads)
    windowed = facts.flags("attention.sliding_window_pattern", n_here)
    facts.refuse(wrong_shapes(facts.architecture, windowed, n_head_kv, facts.optional))
    head_dims, sources = layer_shapes(facts.architecture, windowed, facts.optional)
    shared = {layer for layer, source in enumerate(sources) if source != layer}
    vocabulary = read_vocabulary(header)
    n_vocab = _n_vocab(header, tensors, vocabulary, facts)
    types = bytes_by_type((tensor.type_name, tensor.n_bytes) for tensor in tensors)
    in_layers = bytes_by_type((t.type_name, t.n_bytes) for t in tensors if t.name.startswith("blk."))
    merges = header.metadata.get("tokenizer.ggml.merges")
    name = header.metadata.get("general.name")
    template = header.metadata.get("tokenizer.chat_template")
    named_license = header.metadata.get("general.license")
    found = ModelFile(
        path=header.path,
        parts=tuple(part.path for part in headers),
        fingerprint=_fingerprint(headers, settings),
        architecture=facts.architecture,
        name=(_printable(name) if isinstance(name, str) else "") or stem_of(header.path.name),
        n_layers=n_layers,
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=tuple(0 if layer in without_cells or layer in shared else n for layer, n in enumerate(n_head_kv)),
        head_dims=head_dims,
        experts=experts,
        sources=sources,
        head_dim_k=facts.optional("attention.key_length", head_dim),
        head_dim_v=facts.optional("attention.value_length", head_dim),
        n_ctx_train=facts.optional("context_length", 0),
        n_positions=next((each.shape[-1] for each in tensors if each.name == _POSITIONS), 0),
        n_vocab=n_vocab,
        state_bytes=state_bytes,
        latent_attention=_has_latent_attention(facts),
        sliding_window=facts.optional("attention.sliding_window", 0) or None,
        tensors=tensors,
        n_merges=merges.length if isinstance(merges, GGUFArray) else 0,
        n_params=sum(tensor.n_elements for tensor in tensors),
        weight_bytes=sum(types.values()),
        tensor_types=types,
        quantization=next(iter(in_layers or types)),
        vocabulary=vocabulary,
        chat_template=template if isinstance(template, str) else None,
        trimmed=trimmed_of(header.metadata) if TARGET_TOKENS in header.metadata else None,
        head=head_facts(header.metadata, tensors, n_vocab, layers=layers) if is_head else None,
        license=_printable(named_license) if isinstance(named_license, str) else "",
        sampling=of_gguf(header.metadata),
    )
    return (mtp_head(found) if is_mtp else None) or found


def _experts(facts: _Facts, n_layers: int) -> tuple[int, int]:
    """See ``ModelFile.experts``."""
    groups = {name: facts.optional(f"expert_{key}", 0) for name, key in _GROUPS.items()}
    n_used = max(facts.per_layer("expert_used_count", n_layers, default=(0,)))
    n_experts = facts.optional("expert_count", 0)
    facts.refuse(wrong_experts(facts.architecture, n_experts, n_used, **groups))
    return n_experts, n_used


def _wrong_rotary(facts: _Facts) -> str | None:
    """Return a wrong rotary dimension, as a clause, where plans or decodes of llama.cpp would end the process; None
    where they would not."""
    for kind in ("", "_swa"):
        width = facts.optional(f"attention.key_length{kind}", 0)
        # Layers with a window turn as many numbers as the others, if nothing is said of them.
        said = facts.optional(f"rope.dimension_count{kind}", facts.optional("rope.dimension_count", 0))
        if width and (said % 2 or said > width):
            where = f"{facts.architecture}.rope.dimension_count = {said}"
            return f"has {where}, of {width} numbers of a head{' with a window' if kind else ''}"
    return None


def _has_latent_attention(facts: _Facts) -> bool:
    """See ``ModelFile.latent_attention``; deepseek4 is built so without saying it in these keys."""
    lengths = (facts.optional("attention.key_length_mla", 0), facts.optional("attention.value_length_mla", 0))
    return all(lengths) or facts.architecture == "deepseek4"


def _further_parts(header: GGUFHeader) -> list[GGUFHeader]:
    """Return the headers of the other files of a split model, named as by llama-gguf-split."""
    n_parts, number, path = header.metadata.get("split.count", 0), header.metadata.get("split.no", 0), header.path
    if type(n_parts) is not int or n_parts < 2:
        return []
    names = parts_of(path.name)
    if number != 0 or len(names) != n_parts:
        raise UnsupportedModel(
            f"{path} is one of {n_parts} parts of a model", hint=f"use the first one, ...-00001-of-{n_parts:05}.gguf"
        )
    missing = next((name for name in names if not path.with_name(name).exists()), None)
    if missing is not None:
        raise ModelNotFound(
            f"{path} is the first of {n_parts} parts of a model, and {path.with_name(missing)} is missing",
            hint="get it again: all parts belong in one folder",
        )
    parts = [read_header(path.with_name(name)) for name in names[1:]]
    for place, part in enumerate(parts, start=1):
        if (part.metadata.get("split.no"), part.metadata.get("split.count")) != (place, n_parts):
            raise UnsupportedModel(
                f"{part.path} is not part {place + 1} of {n_parts} of a model, as its name says",
                hint="get all parts again",
            )
    held = [tensor.name for part in (header, *parts) for tensor in part.tensors]
    if len(set(held)) < len(held):
        raise UnsupportedModel(f"{path} and its parts hold a tensor twice", hint="get all parts again")
    return parts


def _require_a_whole_model(header: GGUFHeader, n_tensors: int) -> None:
    metadata, path = header.metadata, header.path
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(f"{path} is of type {str(kind)[:32]!r}, not a model", hint="use the model itself")
    if not n_tensors:
        raise UnsupportedModel(f"{path} holds no weights", hint="it may be a vocabulary only; get the whole model")


_NOT_WEIGHTS = frozenset(("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K"))
"""Types that no matrix may have: libraries cannot multiply by them, and some do not check."""

_EXACT = re.compile(r"norm|bias$|^rope_|ssm_(a|d|conv1d(_[qkv])?)\b|shortconv\.conv\b|sinks")
"""Names of tensors that are added or multiplied element by element, which libraries read as F32."""


def _require_computable(header: GGUFHeader, tensors: Iterable[TensorInfo]) -> None:
    """Raise for types of tensors, and numbers, with which libraries end the process or never return."""
    for tensor in tensors:
        is_exact = len(tensor.shape) == 1 or _EXACT.search(tensor.name)
        if tensor.type_name in _NOT_WEIGHTS or (is_exact and tensor.type_name != "F32"):
            wanted = "F32" if is_exact else "one that matrices can have"
            raise UnsupportedModel(
                f"{header.path} holds {tensor.name!r} in the type {tensor.type_name}, not {wanted}",
                hint="convert the model again with a current llama.cpp",
            )
    # A model without rotary embeddings may say 0 of them.
    has_rotary = any(key.endswith(".rope.freq_base") for key in header.metadata)
    for key, value in header.metadata.items():
        if key.endswith(".rope.dimension_sections") and isinstance(value, GGUFArray) and not any(value.raw()):
            raise UnsupportedModel(
                f"{header.path} has only zeros as {key}", hint="convert the model again with a current llama.cpp"
            )
        is_endless = has_rotary and value == 0 and key.endswith((".rope.dimension_count", ".rope.dimension_count_swa"))
        if is_endless or (key.endswith("epsilon") and not (isinstance(value, float) and 0 <= value < math.inf)):
            raise UnsupportedModel(
                f"{header.path} has {key} = {value!r:.32}", hint="convert the model again with a current llama.cpp"
            )


_ENCODERS = (
    *("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert"),
    *("gemma-embedding", "t5encoder"),
)
_NO_TEXT = {
    **dict.fromkeys(_ENCODERS, "an embedding model"),
    "t5": "an encoder with a decoder",
    "clip": "a projector of images",
    "wavtokenizer-dec": "a decoder of sounds",
}
"""Architectures of llama.cpp that do not write one token after another, and what they are."""


class _Facts:
    """The metadata whose keys begin with the architecture, checked as they are read."""

    def __init__(self, header: GGUFHeader, n_tensors: int) -> None:
        self._header = header
        self._n_tensors = n_tensors
        architecture = header.metadata.get("general.architecture")
        # It is printed: it must not contain control characters for a terminal.
        if not isinstance(architecture, str) or not 0 < len(architecture) <= 64 or not architecture.isprintable():
            raise self._unsupported("does not name its architecture")
        self.architecture = architecture

    def _unsupported(self, what: str) -> UnsupportedModel:
        return UnsupportedModel(f"{self._header.path} {what}", hint="convert the model again with a current llama.cpp")

    def refuse(self, wrong: str | None) -> None:
        """Raise if something is wrong, given as a clause without its subject."""
        if wrong is not None:
            raise self._unsupported(wrong)

    def _get(self, key: str) -> Value | None:
        return self._header.metadata.get(f"{self.architecture}.{key}")

    def _checked(self, key: str, value: object) -> int:
        if type(value) is not int or not 0 <= value < 1 << 31:
            raise self._unsupported(f"has no valid number for {self.architecture}.{key}")
        return value

    def required(self, key: str) -> int:
        """Return a number above 0."""
        value = self._checked(key, self._get(key))
        if value == 0:
            raise self._unsupported(f"has {self.architecture}.{key} = 0")
        return value

    def optional(self, key: str, default: int) -> int:
        """Return a number; ``default`` where the file has none or, as some do, one per layer."""
        value = self._get(key)
        return default if value is None or isinstance(value, GGUFArray) else self._checked(key, value)

    def per_layer(self, key: str, n_layers: int, *, default: tuple[int, ...] | None) -> tuple[int, ...]:
        """Return a number for each layer, ``[n_layers]``, whether the file gives one or all."""
        value = self._get(key)
        if isinstance(value, GGUFArray):
            if value.length != n_layers:
                raise self._unsupported(f"has {value.length} values of {self.architecture}.{key}, {n_layers} layers")
            return tuple(self._checked(key, item) for item in value.decode())
        if value is None and default is not None:
            return default
        # Bounds what is allocated here, where a damaged count would not.
        if n_layers > self._n_tensors:
            raise self._unsupported(f"claims {n_layers} layers and holds {self._n_tensors} tensors")
        return (self._checked(key, value),) * n_layers

    def flags(self, key: str, n_layers: int) -> tuple[bool, ...] | None:
        """Return a flag for each layer; None if the file does not have one for each."""
        value = self._get(key)
        if not isinstance(value, GGUFArray) or value.length != n_layers:
            return None
        return tuple(bool(flag) for flag in value.decode())


def _n_vocab(header: GGUFHeader, tensors: tuple[TensorInfo, ...], vocabulary: VocabularyIdentity, facts: _Facts) -> int:
    embedding = next((t for t in tensors if t.name == "token_embd.weight"), None)
    rows = embedding.shape[-1] if embedding is not None else facts.optional("vocab_size", 0)
    if vocabulary.n_tokens and rows and vocabulary.n_tokens != rows:
        raise UnsupportedModel(
            f"{header.path} lists {vocabulary.n_tokens} tokens and has embeddings for {rows}",
            hint="convert the model again with a current llama.cpp",
        )
    return vocabulary.n_tokens or rows


def _printable(name: str) -> str:
    """Return the name without control characters, which could change a terminal."""
    return "".join(letter for letter in name[:128] if letter.isprintable()).strip()


def _fingerprint(parts: tuple[GGUFHeader, ...], settings: bytes) -> str:
    state = blake2b(settings, digest_size=16)
    for header in parts:
        state.update(header.file_bytes.to_bytes(8, "little"))
        try:
            with header.path.open("rb") as file:
                state.update(file.read(header.data_offset))
                for tensor in header.tensors:
                    n = min(tensor.n_bytes, _SAMPLE_BYTES)
                    file.seek(tensor.offset + (tensor.n_bytes - n) // 2)
                    sample = file.read(n)
                    if len(sample) < n:
                        raise truncated(header.path, n - len(sample))
                    state.update(sample)
        except OSError as error:
            raise ModelNotFound(f"{header.path} cannot be read ({error.strerror})", hint="was it moved?") from error
    return state.hexdigest()


_TOKENS = "tokenizer.ggml.tokens"

_TYPES = "tokenizer.ggml.token_type"

_SETTINGS = (
    "tokenizer.ggml.model",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.add_bos_token",
)


def read_vocabulary(header: GGUFHeader) -> VocabularyIdentity:
    """Identify the vocabulary of a file by hashes of its raw bytes, without decoding them.

    Raises:
        ModelNotFound, TruncatedModel: the file has changed since its header was read.
    """
    metadata = header.metadata
    tokens = token_texts(metadata)
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    state = blake2b(digest_size=16)
    state.update(f"{kind!r}:{tokens.length if tokens else 0}:".encode())
    if tokens is not None:
        state.update(tokens.raw())
    tokens_hash = state.hexdigest()
    types = metadata.get(_TYPES)
    if isinstance(types, GGUFArray):
        state.update(types.raw())
    # With their names: a missing setting must not look like another one.
    state.update("".join(f"\x1f{key}={_shown(metadata.get(key))}" for key in _SETTINGS).encode())
    return VocabularyIdentity(
        n_tokens=tokens.length if tokens is not None else 0,
        kind=kind if isinstance(kind, str) else "",
        tokens_hash=tokens_hash,
        fingerprint=state.hexdigest(),
        pre=pre if isinstance(pre, str) else "",
    )


def token_texts(metadata: Mapping[str, Value]) -> GGUFArray | None:
    """Return the array of token texts, by id; None if there is none."""
    tokens = metadata.get(_TOKENS)
    return tokens if isinstance(tokens, GGUFArray) else None


def _shown(value: Value | None) -> str:
    return "" if value is None or isinstance(value, GGUFArray) else repr(value)
