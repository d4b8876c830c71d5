"""Grammars made of parts: GBNF is text, and rules are joined by their names."""

from __future__ import annotations

import re

__all__ = ["literal", "renamed", "unlike", "until"]

_PARTS = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|\{[^}]*\}|[A-Za-z][A-Za-z0-9-]*', re.DOTALL)


def literal(text: str) -> str:
    """A text as GBNF writes it."""
    return '"' + "".join(f"\\x{ord(c):02X}" if ord(c) < 32 else "\\" + c if c in '"\\' else c for c in text) + '"'


def renamed(grammar: str, prefix: str) -> str:
    """A grammar whose rules have other names, so that it can stand among others; its start is ``{prefix}root``."""

    def new(part: re.Match[str]) -> str:
        return prefix + part[0] if part[0][0].isalpha() else part[0]

    return _PARTS.sub(new, grammar)


def until(name: str, mark: str, then: str, *, or_end: bool) -> str:
    """Rules for any text up to a mark, and ``then`` behind it. They begin with ``{name}0``.

    The automaton that finds the first mark, as grammar: a state is how much of the mark stands at the end of the text.

    Args:
        or_end: the text may also end without the mark.
    """
    rules = []
    for state in range(len(mark)):
        onward = {char: _state_after(mark, state, char) for char in dict.fromkeys(mark)}
        known = {char: next_state for char, next_state in onward.items() if next_state}
        others = "".join("\\" + char if char in "\\]^-[" else char for char in known)
        ways = [f"[^{others}] {name}0"]
        for char, next_state in known.items():
            ways.append(f"{literal(char)} {then if next_state == len(mark) else f'{name}{next_state}'}")
        rules.append(f"{name}{state} ::= ({' | '.join(ways)}){'?' if or_end else ''}")
    return "\n".join(rules) + "\n"


def unlike(name: str, mark: str, never: str) -> str:
    """Rules for any text but one that begins with a mark, or with a character of the set ``never``. They begin with
    ``{name}0``, which takes at least one character.
    """
    rules = [f"{name}0 ::= {literal(mark[0])} {name}1? | [^{mark[0]}{never}] .*"]
    for place in range(1, len(mark)):
        onward = f"{literal(mark[place])} {name}{place + 1}? | " if place + 1 < len(mark) else ""
        rules.append(f"{name}{place} ::= {onward}[^{mark[place]}] .*")
    return "\n".join(rules) + "\n"


def _state_after(mark: str, state: int, char: str) -> int:
    text = mark[:state] + char
    return next(n for n in range(len(text), -1, -1) if text.endswith(mark[:n]))
