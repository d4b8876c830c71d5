"""Common parts of tokenizers: the bytes and the names of tokens."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property

from edge_spec.errors import PromptError
from edge_spec.tokens.shown import SHOWN, is_mark
from edge_spec.tokens.tokenizer import TokenBytes

__all__ = ["KnownTokens", "ListedTokens", "require_unicode"]


class KnownTokens(ABC):
    """A tokenizer that knows the bytes of every token, so that text can be streamed.

    Attributes:
        token_cache: bytes of recently used tokens.
    """

    def __init__(self) -> None:
        self.token_cache = TokenBytes()

    @abstractmethod
    def _read_bytes(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of a token; those of control tokens only if ``special``."""

    @abstractmethod
    def ends(self, token: int) -> bool:
        """Return whether a token ends a reply."""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes a token stands for; nothing for ids without a token, and for control tokens that readers do
        not see."""
        return self.token_cache.of(token, lambda token: self._read_bytes(token) or self._shown(token))

    def _shown(self, token: int) -> bytes:
        """Return the name of a control token that is shown; nothing for all others."""
        name = self.name(token)
        return name.encode() if name in SHOWN and not self.ends(token) else b""

    def name(self, token: int) -> str:
        """Return the text of a token, control tokens included; empty for -1, which stands for none."""
        return self._read_bytes(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of a sequence of tokens, without control tokens."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")


class ListedTokens(KnownTokens):
    """A tokenizer whose vocabulary may list control tokens as text, and then reads them wherever it finds them."""

    @abstractmethod
    def _controls(self) -> Iterator[int]:
        """Yield the tokens that are listed as control tokens."""

    @abstractmethod
    def _found_anywhere(self) -> Iterator[int]:
        """Yield the tokens that are listed as text and found before the rest of a text becomes tokens.

        None where a space is put before texts: there they stay text.
        """

    @cached_property
    def control_names(self) -> frozenset[str]:
        """Names of the control tokens."""
        return frozenset(map(self.name, self._controls())) | self._marks

    @cached_property
    def _marks(self) -> frozenset[str]:
        """Names of the control tokens that are listed as text."""
        return frozenset(filter(is_mark, map(self.name, self._found_anywhere())))

    @cached_property
    def _apart(self) -> re.Pattern[str]:
        """Pattern that cuts a text so that marks in it become text, not control tokens."""
        known = [re.escape(name[1:]) for name in sorted(self._marks)]
        return re.compile("(?<=<)(?=" + "|".join(known) + ")" if known else "(?!)")


def require_unicode(text: str) -> bytes:
    """Return a text as UTF-8.

    Raises:
        PromptError: it contains lone surrogates.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(f"the text is not Unicode at character {error.start}", hint="decode it properly") from None
