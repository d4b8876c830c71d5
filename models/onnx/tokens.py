"""The tokens of a ``tokenizer.json``, under the names that a GGUF would list."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from edge_spec.errors import BAD_RECORD, ModelNotFound, NotAModel
from edge_spec.models.onnx.config_files import TOKENIZER, read_json
from edge_spec.tokens.tokenizer import VocabularyIdentity

__all__ = ["TokenizerSize", "kind_of", "read_tokens", "size_of_tokenizer", "texts_by_id", "vocabulary_of"]

_LENGTH = struct.Struct("<Q")
_KINDS = {"Unigram": "t5", "WordPiece": "bert"}


@dataclass(frozen=True, kw_only=True)
class TokenizerSize:
    """Counts that determine the memory of a loaded ``tokenizer.json``.

    Attributes:
        n_tokens: including added ones.
        n_merges: merges of pairs.
        in_pairs: each merge is a list of two texts, as newer files write it, and not one text with a space.
        n_prefixes: distinct prefixes, in bytes, of all tokens of a unigram model, which keeps a trie of them; 0 for
            other kinds.
        file_bytes: size of the file.
    """

    n_tokens: int
    n_merges: int = 0
    in_pairs: bool = False
    n_prefixes: int = 0
    file_bytes: int


def size_of_tokenizer(folder: Path, tokens: Collection[str], model: Mapping[str, Any]) -> TokenizerSize:
    """Return the size of a tokenizer.

    Args:
        tokens, model: what ``read_tokens`` returns.
    """
    merges = model.get("merges")
    merges = merges if isinstance(merges, list) else []
    unigram = model.get("type") == "Unigram" or isinstance(model.get("vocab"), list)
    return TokenizerSize(
        n_tokens=len(tokens),
        n_merges=len(merges),
        in_pairs=bool(merges) and not isinstance(merges[0], str),
        n_prefixes=_n_prefixes(tokens) if unigram else 0,
        file_bytes=(folder / TOKENIZER).stat().st_size,
    )


def _n_prefixes(tokens: Collection[str]) -> int:
    n, before = 0, b""
    for raw in sorted(text.encode("utf-8", "surrogatepass") for text in tokens):
        shared = next((k for k, (a, b) in enumerate(zip(before, raw, strict=False)) if a != b), len(before))
        n += len(raw) - shared
        before = raw
    return n


def read_tokens(folder: Path) -> tuple[dict[str, int], Mapping[str, Any]]:
    """Return the id of each token by its text, and the part of the file that describes the model.

    Raises:
        ModelNotFound: there is no ``tokenizer.json``. NotAModel: it lists no tokens.
    """
    path = folder / TOKENIZER
    settings = read_json(path)
    if not settings:
        raise ModelNotFound(f"there is no {path}", hint="download it from where the graph comes from")
    model = settings.get("model")
    try:
        if not isinstance(model, dict):
            raise TypeError
        listed = model["vocab"]
        tokens = {str(text): n for n, (text, _) in enumerate(listed)} if isinstance(listed, list) else dict(listed)
        tokens |= {added["content"]: added["id"] for added in settings.get("added_tokens") or ()}
        if not tokens or not all(type(n) is int and isinstance(text, str) for text, n in tokens.items()):
            raise ValueError
    except BAD_RECORD:
        raise NotAModel(f"{path} lists no tokens", hint="download it again") from None
    return tokens, model


def kind_of(model: Mapping[str, Any]) -> str:
    """Return the kind of tokenizer, such as ``gpt2`` or ``llama``."""
    return _KINDS.get(str(model.get("type")), "llama" if model.get("byte_fallback") else "gpt2")


def texts_by_id(tokens: Mapping[str, int], n_vocab: int) -> Sequence[str]:
    """Return the text of each token id, ``[n_vocab]``; ids without one are named as a conversion to GGUF names them."""
    texts = [f"[PAD{token}]" for token in range(n_vocab)]
    for text, token in tokens.items():
        if 0 <= token < n_vocab:
            texts[token] = text
    return texts


def vocabulary_of(tokens: Mapping[str, int], kind: str, n_vocab: int, special: Sequence[int]) -> VocabularyIdentity:
    """Return the identity of a vocabulary; the hash of its tokens equals that of a GGUF with the same tokens.

    Args:
        special: the tokens that begin and end a text.
    """
    state = blake2b(f"{kind!r}:{n_vocab}:".encode(), digest_size=16)
    for text in texts_by_id(tokens, n_vocab):
        raw = text.encode("utf-8", "surrogatepass")
        state.update(_LENGTH.pack(len(raw)) + raw)
    tokens_hash = state.hexdigest()
    state.update(repr(sorted(special)).encode())
    return VocabularyIdentity(n_tokens=n_vocab, kind=kind, tokens_hash=tokens_hash, fingerprint=state.hexdigest())
