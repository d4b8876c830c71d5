"""What the rest of the package asks of a tokenizer, whatever kind of file it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Tokenizer", "Vocabulary"]


class Vocabulary(Protocol):
    """What a reply needs to know of tokens."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for."""

    def ends(self, token: int) -> bool:
        """Whether a token ends a reply."""


class Tokenizer(Vocabulary, Protocol):
    """Text to tokens and back."""

    adds_bos: bool

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        """Token ids of a text."""

    def text(self, tokens: Sequence[int]) -> str:
        """The text of token ids, without control tokens."""

    def name(self, token: int) -> str:
        """The text of a token, control tokens included."""

    @property
    def bos(self) -> int:
        """The token that begins a text, -1 if there is none."""

    @property
    def eos(self) -> int:
        """The token that ends a text, -1 if there is none."""
