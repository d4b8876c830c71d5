"""Tokenizers, the identity of a vocabulary, and the bytes of tokens."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["TOKEN_BYTES_LIMIT", "FileTokenizer", "TokenBytes", "Tokenizer", "Vocabulary", "VocabularyIdentity"]

TOKEN_BYTES_LIMIT = 1 << 19
"""The size of the cache of one tokenizer, enough for more than a thousand tokens."""


_KEY_BYTES = 32

_MEDIA = re.compile(rb"<(?=[^<>]*[_|])[^<>\s]*(?:image|audio|video|vision)[^<>\s]*>|\[multimodal\]")
"""Tokens that mark an image or a sound, such as ``<start_of_image>``; ``<img>``, ``<audio>`` and so on are HTML.

GGUFs list them as user-defined like tags and white space, which are text, and llama.cpp shows them.
"""


class TokenBytes:
    """Caches the bytes of tokens up to a limit; when it is full, it is emptied.

    Args:
        max_bytes: its largest size, keys and the table itself included.
    """

    def __init__(self, *, max_bytes: int = TOKEN_BYTES_LIMIT) -> None:
        self._max_bytes = max_bytes
        self._known: dict[int, bytes] = {}
        self._content_bytes = 0

    @property
    def held_bytes(self) -> int:
        """The current size of the cache."""
        return sys.getsizeof(self._known) + self._content_bytes

    def of(self, token: int, read: Callable[[int], bytes]) -> bytes:
        """Return a token's bytes, empty for marks of images and sounds; ``read`` is called if they are not cached."""
        found = self._known.get(token)
        if found is None:
            found = read(token)
            if found[:1] in (b"<", b"[") and _MEDIA.fullmatch(found):
                found = b""
            n_bytes = sys.getsizeof(found) + _KEY_BYTES
            # A full table grows to twice its size, and exists in both sizes meanwhile.
            if 4 * sys.getsizeof(self._known) + self._content_bytes + n_bytes > self._max_bytes:
                self._known = {}
                self._content_bytes = 0
            self._known[token] = found
            self._content_bytes += n_bytes
        return found


class Vocabulary(Protocol):
    """The part of a tokenizer that a reply needs."""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes a token stands for."""

    def ends(self, token: int) -> bool:
        """Return whether a token ends a reply."""


class Tokenizer(Vocabulary, Protocol):
    """Text to tokens and back."""

    adds_bos: bool

    def tokenize(self, text: str, *, add_special: bool, controls: bool = True) -> list[int]:
        """Return the token ids of a text.

        Args:
            add_special: add the tokens that the model expects around every text.
            controls: names of control tokens in it become these tokens; else they are text.
        """

    @property
    def control_names(self) -> Collection[str]:
        """The names of tokens without text."""

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, without control tokens."""

    def name(self, token: int) -> str:
        """Return the text of a token, control tokens included."""

    @property
    def bos(self) -> int:
        """The token that begins a text, -1 if there is none."""

    @property
    def eos(self) -> int:
        """The token that ends a text, -1 if there is none."""


@dataclass(frozen=True, kw_only=True)
class VocabularyIdentity:
    """The identity of a vocabulary.

    Attributes:
        n_tokens: number of token ids; 0 if the file lists none.
        kind: the tokenizer, such as ``gpt2`` or ``llama``; empty if the file names none.
        pre: how a GGUF's cuts texts into words; empty if the file does not say.
        tokens_hash: hash of the kind and the texts. Equal hashes: every id means the same text.
        fingerprint: hash of all that, of the token types, and of the tokens that begin and end a text. Equal
            fingerprints: the two vocabularies are interchangeable.
    """

    n_tokens: int
    kind: str
    tokens_hash: str
    fingerprint: str
    pre: str = ""


class FileTokenizer(Tokenizer, Protocol):
    """The tokenizer of a model file.

    Attributes:
        token_cache: the bytes of tokens that were asked for lately.
    """

    token_cache: TokenBytes

    @property
    def n_vocab(self) -> int:
        """Number of token ids."""

    def close(self) -> None:
        """Free the tokenizer. Safe to call twice."""
