"""What a ``tokenizer.json`` does to texts besides its vocabulary: which kinds there are, and how much they may make.

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
from typing import Any

import numpy as np

from edge_spec.errors import BAD_RECORD

__all__ = ["why_not_bounded"]

_MOST_PARTS = 64
_MOST_GROWTH = 64
"""So many times the length of a text, in letters, are allowed for what is made of it."""

_LONGEST_PATTERN = 1 << 14
_LONGEST_PIECE = 64
"""Letters that a part may put before a text, or tokens around it."""

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
"""The most letters that these make of one; those of Unicode's forms do so once only."""


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
    """Yield the parts of a component, in their order, those of sequences in the place of these."""
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

_REPEATED = re.compile(r"[*+]|\{\d*,\}|\{\d{3,}")
_GROUP = re.compile(r"\(([^()]*)\)([*+?]|\{\d*,?\d*\})?")
_LOOK = re.compile(r"\?<?[=!]")
_MARKS = re.compile(r"\?(?:[a-z-]*[:>]|<\w+>|[a-z-]+$)")
_NOTHING = re.compile(r"(?:[^*?+{}](?:[*?]|\{0?,\d*\})[+?]?)*")


def _check_pattern(pattern: dict[str, str]) -> bool:
    """Return whether a pattern may match nothing; refuse one that would be tried in more ways than a text has letters.

    That is so where what repeats without end, or has alternatives, is repeated itself: ``(a+)+``, ``(a|aa)+``.
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
        inner = inner[look.end() :] if look else _MARKS.sub("", inner, count=1) if inner.startswith("?") else inner
        endless, empty = _REPEATED.search(inner) is not None, _can_be_empty(inner)
        if times not in ("", "?") and (endless or empty or "|" in inner):
            raise _Unbounded("its pattern repeats what can be read in several ways")
        endless = endless or _REPEATED.search(times) is not None
        empty = empty or times[:1] in ("*", "?") or times.startswith(("{0", "{,"))
        unit = (
            ""
            if look
            else {(False, False): "a", (False, True): "a?", (True, False): "a+", (True, True): "a*"}[endless, empty]
        )
        text = text[: found.start()] + unit + text[found.end() :]
    return _can_be_empty(text)


def _can_be_empty(text: str) -> bool:
    """Return whether one of the alternatives, which have no groups, may take no letter."""
    return any(_NOTHING.fullmatch(each.strip("^$")) is not None for each in text.split("|"))


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
            raise _Unbounded("its Precompiled leads out of its own table")
        taken = steps[(units[steps] & 0x800000FF) == letters]
        for step in map(int, taken):
            following = step ^ int(offsets[step])
            waiting.append(following)
            if (units[step] >> 8) & 1:
                if following >= len(units):
                    raise _Unbounded("its Precompiled leads out of its own table")
                start = int(units[following]) & 0x7FFFFFFF
                if start > len(texts) or (texts[start : start + 1] >= b"\x80" and texts[start : start + 1] < b"\xc0"):
                    raise _Unbounded("its Precompiled leads out of its own texts")
    if longest > _LONGEST_PIECE:
        raise _Unbounded(f"its Precompiled makes {longest} letters of one")
    return longest
