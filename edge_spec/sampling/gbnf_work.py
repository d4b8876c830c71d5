"""Grammars in GBNF that would keep llama.cpp busy for minutes, during which nothing can stop it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from edge_spec.errors import SettingsError

__all__ = ["Item", "Rule", "deepest_first", "fail_at", "refuse_endless_work"]

_MAX_OPTIONAL = 100
"""llama.cpp tries each of them as the next one; the time for a token grows with the third power of their number."""

_REPETITION = 12
"""A repetition that may go on counts like so many optional parts, so at most eight of them end together. Each doubles
the ways in which a text can have been repeated: a token takes 0.02 s with 8 of them and 0.13 s with 10 (8,192 tokens,
AMD EPYC)."""

_MAX_WAYS = 10_000
"""llama.cpp follows each of them, for every token that might come next."""

_MAX_ITEMS = 100_000
"""llama.cpp writes repetitions out, and searches all of it for each token."""


@dataclass
class Rule:
    """A rule: its line and its alternatives."""

    line: int
    alternatives: list[list[Item]] = field(default_factory=list)


@dataclass
class Item:
    """A part of an alternative: characters (``name`` is None) or another rule.

    Attributes:
        nested: how many repetitions may go on after it; a single ``?`` is none.
    """

    name: str | None
    line: int
    optional: bool = False
    repeats: int = 1
    nested: int = 0


def fail_at(line: int, what: str, hint: str) -> NoReturn:
    """Refuse a grammar for a mistake in a line.

    Raises:
        SettingsError: always.
    """
    raise SettingsError(f"is wrong in line {line}: {what}", argument="grammar", hint=hint)


def refuse_endless_work(rules: dict[str, Rule], empty: set[str], order: list[str]) -> None:
    """Refuse what takes too long.

    Args:
        empty: the names of the rules that may be empty.
        order: the names of all rules, each after those that it may begin with.

    Raises:
        SettingsError: with the line and what to do about it.
    """
    n_items = 0
    for name, rule in rules.items():
        for items in rule.alternatives:
            n_items += sum(item.repeats for item in items)
            in_a_row = 0
            for item in items:
                in_a_row = in_a_row + 1 if item.optional or item.name in empty else 0
                if in_a_row > _MAX_OPTIONAL:
                    what = f"rule {name.split(' in ')[-1]!r} has more than {_MAX_OPTIONAL} optional parts in a row"
                    fail_at(item.line, what, "nest them: a (b (c)?)?")
    if n_items > _MAX_ITEMS:
        hint = f"repeat less often, or without an upper bound; at most {_MAX_ITEMS}"
        raise SettingsError(f"has {n_items} parts, repetitions included", argument="grammar", hint=hint)
    _refuse_deep_ends(rules, empty)
    _refuse_many_ways(rules, order)


def deepest_first(
    below: Mapping[str, Sequence[str]], on_circle: Callable[[str], object] = lambda name: None
) -> list[str]:
    """All names, each after those below it.

    Args:
        on_circle: called with a name that leads back to itself.
    """
    done: dict[str, None] = {}
    for start in below:
        # Depth first without recursion: generated grammars may be deep.
        path: dict[str, Iterator[str]] = {} if start in done else {start: iter(below[start])}
        while path:
            name = next(reversed(path))
            inner = next(path[name], None)
            if inner is None:
                done[name] = None
                path.popitem()
            elif inner in path:
                on_circle(inner)
            elif inner not in done:
                path[inner] = iter(below[inner])
    return list(done)


def _refuse_deep_ends(rules: dict[str, Rule], empty: set[str]) -> None:
    """Refuse a place after which very many parts may go on: each stands at the end of another one.

    What a rule that leads back to itself adds depends on the text, and is not counted.
    """
    # Of every part: what may go on behind it in its own alternative, and whether that is the end of the rule.
    places: dict[str, list[tuple[Item, int, bool]]] = {}
    for name, rule in rules.items():
        places[name] = []
        for items in rule.alternatives:
            behind, is_end = 0, True
            for item in reversed(items):
                places[name].append((item, behind + _REPETITION * item.nested, is_end))
                may_be_empty = item.optional or item.name in empty
                behind, is_end = (behind + 1, is_end) if may_be_empty else (0, False)
    below = {name: [item.name for item, _, is_end in found if is_end and item.name] for name, found in places.items()}
    known: dict[str, int] = {}
    for name in deepest_first(below):
        ends = [behind + known.get(item.name or "", 0) for item, behind, is_end in places[name] if is_end]
        known[name] = max(ends, default=0)
    for name, found in places.items():
        for item, behind, _ in found:
            if behind + known.get(item.name or "", 0) > _MAX_OPTIONAL:
                what = f"in rule {name.split(' in ')[-1]!r} too many parts may go on where another one ends"
                fail_at(item.line, what, "write (x+)+ as x+, or put some text between their ends")


@dataclass(frozen=True)
class _Ways:
    """In how many ways a text may go on at some place: with a character, or not at all."""

    on: int
    end: int

    def after(self, item: Item, own: _Ways) -> _Ways:
        """The ways before an item, if these are those behind it, and ``own`` those of the item."""
        found = self
        for _ in range(item.repeats if own.end else 1):
            skips = self if item.optional else _Ways(0, 0)
            on = own.on + own.end * found.on + skips.on
            found = _Ways(min(on, _MAX_WAYS + 1), min(own.end * found.end + skips.end, _MAX_WAYS + 1))
        return found


def _refuse_many_ways(rules: dict[str, Rule], order: list[str]) -> None:
    """Refuse a place where a text can continue in too many ways: few rules of two alternatives may have millions."""
    known: dict[str, _Ways] = {}

    def places(items: list[Item]) -> Iterator[_Ways]:
        """The ways at each place of an alternative, the first one last."""
        ways = _Ways(0, 1)
        yield ways
        for item in reversed(items):
            own = known.get(item.name, _Ways(0, 0)) if item.name is not None else _Ways(1, 0)
            ways = ways.after(item, own)
            yield ways

    # What a rule may begin with is known by then; the rest of an alternative does not matter to how it begins.
    for name in order:
        firsts = [[*places(items)][-1] for items in rules[name].alternatives]
        on, end = sum(each.on for each in firsts), sum(each.end for each in firsts)
        known[name] = _Ways(min(on, _MAX_WAYS + 1), min(end, _MAX_WAYS + 1))
    for name, rule in rules.items():
        most = max(ways.on + ways.end for items in rule.alternatives for ways in places(items))
        if max(most, known[name].on + known[name].end) > _MAX_WAYS:
            what = f"the text can continue in more than {_MAX_WAYS} ways in rule {name.split(' in ')[-1]!r}"
            fail_at(rule.line, what, 'write what alternatives have in common once: "a" ("b" | "c")')
