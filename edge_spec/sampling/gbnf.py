"""Checks a grammar in GBNF, with a message that says where a mistake is.

llama.cpp's own parser decides what a grammar means. But it writes its errors to standard error and without a line, and
misses left recursion behind rules that may be empty, which then grows without end. So a grammar is checked here first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from edge_spec.errors import SettingsError
from edge_spec.sampling.gbnf_work import Item, Rule, deepest_first, fail_at, refuse_endless_work

__all__ = ["check_gbnf"]

_TOKEN = re.compile(
    r"""(?P<skip>[ \t]+|\#[^\r\n]*)
    |(?P<newline>\r\n|\r|\n)
    |(?P<name>[A-Za-z0-9-]+)
    |(?P<define>::=)
    |(?P<text>"(?:\\.|[^"\\])*")
    |(?P<set>\[\^?(?:\\.|[^\]\\])*\])
    |(?P<any>\.)
    |(?P<token>!?<[^>\r\n]*>)
    |(?P<repeat>[*+?]|\{[ \t]*\d+[ \t]*(?:,[ \t]*\d*[ \t]*)?\})
    |(?P<mark>[()|])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[trn\\\"\[\]-]|(.))", re.DOTALL)
_MAX_DEPTH = 200
"""The deepest nesting of groups: llama.cpp's parser is recursive."""

_MAX_REPEATS = 2000
"""llama.cpp's limit."""


def check_gbnf(text: str) -> None:
    """Refuse a grammar that llama.cpp cannot use.

    Raises:
        SettingsError: with the line and the mistake.
    """
    if "\0" in text:
        raise SettingsError("contains a NUL character", argument="grammar", hint="write it as \\x00")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        place = error.start
        hint = "decode it properly"
        raise SettingsError(f"is not Unicode at character {place}", argument="grammar", hint=hint) from None
    rules = _Reader(text).rules()
    if "root" not in rules:
        raise SettingsError("has no rule named root", argument="grammar", hint='begin with: root ::= "..."')
    for name, rule in rules.items():
        for item in (item for alternative in rule.alternatives for item in alternative):
            if item.name is not None and item.name not in rules:
                user = name.split(" in ")[-1]
                fail_at(
                    item.line, f"rule {user!r} uses {item.name!r}, which is not defined", "define it, or correct it"
                )
    empty = _empty_rules(rules)
    order = _refuse_left_recursion(rules, empty)
    refuse_endless_work(rules, empty, order)


