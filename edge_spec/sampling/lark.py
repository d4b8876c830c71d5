"""Grammars in llguidance's form: Lark's syntax with embedded JSON schemas."""

from __future__ import annotations

import json
from typing import Self

__all__ = ["Lark", "literal"]

_OPTIONS = '%llguidance {"no_forcing": true}\n'
"""Options of all grammars: the model decides how a forced text is tokenized."""


class Lark(str):
    """A grammar in Lark's syntax: its whole text, where others are texts in GBNF.

    Names in capitals are terminals: a whole regular expression each, which ends where it can go on no longer. Where a
    text may be cut into terminals in several ways they therefore have to be single characters.

    Attributes:
        root: the name of the first rule, or an expression.
        rules: the other rules, one a line.
        argument: what a user gave, for messages.
    """

    __slots__ = ("argument", "root", "rules")
    root: str
    rules: str
    argument: str

    def __new__(cls, root: str, rules: str = "", argument: str = "grammar") -> Self:
        made = super().__new__(cls, f"{_OPTIONS}start: {root}\n{rules}")
        made.root, made.rules, made.argument = root, rules, argument
        return made


def literal(text: str) -> str:
    """Return a text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)
