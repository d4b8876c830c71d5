"""Translate a grammar from llama.cpp's GBNF to Lark's syntax, with errors that name the line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from edge_spec.errors import SettingsError
from edge_spec.sampling.lark import Lark, literal

__all__ = ["gbnf_to_lark"]

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
_CHARACTER = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))|(.)", re.DOTALL)
_ESCAPED = {"t": "\t", "r": "\r", "n": "\n", **{char: char for char in '\\"[]-'}}

_MAX_DEPTH = 200
"""The deepest nesting of groups, which are parsed by recursion."""

_MAX_CHAIN = 250
"""The most nested rules and groups: llguidance follows them by recursion."""

_MAX_REPEATS = 2000
"""llama.cpp's limit."""

_SIMPLE = ("*", "+", "?")


@dataclass
class _Item:
    """A part of an alternative: characters or a rule.

    Attributes:
        chars: the characters of a text, each in Lark's syntax; a regular expression is one of them.
        repeat: how often it comes.
    """

    chars: list[str] = field(default_factory=list)
    name: str = ""
    repeat: str = ""


Sequences = list[list[_Item]]


def gbnf_to_lark(text: str) -> Lark:
    """Return a grammar that allows the same texts.

    Where no rule leads back to itself, the grammar becomes one regular expression, which is fast. Elsewhere terminals
    are single characters: a longer one ends as late as it can, and would hide that the text may go on in another way.

    Raises:
        SettingsError: with the line and the mistake.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        problem = f"is not Unicode at character {error.start}"
        raise SettingsError(problem, argument="grammar", hint="decode it properly") from None
    reader = _Reader(text)
    reader.read()
    rules, uses = reader.rules, reader.uses
    if "root" not in rules:
        raise SettingsError("has no rule named root", argument="grammar", hint='begin with: root ::= "..."')
    for user, used in uses.items():
        for name, line in used.items():
            if name not in rules:
                rule = user.split(" in ")[-1]
                _fail(line, f"rule {rule!r} uses {name!r}, which is not defined", "define it, or correct it")
    needed, is_regular = _needed(uses)
    names = {name: f"{'R' if is_regular else 'r'}{number}" for number, name in enumerate(needed)}
    lines = (f"{names[name]}: {_lark(rules[name], names, is_regular)}\n" for name in needed)
    return Lark(names["root"], "".join(lines))


class _Reader:
    """Reads rules. Groups become rules with names that cannot be written in a grammar.

    Attributes:
        rules: the alternatives of each.
        uses: by rule, the rules in it and the line where each is first used.
    """

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._place = 0
        self._depth = 0
        self._rule = ""
        self.rules: dict[str, Sequences] = {}
        self.uses: dict[str, dict[str, int]] = {}

    def read(self) -> None:
        """Read all rules."""
        while self._skip_newlines():
            kind, name, line = self._next()
            if kind != "name" or self._next()[0] != "define":
                _fail(line, "a rule was expected", 'rules look like: name ::= "text" other-name')
            if name in self.rules:
                _fail(line, f"rule {name!r} is defined twice", "join both with |")
            self._define(name)
            if self._place < len(self._tokens):
                kind, found, line = self._next()
                if kind != "newline":
                    _fail(line, f"{found!r} was not expected", "end the rule here, or quote it")

    def _define(self, name: str) -> None:
        around, self._rule = self._rule, name
        self.uses[name] = {}
        self.rules[name] = []
        self.rules[name] = self._alternatives()
        self._rule = around

    def _alternatives(self) -> Sequences:
        alternatives: Sequences = []
        while True:
            # A rule may begin on the line after its name or a bar.
            self._skip_newlines()
            alternatives.append(self._sequence())
            if self._peek() != "|":
                return alternatives
            self._place += 1

    def _sequence(self) -> list[_Item]:
        items: list[_Item] = []
        while self._place < len(self._tokens):
            kind, found, line = self._tokens[self._place]
            if (kind in ("define", "mark") and found != "(") or (kind == "newline" and not self._depth):
                break
            self._place += 1
            if kind == "name":
                items.append(self._use(found, line))
            elif kind == "token":
                _fail(line, f"tokens such as {found} are not supported", "they show no text; leave them out")
            elif kind == "text":
                items.append(_Item([literal(char) for char, _ in _characters(found[1:-1], line)]))
            elif kind == "set":
                items.append(_Item([_set(found, line)]))
            elif kind == "any":
                items.append(_Item(["/(?s:.)/"]))
            elif found == "(":
                items.append(self._group(line))
            elif not items:
                _fail(line, f"there is nothing before {found!r} to repeat", "put it after what it repeats")
            else:
                items.append(self._repeated(items.pop(), found, line))
        return items

    def _use(self, name: str, line: int) -> _Item:
        self.uses[self._rule].setdefault(name, line)
        return _Item(name=name)

    def _group(self, line: int) -> _Item:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            _fail(line, f"groups are nested deeper than {_MAX_DEPTH}", "give the inner ones names of their own")
        item = self._use(f"({len(self.rules)} in {self._rule}", line)
        self._define(item.name)
        self._depth -= 1
        if self._peek() != ")":
            _fail(line, "'(' is never closed", "add the missing ')'")
        self._place += 1
        return item

    def _repeated(self, item: _Item, repeat: str, line: int) -> _Item:
        bounds = [int(number) for number in re.findall(r"\d+", repeat)]
        if any(bound > _MAX_REPEATS for bound in bounds):
            _fail(line, f"{repeat} repeats too often", f"at most {_MAX_REPEATS} times, or without an upper bound")
        if len(bounds) == 2 and bounds[1] < bounds[0]:
            _fail(line, f"{repeat} ends before it begins", "write the smaller number first")
        if bounds:
            repeat = "{" + ",".join(map(str, bounds)) + ("," if "," in repeat and len(bounds) == 1 else "") + "}"
        elif item.repeat in _SIMPLE:
            # (x+)+ is x+, and all else of this kind is x*.
            return replace(item, repeat=repeat if repeat == item.repeat else "*")
        if item.repeat:
            inner, item = item, self._use(f"({len(self.rules)} in {self._rule}", line)
            self.rules[item.name], self.uses[item.name] = [[inner]], {inner.name: line} if inner.name else {}
        return replace(item, repeat=repeat)

    def _skip_newlines(self) -> bool:
        """Go to the next token that is not a line break; return whether there is one."""
        while self._place < len(self._tokens) and self._tokens[self._place][0] == "newline":
            self._place += 1
        return self._place < len(self._tokens)

    def _peek(self) -> str:
        return self._tokens[self._place][1] if self._place < len(self._tokens) else ""

    def _next(self) -> tuple[str, str, int]:
        if self._place == len(self._tokens):
            _fail(self._tokens[-1][2], "it ends in the middle of a rule", 'rules look like: name ::= "text"')
        self._place += 1
        return self._tokens[self._place - 1]


def _fail(line: int, what: str, hint: str) -> NoReturn:
    raise SettingsError(f"is wrong in line {line}: {what}", argument="grammar", hint=hint)


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    place, line = 0, 1
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            what = {'"': "a text in quotes is never closed", "[": "a set in brackets is never closed"}.get(text[place])
            _fail(line, what or f"{text[place : place + 12]!r} has no meaning in GBNF", "see llama.cpp on GBNF")
        assert match.lastgroup is not None
        if match.lastgroup != "skip":
            yield match.lastgroup, match.group(), line
        line += match.group().count("\n")
        place = match.end()


def _characters(text: str, line: int) -> Iterator[tuple[str, bool]]:
    """Read the characters of a text or a set, and whether each was escaped."""
    for match in _CHARACTER.finditer(text):
        *codes, escaped, plain = match.groups()
        code = int(next(filter(None, codes), "0"), 16)
        if plain is not None:
            yield plain, False
        elif (escaped is not None and escaped not in _ESCAPED) or code > 0x10FFFF or 0xD800 <= code < 0xE000:
            known = r"known are \n \r \t \\ \" \[ \] \xNN \uNNNN \UNNNNNNNN"
            _fail(line, f"{match.group()!r} is not an escape, or not of a character", known)
        else:
            yield _ESCAPED[escaped] if escaped is not None else chr(code), True


def _set(text: str, line: int) -> str:
    """Return a set in brackets as a regular expression."""
    negated = text.startswith("[^")
    chars = list(_characters(text[1 + negated : -1], line))
    if not chars:
        _fail(line, "an empty set of characters", "use . for any character")
    ranges, place = [], 0
    while place < len(chars):
        first = last = chars[place][0]
        if place + 2 < len(chars) and chars[place + 1] == ("-", False):
            last = chars[place + 2][0]
            place += 2
        if last < first:
            _fail(line, f"{text} has a range that ends before it begins", "write the smaller character first")
        ranges.append(rf"\x{{{ord(first):X}}}-\x{{{ord(last):X}}}")
        place += 1
    return f"/[{'^' * negated}{''.join(ranges)}]/"


def _needed(uses: Mapping[str, Mapping[str, int]]) -> tuple[list[str], bool]:
    """Return the rules that the root needs, each after those in it, and whether none leads back to itself."""
    done: dict[str, None] = {}
    # Depth first without recursion: generated grammars may be deep.
    path = {"root": iter(uses["root"].items())}
    is_regular = True
    while path:
        name = next(reversed(path))
        inner, line = next(path[name], ("", 0))
        if not inner:
            done[name] = None
            path.popitem()
        elif inner in path:
            is_regular = False
        elif inner not in done:
            path[inner] = iter(uses[inner].items())
            if len(path) > _MAX_CHAIN:
                _fail(line, f"more than {_MAX_CHAIN} rules and groups are within each other", "nest less deep")
    return list(done), is_regular


def _lark(alternatives: Sequences, names: Mapping[str, str], is_regular: bool) -> str:
    """Return alternatives in Lark's syntax."""

    def written(item: _Item) -> str:
        if item.repeat in ("{0}", "{0,0}"):
            return '""'
        text = names.get(item.name) or _joined(item.chars, is_regular)
        return f"({text}){item.repeat}" if item.repeat and len(item.chars) > 1 else text + item.repeat

    return " | ".join(" ".join(map(written, items)) or '""' for items in alternatives)


def _joined(chars: Sequence[str], is_regular: bool) -> str:
    if is_regular and len(chars) > 1:
        return '"' + "".join(char[1:-1] for char in chars) + '"'
    return " ".join(chars) or '""'
