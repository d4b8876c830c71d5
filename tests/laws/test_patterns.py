"""Laws of patterns in JSON schemas: a text is allowed where its pattern is found in it, and nowhere else."""

from __future__ import annotations

import json
import random
import re
import warnings
from contextlib import suppress

import pytest
from guided_texts import demo_vocabulary, random_text, takes

from edge_spec.errors import SettingsError
from edge_spec.generation.tools.schemas import Rules
from edge_spec.sampling.guidance import GuidedGrammar
from edge_spec.sampling.json_schema import schema_to_lark
from edge_spec.sampling.lark import Lark

_CHARS = ["a", "b", "5", '"', "\\", "/", " ", "\n", "-", "é", "]", "^", "\t"]
_ITEMS = ["a", "b", "5", '"', r"\\", "/", " ", r"\n", r"\-", r"\]", "a-z", "0-9", "!-~", r"\x00-\x1f", r"\x20-\x7f"]
_ITEMS += [r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\u0022", "é", "&&b", "--", "~~", "#-z", r"\/"]
_ATOMS = ["a", "b", "5", '"', r"\\", "/", " ", r"\n", ".", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\.", "é", r"\t"]


def pattern(chance: random.Random, depth: int = 2) -> str:
    branches = []
    for _ in range(chance.choice([1, 1, 1, 2])):
        parts = []
        for _ in range(chance.randint(1, 3)):
            kind = chance.random()
            if kind < 0.4:
                items = "".join(chance.sample(_ITEMS, chance.randint(1, 3)))
                parts.append(f"[{chance.choice(['', '^', '^'])}{items}]")
            elif kind < 0.8 or not depth:
                parts.append(chance.choice(_ATOMS))
            else:
                parts.append(f"({chance.choice(['', '?:'])}{pattern(chance, depth - 1)})")
            parts[-1] += chance.choice(["", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])
        branches.append("".join(parts))
    return "|".join(branches)


def anchored(chance: random.Random) -> str:
    before, after = chance.choice(["", "^", "^"]), chance.choice(["", "$", "$"])
    return before + pattern(chance) + after


def as_python_reads(text: str) -> re.Pattern[str] | None:
    """The last line break may stand behind Python's end; None if it refuses the pattern."""
    with warnings.catch_warnings(), suppress(re.error):
        warnings.simplefilter("ignore")
        return re.compile(re.sub(r"\$\Z", r"\\Z", text))
    return None


@pytest.mark.long
@pytest.mark.parametrize("n_patterns", [50, pytest.param(2000, marks=pytest.mark.slow)])
def test_random_patterns_are_kept_as_python_reads_them(n_patterns: int) -> None:
    chance, n_allowed, n_written = random.Random(7), 0, 0
    for number in range(n_patterns):
        text = anchored(chance)
        wanted = as_python_reads(text)
        try:
            lark = schema_to_lark({"type": "string", "pattern": text})
            grammar = GuidedGrammar(demo_vocabulary(), lark)
        except SettingsError as error:
            assert "a range that" in str(error) or "Unsatisfiable" in str(error), (text, str(error))
            continue
        assert wanted is not None, text
        for _ in range(12):
            found = "".join(chance.choices(_CHARS, k=chance.randint(0, 3)))
            is_found = wanted.search(found) is not None
            allowed = takes(grammar, json.dumps(found, ensure_ascii=False))
            # What is a letter or no letter in one dialect only is left out.
            assert allowed == is_found or (is_found and not found.isascii()), (text, found)
            n_allowed += allowed
        if number % 4 == 0 and (written := random_text(lark, number, 30)) is not None:
            assert wanted.search(json.loads(written)), (text, written)
            n_written += 1
    assert n_allowed > 2 * n_patterns and n_written > n_patterns // 20


def test_random_patterns_are_kept_in_strings_without_quotes() -> None:
    chance, n_allowed = random.Random(8), 0
    for _ in range(100):
        text = anchored(chance)
        wanted = as_python_reads(text)
        rules = Rules("r")
        try:
            name = rules.string({"type": "string", "pattern": text})
            grammar = GuidedGrammar(demo_vocabulary(), Lark(name, rules.text))
        except SettingsError:
            continue
        assert wanted is not None, text
        for _ in range(8):
            found = "".join(chance.choices(_CHARS, k=chance.randint(0, 3)))
            is_found = wanted.search(found) is not None
            assert takes(grammar, found) == is_found or (is_found and not found.isascii()), (text, found)
            n_allowed += is_found
    assert n_allowed > 130


def test_a_negated_class_excludes_the_quote_and_the_backslash() -> None:
    for schema, form in (
        ({"type": "string", "pattern": r'^[^\\/"]{1,20}$'}, '"{}"'),
        (
            {"type": "object", "patternProperties": {r'^[^\\/"]{1,20}$': True}, "additionalProperties": False},
            '{{"{}": 1}}',
        ),
        ({"type": "object", "propertyNames": {"pattern": r'^[^\\/"]{1,20}$'}}, '{{"{}": 1}}'),
    ):
        grammar = GuidedGrammar(demo_vocabulary(), schema_to_lark(schema))
        assert takes(grammar, form.format("C:Users"))
        for text in (r"C:\\Users", r"a\"b", "a/b", r"a\/b", r"a\u005cb", r"a\u0022b"):
            assert not takes(grammar, form.format(text)), (schema, text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            [
                r"[[:alpha:]]",
                r"[[.a.]]",
                r"\bfoo\b",
                r"(?=a)b",
                r"(?<!a)b",
                r"(a)\1",
                r"a{,3}",
                r"a++",
                r"[]a]",
                r"[^]",
                r"\Aa\z",
                r"a$b",
                r"a^b",
                r"(?#x)a",
                r"(?x)a",
            ]
        ),
        *([r"a(?i)b", r"\x{41}", r"\ud800", r"\cA", r"[b-a]", r"[a-\d]", r"(", r")", r"[", r"*a"]),
        "a\\",
    ],
)
def test_what_dialects_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"at #/pattern: the pattern .* has .*; write it otherwise"):
        schema_to_lark({"type": "string", "pattern": text})


@pytest.mark.parametrize(
    ("text", "allowed", "others"),
    [
        (r"^\p{Lu}\P{Lu}$", ["Éa", "A1"], ["aa", "AA"]),
        (r"^\u{1f642}\ud83d\ude42\x41$", ["🙂🙂A"], ["🙂A"]),
        ("(?i)^ab$", ["aB", "AB"], ["b"]),
        ("^(?i:a)b$", ["Ab"], ["aB"]),
        ("(?s)^.$", ["\n"], [""]),
        ("^(?s:.).$", ["\na"], ["a\n"]),
        ("^(?P<x>a)(?<y>b)$", ["ab"], ["a"]),
        (r"^[\b][\s\S]$", ["\bé"], ["b."]),
    ],
)
def test_what_libraries_of_schemas_read_is_kept(text: str, allowed: list[str], others: list[str]) -> None:
    grammar = GuidedGrammar(demo_vocabulary(), schema_to_lark({"type": "string", "pattern": text}))
    for found in (*allowed, *others):
        assert takes(grammar, json.dumps(found, ensure_ascii=False)) == (found in allowed), found
