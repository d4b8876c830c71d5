"""Cut a text into the words within which pairs are merged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from edge_spec.models.gguf_tokenizer.categories import (
    HAN,
    HAN_UNASSIGNED,
    LETTER,
    MARK,
    NUMBER,
    PUNCTUATION,
    SYMBOL,
    collapsed,
)
from edge_spec.models.gguf_tokenizer.pretokenizers import Cut

__all__ = ["Splitter"]

_CLASSES = {
    r"\p{N}": NUMBER + "0-9",
    r"\p{L}": LETTER + "A-Za-z",
    r"\p{Lu}": LETTER + "A-Z",
    r"\p{Ll}": LETTER + "a-z",
    r"\p{P}": PUNCTUATION + r"!-#%-*,-/:;?@\[-\]_{}",
    r"\p{M}": MARK,
    r"\p{S}": SYMBOL + r"$+<->^`|~",
    r"\p{HanLetter}": HAN,
    r"\p{Han}": HAN + HAN_UNASSIGNED,
}
"""Each category in a collapsed text, as the content of brackets."""

_WIDE_SPACE = re.compile("[\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")


class Splitter:
    """Cuts a text into words.

    Args:
        cuts: applied one after the other, each within the parts of the previous ones.
    """

    def __init__(self, cuts: Sequence[Cut]) -> None:
        self._cuts = [_compiled(cut) if isinstance(cut, str) else (True, cut) for cut in cuts]
        self._tells_han = any(isinstance(cut, str) and r"\p{Han}" in cut for cut in cuts)

    def words(self, text: str) -> Iterator[str]:
        """Yield the words of a text; joined they are the text."""
        plain = text if text.isascii() else _WIDE_SPACE.sub("\v", text)
        by_category = collapsed(text, han=self._tells_han) if any(each for each, _ in self._cuts) else text
        ends: Iterable[int] = (len(text),)
        for is_by_category, cut in self._cuts:
            ends = _cut(by_category if is_by_category else plain, ends, cut)
        begin = 0
        for end in ends:
            if end > begin:
                yield text[begin:end]
                begin = end


def _cut(text: str, ends: Iterable[int], cut: Callable[[str, int, int], Iterator[int]]) -> Iterator[int]:
    begin = 0
    for end in ends:
        yield from cut(text, begin, end)
        begin = end


def _compiled(expression: str) -> tuple[bool, Callable[[str, int, int], Iterator[int]]]:
    """Return whether an expression applies to the collapsed text, and the function that cuts by it."""
    found = expression
    for name, letters in _CLASSES.items():
        found = found.replace(name, letters)
    pattern = re.compile(found, re.ASCII)

    def ends(text: str, begin: int, end: int) -> Iterator[int]:
        for match in pattern.finditer(text, begin, end):
            yield match.start()
            yield match.end()
        yield end

    return found != expression, ends
