"""Differences between two versions that are intended, as listed in ``checkout_expected.toml`` with their reasons."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

__all__ = ["Difference", "Expectations"]

_LIST = Path(__file__).with_suffix(".toml")

Difference = tuple[str, str]
"""Where, as names joined by `` > ``, and what differs there."""


class Expectations:
    """What is expected to differ.

    An entry of the file has a ``reason``, ``places`` in which ``*`` stands for anything, and, where only one change of
    them is meant, what it ``says``, in which ``*`` stands for anything as well.
    """

    def __init__(self, path: Path = _LIST) -> None:
        self._entries: list[tuple[str, str, re.Pattern[str], re.Pattern[str]]] = [
            (entry["reason"], place, _pattern(place), _pattern(entry.get("says", "*")))
            for entry in tomllib.loads(path.read_text("utf-8"))["expected"]
            for place in entry["places"]
        ]
        self._seen = [0] * len(self._entries)

    def unexpected(self, found: Iterable[Difference]) -> list[Difference]:
        """Differences that no entry expects; the others are counted for ``by_reason`` and ``stale``."""
        rest = []
        for place, said in found:
            matching = [
                number
                for number, (_, _, places, says) in enumerate(self._entries)
                if places.fullmatch(place) and says.fullmatch(said)
            ]
            for number in matching:
                self._seen[number] += 1
            if not matching:
                rest.append((place, said))
        return rest

    def by_reason(self) -> dict[str, int]:
        """How many differences each reason has explained."""
        total: dict[str, int] = {}
        for (reason, *_), n_seen in zip(self._entries, self._seen, strict=True):
            total[reason] = total.get(reason, 0) + n_seen
        return total

    def stale(self, sections: Iterable[str]) -> list[str]:
        """Places in these sections that were expected to differ and do not."""
        sections = tuple(f"{section} > " for section in sections)
        return [
            place
            for (_, place, *_), n_seen in zip(self._entries, self._seen, strict=True)
            if not n_seen and place.startswith(sections)
        ]


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)
