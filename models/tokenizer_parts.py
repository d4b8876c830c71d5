"""Check the parts of a ``tokenizer.json``: allowed kinds, and how much text each may produce.

The library takes any number of parts of any kind, and ends a text, or the process, where they contradict themselves.
Only the kinds of published tokenizers are let through, and of these only what makes no more of a text than a multiple
of its length, in time that grows with it.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edge_spec.errors import BAD_RECORD

__all__ = ["why_not_bounded"]

_MOST_PARTS = 64
_MOST_GROWTH = 64
"""The most letters that all parts may make of each letter of a text."""

_LONGEST_PATTERN = 1 << 14
_LONGEST_PIECE = 64
"""The most letters that a part may put before a text, and tokens around it."""

_NORMALIZERS = frozenset(
    (
        "BertNormalizer",
        "ByteLevel",
        "Lowercase",
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Nmt",
        "Precompiled",
        "Prepend",
        "Replace",
        "Strip",
        "StripAccents",
    )
)
_SPLITTERS = frozenset(
    (
        "BertPreTokenizer",
        "ByteLevel",
        "CharDelimiterSplit",
        "Digits",
        "Metaspace",
        "Punctuation",
        "Split",
        "UnicodeScripts",
        "Whitespace",
        "WhitespaceSplit",
    )
)
_PROCESSORS = frozenset(("BertProcessing", "ByteLevel", "RobertaProcessing", "TemplateProcessing"))

_UNITS = {"ByteLevel": 4, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "BertNormalizer": 4}
"""The most letters that each kind makes of one; Unicode's normal forms do so once only."""


class _Unbounded(Exception):
    """Says why a part is refused."""


def why_not_bounded(tokenizer: Any) -> str | None:
    """Return why a tokenizer of the library is refused, as a clause; None if it is not.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``.
    """
    try:
        _check_normalizers(list(_parts(tokenizer.normalizer, "normalizers")))
        for part in _parts(tokenizer.pre_tokenizer, "pretokenizers"):
            _require_known(part, _SPLITTERS)
            if part["type"] == "Split":
                _check_pattern(part["pattern"])
        for part in _parts(tokenizer.post_processor, "processors"):
            _require_known(part, _PROCESSORS)
            if part["type"] == "TemplateProcessing":
                _check_template(part)
    except _Unbounded as error:
        return str(error)
    except BAD_RECORD:
        return "what it does to texts is not understood"
    return None


def _parts(component: Any, several: str) -> Iterator[dict[str, Any]]:
    """Yield the parts of a component in order; sequences are replaced by their parts."""
    if component is None:
        return
    n_parts, waiting = 0, [json.loads(component.__getstate__())]
    while waiting:
        part = waiting.pop()
        n_parts += 1
        if n_parts > _MOST_PARTS:
            raise _Unbounded(f"its {several} are more than {_MOST_PARTS}")
        if part["type"] == "Sequence":
            waiting += reversed(part[several])
        else:
            yield part


def _require_known(part: dict[str, Any], known: frozenset[str]) -> None:
    if part["type"] not in known:
        raise _Unbounded(f"it uses {str(part['type'])[:32]!r}, which published tokenizers do not")


def _check_normalizers(parts: list[dict[str, Any]]) -> None:
    growth, kinds = 1.0, set()
    for part in parts:
        kind = part["type"]
        _require_known(part, _NORMALIZERS)
        if kind == "Prepend" and len(part["prepend"]) > _LONGEST_PIECE:
            raise _Unbounded(f"its Prepend has {len(part['prepend'])} letters")
        if kind == "Precompiled":
            growth *= _check_charsmap(base64.b64decode(part["precompiled_charsmap"]))
        elif kind == "Replace":
            growth *= _replaced_growth(part)
        elif kind not in kinds:
            growth *= _UNITS.get(kind, 1)
        kinds.add(kind)
        if growth > _MOST_GROWTH * max(_UNITS.values()):
            raise _Unbounded(f"its normalizers can make a text {growth:.0f} times as long")