class _Reader:
    """Turns text into rules; groups become rules whose names cannot be written in a grammar."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._place = 0
        self._rules: dict[str, Rule] = {}
        self._depth = 0

    def rules(self) -> dict[str, Rule]:
        while self._skip_newlines():
            kind, name, line = self._next()
            if kind != "name" or self._next()[0] != "define":
                fail_at(line, "a rule was expected", 'rules look like: name ::= "text" other-name')
            if name in self._rules and self._rules[name].alternatives:
                fail_at(line, f"rule {name!r} is defined twice", "join both with |")
            self._alternatives(name, line)
            if self._place < len(self._tokens):
                kind, found, line = self._next()
                if kind != "newline":
                    fail_at(line, f"{found!r} was not expected", "end the rule here, or quote it")
        return self._rules

    def _alternatives(self, name: str, line: int) -> None:
        rule = self._rules[name] = Rule(line)
        while True:
            # A rule may begin on the line after its name or a bar.
            self._skip_newlines()
            rule.alternatives.append(self._sequence(name))
            if self._peek() != "|":
                return
            self._place += 1

    def _sequence(self, name: str) -> list[Item]:
        items: list[Item] = []
        while self._place < len(self._tokens):
            kind, found, line = self._tokens[self._place]
            if kind == "newline" and self._depth:
                self._place += 1
            elif kind == "name":
                self._place += 1
                items.append(Item(found, line))
            elif kind == "token":
                fail_at(line, f"tokens such as {found} are not supported", "they show no text; leave them out")
            elif kind in ("text", "set", "any"):
                self._place += 1
                _check_characters(kind, found, line)
                items.append(Item(None, line, optional=found == '""'))
            elif found == "(":
                items.append(self._group(name, line))
            elif kind == "repeat":
                self._place += 1
                if not items:
                    fail_at(line, f"there is nothing before {found!r} to repeat", "put it after what it repeats")
                _apply(items[-1], found, line)
            else:
                break
        return items

    def _group(self, name: str, line: int) -> Item:
        self._place += 1
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            fail_at(line, f"groups are nested deeper than {_MAX_DEPTH}", "give the inner ones names of their own")
        inner = f"({len(self._rules)} in {name}"
        self._alternatives(inner, line)
        self._depth -= 1
        if self._peek() != ")":
            fail_at(line, "'(' is never closed", "add the missing ')'")
        self._place += 1
        return Item(inner, line)

    def _skip_newlines(self) -> bool:
        """Go to the next token that is not a line break; returns whether there is one."""
        while self._place < len(self._tokens) and self._tokens[self._place][0] == "newline":
            self._place += 1
        return self._place < len(self._tokens)

    def _peek(self) -> str:
        return self._tokens[self._place][1] if self._place < len(self._tokens) else ""

    def _next(self) -> tuple[str, str, int]:
        if self._place == len(self._tokens):
            fail_at(self._tokens[-1][2], "it ends in the middle of a rule", 'rules look like: name ::= "text"')
        self._place += 1
        return self._tokens[self._place - 1]


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    place, line = 0, 1
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            what = {'"': "a text in quotes is never closed", "[": "a set in brackets is never closed"}.get(text[place])
            fail_at(line, what or f"{text[place : place + 12]!r} has no meaning in GBNF", "see llama.cpp on GBNF")
        assert match.lastgroup is not None
        if match.lastgroup != "skip":
            yield match.lastgroup, match.group(), line
        line += match.group().count("\n")
        place = match.end()


def _check_characters(kind: str, found: str, line: int) -> None:
    if kind in ("text", "set"):
        unknown = next((escape for escape in _ESCAPE.finditer(found) if escape.group(1)), None)
        if unknown is not None:
            fail_at(
                line, f"{unknown.group()!r} is not an escape", r"known are \n \r \t \\ \" \[ \] \xNN \uNNNN \UNNNNNNNN"
            )
        if found in ("[]", "[^]"):
            fail_at(line, "an empty set of characters", "use . for any character")


def _apply(item: Item, repeat: str, line: int) -> None:
    bounds = [int(number) for number in re.findall(r"\d+", repeat)]
    if any(bound > _MAX_REPEATS for bound in bounds):
        fail_at(line, f"{repeat} repeats too often", f"at most {_MAX_REPEATS} times, or without an upper bound")
    if len(bounds) == 2 and bounds[1] < bounds[0]:
        fail_at(line, f"{repeat} ends before it begins", "write the smaller number first")
    # A repetition of a repetition costs as much as one of a group.
    item.nested += repeat in ("*", "+") or "," in repeat or item.optional or item.nested > 0
    if repeat in ("*", "?") or (bounds and bounds[0] == 0):
        item.optional = True
    item.repeats *= max([1, *bounds])


def _empty_rules(rules: dict[str, Rule]) -> set[str]:
    """Names of the rules that may be empty."""
    uses: dict[str, list[tuple[str, list[str]]]] = {name: [] for name in rules}
    empty: set[str] = set()
    found: list[str] = []
    for name, rule in rules.items():
        for items in rule.alternatives:
            names = [item.name for item in items if not item.optional]
            # What of the alternative is not known to be empty yet.
            left = [each for each in names if each is not None]
            if not names:
                found.append(name)
            elif len(left) == len(names):
                for each in left:
                    uses[each].append((name, left))
    while found:
        name = found.pop()
        if name not in empty:
            empty.add(name)
            for user, left in uses[name]:
                left.remove(name)
                if not left:
                    found.append(user)
    return empty


def _refuse_left_recursion(rules: dict[str, Rule], empty: set[str]) -> list[str]:
    """Refuse rules that begin with themselves.

    Returns:
        The names of all rules, each after those that it may begin with.
    """

    def may_be_empty(item: Item) -> bool:
        return item.optional or item.name in empty

    begins: dict[str, list[str]] = {}
    for name, rule in rules.items():
        begins[name] = []
        for items in rule.alternatives:
            for item in items:
                if item.name is not None:
                    begins[name].append(item.name)
                if not may_be_empty(item):
                    break

    def refuse(name: str) -> None:
        named = name if not name.startswith("(") else name.split(" in ")[1]
        fail_at(rules[name].line, f"rule {named!r} can begin with itself", "let it begin with something else first")

    return deepest_first(begins, refuse)
