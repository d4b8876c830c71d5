"""Finding special tokens in a text, before what lies between them is tokenized."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

__all__ = ["SpecialTokens"]

_LONG = 64
"""Longer names are looked for one by one: comparing them at every place would take quadratic time."""

_SPACE = " \t\n\r\f\v"


class SpecialTokens:
    """Tokens that are looked for in a text by their names: the longest first, each from left to right.

    Args:
        names: token ids by name.
        takes_before, takes_behind: tokens that take the white space before or behind them.
    """

    def __init__(
        self,
        names: Mapping[str, int],
        *,
        takes_before: frozenset[int] = frozenset(),
        takes_behind: frozenset[int] = frozenset(),
    ) -> None:
        self._names = dict(sorted(names.items(), key=lambda item: -len(item[0].encode())))
        self._takes_before, self._takes_behind = takes_before, takes_behind
        # By the first two characters: Gemma has runs of up to 31 spaces.
        lengths: dict[str, set[int]] = {}
        for name in names:
            if len(name) <= _LONG:
                lengths.setdefault(name[:2], set()).add(len(name))
        self._long = [name for name in names if len(name) > _LONG]
        self._lengths = {begin: sorted(found) for begin, found in lengths.items()}
        first = "".join(sorted({begin[0] for begin in lengths}))
        self._begin = re.compile(f"[{re.escape(first)}]" if first else "(?!)")

    def parts(self, text: str) -> Iterator[str | int]:
        """Yield special tokens, and the text between them, in order."""
        taken = [(len(text), len(text), -1)]
        present = self._present(text)
        for name, token in self._names.items():
            if name in present:
                taken = [*self._with(text, taken, name, token)]
        begin = 0
        for start, end, token in taken:
            if start > begin:
                yield text[begin:start]
            if token >= 0:
                yield token
            begin = end

    def _present(self, text: str) -> set[str]:
        """Return the names that occur in a text, also where others lie across them."""
        found = {name for name in self._long if name in text}
        for match in self._begin.finditer(text):
            at = match.start()
            for begin in (match[0], text[at : at + 2]):
                for length in self._lengths.get(begin, ()):
                    name = text[at : at + length]
                    if name in self._names:
                        found.add(name)
        return found

    def _with(
        self, text: str, taken: list[tuple[int, int, int]], name: str, token: int
    ) -> Iterator[tuple[int, int, int]]:
        """Yield what is taken of a text when a token is found in the rest of it, too."""
        begin = 0
        for start, end, other in taken:
            while (at := text.find(name, begin, start)) >= 0:
                behind = at + len(name)
                before = at
                if token in self._takes_before:
                    before = begin + len(text[begin:at].rstrip(_SPACE))
                if token in self._takes_behind:
                    behind = start - len(text[behind:start].lstrip(_SPACE))
                yield before, behind, token
                begin = behind
            yield start, end, other
            begin = end