def _replaced_growth(part: dict[str, Any]) -> float:
    """Return how many letters a replacement makes of one."""
    content = len(part["content"])
    can_be_empty = _check_pattern(part["pattern"])
    if "Regex" in part["pattern"]:
        return max(1, content + can_be_empty)
    return max(1, math.ceil(content / len(part["pattern"]["String"])))


_LETTER = re.compile(r"\\[pP]\{\^?\w+\}|\\x\{\w+\}|\\.|\[(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]", re.DOTALL)
"""An escaped one, or a class."""

_GROUP = re.compile(r"\(([^()]*)\)([*+?]|\{\d*,?\d*\})?")
_LOOK = re.compile(r"\?<?[=!]")
_MARKS = re.compile(r"\?(?:[a-z-]*[:>]|<\w+>|[a-z-]+$)")
_UNIT = re.compile(r"([^*?+{}])([*+?]|\{\d*,?\d*\})?[+?]?", re.DOTALL)

_MOST_WAYS = 1000
"""The most ways to match bounded parts that are tried at each position of a text."""

_MANY = 100
"""A part that may repeat this often counts as endless."""


@dataclass(frozen=True)
class _Ways:
    """The number of ways to match a pattern from one position of a text.

    Attributes:
        bounded: those of what has an end.
        endless: repetitions without an end that follow each other, each of which may take any part of a text.
        fails: whether something after the last of these may fail, so that it is tried at every length.
        least: letters that it takes at least.
    """

    bounded: int = 1
    endless: int = 0
    fails: bool = False
    least: int = 0

    @property
    def power(self) -> int:
        """The exponent p where matching at all positions of a text of length n takes time n**p."""
        return max(1, self.endless + self.fails)


def _check_pattern(pattern: dict[str, str]) -> bool:
    """Return whether a pattern may match nothing; refuse one that takes more than the square of a text's length.

    That is so where what repeats without an end, or can be read in several ways, is repeated itself, ``(a+)+`` and
    ``(a|aa)+``, or where such repetitions follow each other, ``a*a*b``.
    """
    if "String" in pattern:
        if not pattern["String"]:
            raise _Unbounded("its pattern is empty")
        return False
    text = pattern["Regex"]
    if not text or len(text) > _LONGEST_PATTERN:
        raise _Unbounded(f"its pattern has {len(text)} letters")
    text = _LETTER.sub("a", text)
    while found := _GROUP.search(text):
        inner, times = found[1], found[2] or ""
        look = _LOOK.match(inner)
        marks = _MARKS.match(inner)
        if inner.startswith("?") and not look and not marks:
            raise _Unbounded("its pattern has a group that published tokenizers do not have")
        begin = look or marks
        ways = _read(inner[begin.end() :] if begin else inner)
        if times not in ("", "?") and (ways.endless or ways.bounded > 1 or not ways.least):
            raise _Unbounded("its pattern repeats what can be read in several ways")
        if look:
            unit = "a*" * ways.endless + "$"
        elif times == "?":
            unit = _unit(replace(ways, bounded=ways.bounded + 1, least=0), is_optional=True)
        else:
            # A group with one way to match may be repeated like a letter.
            unit = f"a{times}" if times else _unit(ways)
        text = text[: found.start()] + unit + text[found.end() :]
    return _read(text).least == 0


def _unit(ways: _Ways, *, is_optional: bool = False) -> str:
    """Return a pattern without groups that can be matched in as many ways."""
    behind = "$" if ways.fails else ""
    if ways.endless:
        return "a*" * (ways.endless - 1) + ("a+" if ways.least else "a*") + behind
    least = min(1, ways.least)
    unit = f"a{{{least},{least + ways.bounded - 1}}}" if ways.bounded < _MANY - 1 else "a+"
    # Parts that match no letter may fail as well.
    return unit if is_optional else f"{unit}$"


