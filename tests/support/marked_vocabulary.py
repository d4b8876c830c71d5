"""A vocabulary of bytes in which marks of thoughts and calls are single tokens, as families add them to theirs."""

from __future__ import annotations

from functools import cache
from typing import Any

from edge_spec.sampling.guidance import GuidedGrammar, GuidedVocabulary
from edge_spec.sampling.lark import Lark
from edge_spec.tokens.shown import SHOWN

__all__ = ["Marked", "takes"]


class Marked:
    """The tokens."""

    marks = tuple(mark.encode() for mark in sorted(SHOWN))
    adds_bos, bos, eos = False, -1, 256 + len(SHOWN)
    n_vocab = eos + 1

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else self.marks[token - 256] if token < self.eos else b""

    def ends(self, token: int) -> bool:
        return token == self.eos

    def tokens(self, text: bytes) -> list[int]:
        found = []
        while text:
            mark = next((n for n, mark in enumerate(self.marks) if text.startswith(mark)), None)
            found.append(text[0] if mark is None else 256 + mark)
            text = text[1 if mark is None else len(self.marks[mark]) :]
        return found


@cache
def _vocabulary() -> GuidedVocabulary:
    marked: Any = Marked()
    return GuidedVocabulary(marked)


def takes(grammar: Lark, text: str) -> bool:
    """Return whether a reply may be this text and end there."""
    state: Any = GuidedGrammar(_vocabulary(), grammar).start()
    for token in [*Marked().tokens(text.encode()), Marked.eos]:
        if not state.allowed([token])[0]:
            return False
        state = state.after(token)
    return True
