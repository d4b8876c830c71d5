"""Translate regular expressions of JSON schemas so that llguidance reads them as meant.

Schemas have ECMA's dialect, libraries of Python read them in Python's, and llguidance reads Rust's. What is written
here allows a text only where both dialects do: ``\\d`` is a digit of ASCII, ``\\D`` is no digit of any script. What
they do not both have, or llguidance cannot keep, is refused by name.

No class has the character U+0000: where llguidance finds all control characters in a class it lets every escape of JSON
stand for it, those of the quote and of the backslash included.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

__all__ = ["Branch", "branches_of"]


@dataclass(frozen=True)
class Branch:
    """An alternative of a pattern.

    Attributes:
        text: in Rust's dialect, without anchors at its ends.
        begins, ends: whether there were such.
        is_anchored: whether there are others within it.
    """

    text: str
    begins: bool
    ends: bool
    is_anchored: bool = False

    def __str__(self) -> str:
        return "^" * self.begins + self.text + "$" * self.ends


def branches_of(pattern: str) -> list[Branch]:
    """Return the alternatives of a pattern.

    Raises:
        ValueError: names the part that cannot be translated.
    """
    return _Pattern(pattern).branches()


_LAST, _SURROGATES = 0x10FFFF, range(0xD800, 0xE000)

_ANY = r"\x{1}-\x{10ffff}"
_NO_LINE_END = r"[^\x{0}\n\r\x{2028}\x{2029}]"

_CLASSES = {
    "d": ("0-9", r"\p{Nd}"),
    "w": ("0-9A-Za-z_", r"\p{Alphabetic}\p{M}\p{N}\p{Pc}\x{200c}\x{200d}"),
    "s": (
        r"\t-\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}",
        r"\p{White_Space}\x{1c}-\x{1f}\x{180e}\x{feff}",
    ),
}
"""Characters that belong to a class in both dialects, and those that belong to it in either."""

_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_CODES = (re.compile(r"x([0-9A-Fa-f]{2})"), re.compile(r"u([0-9A-Fa-f]{4})"), re.compile(r"u\{([0-9A-Fa-f]{1,6})\}"))
_COUNT = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}")
_GROUP = re.compile(r"\((?!\?)|\(\?(?:P?<[A-Za-z_][A-Za-z_0-9]*>|([is]*):)")
_FLAGS = re.compile(r"\(\?([is]+)\)")
_PROPERTY = re.compile(r"\{[A-Za-z_0-9]+(?:=[A-Za-z_0-9]+)?\}")


class _Pattern:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._place = 0
        self._dots = False

    def branches(self) -> list[Branch]:
        flags = self._take(_FLAGS)
        self._dots = flags is not None and "s" in flags[1]
        found = self._alternatives()
        if self._place < len(self._pattern):
            raise ValueError("a ')' without '('")
        if flags is not None and "i" in flags[1]:
            found = [replace(each, text=f"(?i:{each.text})") for each in found]
        return found

    def _take(self, expected: re.Pattern[str]) -> re.Match[str] | None:
        found = expected.match(self._pattern, self._place)
        self._place = found.end() if found is not None else self._place
        return found

    def _next(self, *texts: str) -> str:
        """Consume one of some texts if it comes next; return an empty text if none does."""
        found = next((text for text in texts if self._pattern.startswith(text, self._place)), "")
        self._place += len(found)
        return found

    def _is_at(self, chars: str) -> bool:
        return self._place == len(self._pattern) or self._pattern[self._place] in chars

    def _alternatives(self) -> list[Branch]:
        """Read up to the end of a group, or of the pattern."""
        found = []
        while True:
            parts: list[str] = []
            is_anchored = False
            begins = bool(self._next("^"))
            while not self._is_at("|)"):
                if self._next("$"):
                    if self._is_at("|)"):
                        found.append(Branch("".join(parts), begins, True, is_anchored))
                        break
                    raise ValueError("a '$' within a text")
                text, is_within = self._repeated()
                parts.append(text)
                is_anchored |= is_within
            else:
                found.append(Branch("".join(parts), begins, False, is_anchored))
            if not self._next("|"):
                return found

    def _repeated(self) -> tuple[str, bool]:
        """Read an expression with its repetition; return it, and whether it contains an anchor."""
        if self._next("^"):
            raise ValueError("a '^' within a text")
        text, is_anchored = self._one()
        count = self._take(_COUNT)
        times = count[0] if count is not None else self._next("*", "+", "?")
        if times:
            # Greediness does not change which texts match.
            self._next("?")
        if not self._is_at("|)") and self._pattern[self._place] in "*+?{":
            raise ValueError(f"a {self._pattern[self._place]!r} that repeats nothing")
        return text + times, is_anchored

    def _one(self) -> tuple[str, bool]:
        group = self._take(_GROUP)
        if group is not None:
            dots, self._dots = self._dots, self._dots or "s" in (group[1] or "")
            found = self._alternatives()
            self._dots = dots
            if not self._next(")"):
                raise ValueError("a '(' without ')'")
            text = "|".join(map(str, found))
            is_anchored = any(each.begins or each.ends or each.is_anchored for each in found)
            return f"(?{'i' if 'i' in (group[1] or '') else ''}:{text})", is_anchored
        char = self._pattern[self._place]
        if char == "(":
            raise ValueError(f"the group {self._pattern[self._place : self._place + 4]!r}")
        if char in "*+?{":
            raise ValueError(f"a {char!r} that repeats nothing")
        self._place += 1
        if char == "[":
            return self._class(), False
        if char == ".":
            return f"[{_ANY}]" if self._dots else _NO_LINE_END, False
        if char != "\\":
            return _written(ord(char)), False
        found_escape = self._escape()
        return _written(found_escape) if isinstance(found_escape, int) else f"[{found_escape[0]}]", False

    def _escape(self, *, in_class: bool = False) -> int | tuple[str, str]:
        """Read what follows a backslash: a character, or a class, as both dialects have it and as either has it."""
        if self._place == len(self._pattern):
            raise ValueError("a backslash at its end")
        codes = [found for code in _CODES if (found := self._take(code)) is not None]
        if codes:
            code = int(codes[0][1], 16)
            if 0xD800 <= code < 0xDC00 and (low := self._take(re.compile(r"\\u([dD][c-fC-F][0-9A-Fa-f]{2})"))):
                code = 0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00
            if code in _SURROGATES or code > _LAST:
                raise ValueError(f"\\{codes[0][0]}, which is no character")
            return code
        char = self._pattern[self._place]
        self._place += 1
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char.lower() in _CLASSES:
            both, either = _CLASSES[char.lower()]
            return (both, either) if char.islower() else (rf"[^\x{{0}}{either}]", f"[^{both}]")
        if char in "pP" and (named := self._take(_PROPERTY)) is not None:
            belongs, others = rf"\p{named[0]}", rf"\P{named[0]}"
            if char == "P":
                belongs, others = others, belongs
            return rf"[^\x{{0}}{others}]", belongs
        if in_class and char == "b":
            return 8
        if char == "0" and not (self._place < len(self._pattern) and self._pattern[self._place].isdigit()):
            return 0
        if char.isalnum():
            raise ValueError(f"\\{char}")
        return ord(char)

    def _class(self) -> str:
        is_negated = bool(self._next("^"))
        both, either = list[str](), list[str]()
        if self._is_at("]"):
            raise ValueError("a class that is empty, or begins with ']'; write '\\]'")
        while not self._next("]"):
            first = self._item()
            is_range = self._pattern.startswith("-", self._place) and not self._pattern.startswith("-]", self._place)
            if not isinstance(first, int):
                if is_range:
                    raise ValueError("a range that begins with a class")
                both.append(first[0])
                either.append(first[1])
                continue
            last: int | tuple[str, str] = first
            if is_range:
                self._place += 1
                last = self._item()
            if not isinstance(last, int) or last < first:
                raise ValueError("a range that ends before it begins, or with a class")
            either.append(f"{_written(first)}-{_written(last)}")
            if last:
                both.append(f"{_written(max(first, 1))}-{_written(last)}")
        if is_negated:
            return rf"[^\x{{0}}{''.join(either)}]"
        if any({low, low_others} <= {*both} for low, low_others in _OPPOSITES):
            return f"[{_ANY}]"
        return f"[{''.join(both)}]" if both else "[a&&b]"

    def _item(self) -> int | tuple[str, str]:
        if self._place == len(self._pattern):
            raise ValueError("a '[' without ']'")
        named = re.match(r"\[[:.=]", self._pattern[self._place : self._place + 2])
        if named is not None:
            raise ValueError(f"{named[0]!r} within a class, which is read in two ways")
        char = self._pattern[self._place]
        self._place += 1
        return self._escape(in_class=True) if char == "\\" else ord(char)


_OPPOSITES = [(both, rf"[^\x{{0}}{either}]") for both, either in _CLASSES.values()]


def _written(code: int) -> str:
    """Return a character in Rust's dialect."""
    return chr(code) if chr(code).isalnum() else f"\\x{{{code:x}}}"