def _read(text: str) -> _Ways:
    """Return the number of ways to match alternatives without groups."""
    each = [_read_one(part) for part in text.split("|")]
    worst = max(each, key=lambda ways: (ways.power, ways.endless))
    bounded = sum(ways.bounded for ways in each)
    if worst.power > 2 or bounded > _MOST_WAYS:
        raise _Unbounded("its pattern takes more than the square of a text's length")
    return replace(worst, bounded=bounded, least=min(ways.least for ways in each))


def _read_one(text: str) -> _Ways:
    ways = _Ways()
    for unit in _UNIT.finditer(text):
        low, high = _times(unit[2] or "")
        takes = unit[1] not in "^$"
        ways = replace(ways, least=ways.least + takes * low)
        if high >= _MANY:
            ways = replace(ways, endless=ways.endless + 1, fails=False)
        else:
            ways = replace(
                ways, bounded=ways.bounded * (high - low + 1), fails=ways.fails or bool(low and ways.endless)
            )
    return ways


def _times(mark: str) -> tuple[int, int]:
    """Return the bounds of a repetition."""
    if mark in ("", "?", "*", "+"):
        return {"": (1, 1), "?": (0, 1), "*": (0, _MANY), "+": (1, _MANY)}[mark]
    low, comma, high = mark[1:-1].partition(",")
    least = int(low or 0)
    return least, int(high or _MANY) if comma else least


def _check_template(part: dict[str, Any]) -> None:
    known = {}
    for name, special in part["special_tokens"].items():
        ids = special["ids"]
        if len(ids) != len(special["tokens"]):
            raise _Unbounded("its TemplateProcessing gives names of other tokens than it adds")
        known[name] = len(ids)
    for pieces in (part["single"], part["pair"]):
        names = [piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece]
        if not set(names) <= set(known):
            raise _Unbounded("its TemplateProcessing adds tokens that it does not give")
        if sum(known[name] for name in names) > _LONGEST_PIECE:
            raise _Unbounded(f"its TemplateProcessing adds more than {_LONGEST_PIECE} tokens")
        texts = [piece["Sequence"]["id"] for piece in pieces if "Sequence" in piece]
        if len(set(texts)) < len(texts) or len(pieces) > 2 * _LONGEST_PIECE:
            raise _Unbounded("its TemplateProcessing repeats a text")


def _check_charsmap(raw: bytes) -> float:
    """Return how many letters a ``Precompiled`` makes of one: a double-array trie, and what stands for its words.

    The library follows the trie without looking whether a step leads out of it.
    """
    n_bytes = int.from_bytes(raw[:4], "little")
    if len(raw) < 8 or n_bytes % 4 or not 4 <= n_bytes <= len(raw) - 4:
        raise _Unbounded("its Precompiled is damaged")
    units = np.frombuffer(raw, "<u4", n_bytes // 4, 4).astype(np.int64)
    texts = raw[4 + n_bytes :]
    texts.decode()
    longest = max(map(len, texts.split(b"\0")))
    offsets = (units >> 10) << ((units & 0x200) >> 6)
    letters = np.arange(1, 256)
    seen: set[int] = set()
    waiting = [int(offsets[0])]
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        steps = place ^ letters
        if place >= len(units) or int(steps.max()) >= len(units):
            raise _Unbounded("its Precompiled normalizer points outside of its own table")
        taken = steps[(units[steps] & 0x800000FF) == letters]
        for step in map(int, taken):
            following = step ^ int(offsets[step])
            waiting.append(following)
            if (units[step] >> 8) & 1:
                if following >= len(units):
                    raise _Unbounded("its Precompiled normalizer points outside of its own table")
                start = int(units[following]) & 0x7FFFFFFF
                if start > len(texts) or (texts[start : start + 1] >= b"\x80" and texts[start : start + 1] < b"\xc0"):
                    raise _Unbounded("its Precompiled normalizer points outside of its own texts")
    if longest > _LONGEST_PIECE:
        raise _Unbounded(f"its Precompiled makes {longest} letters of one")
    return longest
