"""The tokens of a ``tokenizer.json``, in the words in which a GGUF lists them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from edge_spec.errors import ModelNotFound, NotAModel
from edge_spec.models.published.beside import TOKENIZER, read_json
from edge_spec.models.vocabulary import Vocabulary

__all__ = ["read_tokens", "texts_by_id", "vocabulary_of"]

_LENGTH = struct.Struct("<Q")
_KINDS = {"Unigram": "t5", "WordPiece": "bert"}


def read_tokens(folder: Path) -> tuple[dict[str, int], str]:
    """Id of each token by its text, and the kind of tokenizer, such as ``gpt2`` or ``llama``.

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
    except (LookupError, TypeError, ValueError, AttributeError):
        raise NotAModel(f"{path} lists no tokens", hint="download it again") from None
    return tokens, _kind(model)


def _kind(model: Mapping[str, Any]) -> str:
    return _KINDS.get(str(model.get("type")), "llama" if model.get("byte_fallback") else "gpt2")


def texts_by_id(tokens: Mapping[str, int], n_vocab: int) -> Sequence[str]:
    """The text of each token id, ``[n_vocab]``; ids without one are called what a conversion to GGUF calls them."""
    texts = [f"[PAD{token}]" for token in range(n_vocab)]
    for text, token in tokens.items():
        if 0 <= token < n_vocab:
            texts[token] = text
    return texts


def vocabulary_of(tokens: Mapping[str, int], kind: str, n_vocab: int, special: Sequence[int]) -> Vocabulary:
    """Identity of a vocabulary; the hash of its tokens is that of a GGUF with the same ones.

    Args:
        special: the tokens that begin and end a text.
    """
    state = blake2b(f"{kind!r}:{n_vocab}:".encode(), digest_size=16)
    for text in texts_by_id(tokens, n_vocab):
        raw = text.encode("utf-8", "surrogatepass")
        state.update(_LENGTH.pack(len(raw)) + raw)
    tokens_hash = state.hexdigest()
    state.update(repr(sorted(special)).encode())
    return Vocabulary(n_tokens=n_vocab, kind=kind, tokens_hash=tokens_hash, fingerprint=state.hexdigest())
