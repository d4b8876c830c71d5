"""Long texts in parts that tokenize to the same ids: in one piece special tokens take llama.cpp quadratic time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

__all__ = ["TextCutter"]


class TextCutter:
    """Cuts texts before tokens that llama.cpp looks for before it tokenizes what lies between them.

    It may, if no other one lies across the cut and none takes white space before it.

    Args:
        names: the text of each, and whether it takes the white space before it.
        whole_bytes: shorter texts stay whole.
        least_bytes: no part but the last is shorter.
    """

    def __init__(self, names: Mapping[bytes, bool], *, whole_bytes: int = 1 << 14, least_bytes: int = 1 << 10) -> None:
        self._whole_bytes, self._least_bytes = whole_bytes, least_bytes
        known = sorted(filter(None, names), key=len, reverse=True)
        self._longest = len(known[0]) if known else 0
        self._cuts = _any_of([name for name in known if not names[name]])
        # Looks ahead, so that names that overlap are all found.
        self._anywhere = re.compile(b"(?=(" + _any_of(known).pattern + b"))")

    def parts(self, raw: bytes) -> Iterator[bytes]:
        """Yield the parts of a text, in order."""
        begin = 0
        if len(raw) > self._whole_bytes and self._longest:
            for found in self._cuts.finditer(raw):
                if found.start() - begin >= self._least_bytes and not self._lies_across(raw, found.start()):
                    yield raw[begin : found.start()]
                    begin = found.start()
        yield raw[begin:]

    def _lies_across(self, raw: bytes, cut: int) -> bool:
        first = max(0, cut - self._longest)
        before = self._anywhere.finditer(raw, first, cut + self._longest)
        return any(found.start() < cut < found.end(1) for found in before)


def _any_of(names: list[bytes]) -> re.Pattern[bytes]:
    return re.compile(b"|".join(map(re.escape, names)) or b"(?!)")
