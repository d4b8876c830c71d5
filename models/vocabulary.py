"""The identity of a vocabulary: whether two models mean the same by their token ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edge_spec.models.gguf.header import GGUFArray, GGUFHeader, Value

__all__ = ["VocabularyIdentity", "read_vocabulary"]

_TOKENS = "tokenizer.ggml.tokens"
_TYPES = "tokenizer.ggml.token_type"
_SETTINGS = (
    "tokenizer.ggml.model",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.add_bos_token",
)


@dataclass(frozen=True, kw_only=True)
class VocabularyIdentity:
    """The identity of a vocabulary.

    Attributes:
        n_tokens: number of token ids; 0 if the file lists none.
        kind: the tokenizer, such as ``gpt2`` or ``llama``; empty if the file names none.
        tokens_hash: hash of the kind and the texts. Equal hashes: every id means the same text.
        fingerprint: hash of all that, of the token types, and of the tokens that begin and end a text. Equal
            fingerprints: the two vocabularies are interchangeable.
    """

    n_tokens: int
    kind: str
    tokens_hash: str
    fingerprint: str


def read_vocabulary(header: GGUFHeader) -> VocabularyIdentity:
    """Identify the vocabulary of a file by hashes of its raw bytes, without decoding them.

    Raises:
        ModelNotFound, TruncatedModel: the file has changed since its header was read.
    """
    from hashlib import blake2b

    metadata = header.metadata
    tokens = token_texts(metadata)
    kind = metadata.get("tokenizer.ggml.model")
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
    )


def token_texts(metadata: Mapping[str, Value]) -> GGUFArray | None:
    """The array of token texts, by id; None if there is none."""
    tokens = metadata.get(_TOKENS)
    return tokens if isinstance(tokens, GGUFArray) else None


def _shown(value: Value | None) -> str:
    return "" if value is None or isinstance(value, GGUFArray) else repr(value)
