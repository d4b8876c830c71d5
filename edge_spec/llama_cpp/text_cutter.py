"""Long texts in parts that tokenize to the same ids: in one piece special tokens take llama.cpp quadratic time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

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
        self._all = _Names(names)
        self._cuts = _Names(name for name, takes_before in names.items() if not takes_before)

    def parts(self, raw: bytes) -> Iterator[bytes]:
        """Yield the parts of a text, in order."""
        begin = 0
        if len(raw) > self._whole_bytes:
            for cut, _ in self._cuts.found(raw):
                if cut - begin >= self._least_bytes and not self._lies_across(raw, cut):
                    yield raw[begin:cut]
                    begin = cut
        yield raw[begin:]

    def finds_none(self, raw: bytes) -> bool:
        """Return whether a text is known to have no such token; where no names are known it is not."""
        return self._all.longest > 0 and next(self._all.found(raw), None) is None

    def _lies_across(self, raw: bytes, cut: int) -> bool:
        first = max(0, cut - self._all.longest)
        return any(start < cut < end for start, end in self._all.found(raw, first, cut))


class _Names:
    """Looks for names. Six thousand alternatives of a pattern would be tried at every place where one of them begins.

    Attributes:
        longest: the bytes of the longest one.
    """

    def __init__(self, names: Iterable[bytes]) -> None:
        self._names = frozenset(filter(None, names))
        self.longest = max(map(len, self._names), default=0)
        lengths: dict[bytes, set[int]] = {}
        for name in self._names:
            lengths.setdefault(name[:2], set()).add(len(name))
        self._lengths = {begin: sorted(found, reverse=True) for begin, found in lengths.items()}
        first = b"".join(sorted({re.escape(name[:1]) for name in self._names}))
        self._begin = re.compile(b"[" + first + b"]" if first else b"(?!)")

    def found(self, raw: bytes, first: int = 0, last: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield where the longest name begins and ends, at each place at which one begins, and they may overlap."""
        for place in self._begin.finditer(raw, first, len(raw) if last is None else last):
            at = place.start()
            for begin in (raw[at : at + 2], raw[at : at + 1]):
                length = next((n for n in self._lengths.get(begin, ()) if raw[at : at + n] in self._names), 0)
                if length:
                    yield at, at + length
                    break
