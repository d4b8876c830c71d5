"""A tokenizer for table models: a token per letter, and tokens with names that stand for no text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["LetterTokenizer"]


class LetterTokenizer:
    """A ``Tokenizer``: ids from 0 are the letters.

    Args:
        names: control tokens and how they are written.
        end: the token that ends a reply, -1 for none.
    """

    adds_bos = False
    bos = eos = -1

    def __init__(self, letters: str = "abcde", *, names: Mapping[int, str] | None = None, end: int = -1) -> None:
        self._letters, self._names, self._end = letters, names or {}, end

    def token_bytes(self, token: int) -> bytes:
        return self._letters[token : token + 1].encode()

    def ends(self, token: int) -> bool:
        return token == self._end

    @property
    def control_names(self) -> list[str]:
        return [*self._names.values()]

    def tokenize(self, text: str, *, add_special: bool, controls: bool = True) -> list[int]:
        tokens: list[int] = []
        while text:
            names = self._names.items() if controls else ()
            control = next((token for token, name in names if text.startswith(name)), None)
            tokens.append(self._letters.index(text[0]) if control is None else control)
            text = text[1 if control is None else len(self._names[control]) :]
        return tokens

    def text(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, tokens)).decode()

    def name(self, token: int) -> str:
        return self._names.get(token, self._letters[token : token + 1]) if token >= 0 else ""
