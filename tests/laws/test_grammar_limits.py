"""Laws of grammars that would keep the processor busy without end: they are refused at once."""

from __future__ import annotations

import re

import pytest

from edge_spec.errors import SettingsError
from edge_spec.sampling.gbnf import check_gbnf
from edge_spec.sampling.json_schema import schema_to_gbnf


def doubled(form: str) -> str:
    """Rules that each have the next one twice."""
    return "".join(f"r{n} ::= {form.format(f'r{n + 1}')}\n" for n in range(14)) + 'r14 ::= "a"'


def chained(form: str, n: int) -> str:
    """``n`` rules that each have the next one in them."""
    return "".join(f"r{i} ::= {form.format(f'r{i + 1}')}\n" for i in range(n)) + f'r{n} ::= "a"'


DEEP_ENDS = "in rule 'root' too many parts may go on where another one ends"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root ::= " + '"a"? ' * 101, "more than 100 optional parts in a row"),
        ("root ::= " + "a " * 101 + '\na ::= b\nb ::= "x"*', "more than 100 optional parts in a row"),
        ("root ::= " + '("a"{0,2000} | "b") ' * 51, "has 102102 parts, repetitions included"),
        ("root ::= " + " | ".join(f'"{n}"' for n in range(10_001)), "more than 10000 ways in rule 'root'"),
        ('root ::= "x" r0\n' + doubled("{0} | {0}"), "more than 10000 ways in rule 'root'"),
        ("root ::= r0\n" + doubled("{0} {0}") + '| ""', "more than 10000 ways in rule 'root'"),
        ('root ::= "a"' + "+" * 300, DEEP_ENDS),
        ('root ::= "a"' + "*" * 9, DEEP_ENDS),
        ('root ::= "a"' + "{1,2}" * 9, DEEP_ENDS),
        ('root ::= "x"\nunused ::= "a"' + "?" * 300, DEEP_ENDS.replace("root", "unused")),
        ("root ::= " + "(" * 9 + '"a"' + ")+" * 9, DEEP_ENDS),
        ("root ::= r0\n" + chained("{0}+", 9), DEEP_ENDS),
        ("root ::= r0\n" + chained("{0}+", 9) + ' | "b" r0', DEEP_ENDS),
        ("root ::= r0\n" + chained('"x" {0} "y"?', 101), DEEP_ENDS),
    ],
)
def test_what_would_take_minutes_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check_gbnf(text)
    check_gbnf("root ::= " + '"a"? ' * 100)


@pytest.mark.parametrize(
    "text",
    [
        "root ::= " + "(" * 8 + '"a"' + ")+" * 8,
        "root ::= " + '("a" ' * 150 + ")?" * 150,
        "root ::= r0\n" + chained('"[" {0}* "]"', 1000),
        "root ::= r0\n" + chained('"x" {0} "y"?', 100),
        'root ::= "(" root ")"? | "x"+',
    ],
)
def test_what_ends_one_after_the_other_is_no_work(text: str) -> None:
    check_gbnf(text)


def test_a_long_chain_of_rules_is_checked_at_once() -> None:
    """Recursion would run out of stack; what comes of the last rule is known at the first."""
    n = 20_000
    chain = "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(n)) + "\n"
    check_gbnf(chain + f'r{n} ::= "x"?')
    for last, message in (
        ("", f"uses 'r{n}', which is not defined"),
        (f'r{n} ::= r0 "x"', "can begin with itself"),
        (f'r{n} ::= "a"? ' + '"b"? ' * 100, "more than 100 optional parts in a row"),
    ):
        with pytest.raises(SettingsError, match=message):
            check_gbnf(chain + last)


def test_schemas_with_many_properties_and_values_are_read() -> None:
    names = [f"p{i}" for i in range(300)]
    properties = schema_to_gbnf({"properties": {name: {"type": "string"} for name in names}})
    check_gbnf(properties)
    assert re.findall(r'"\\"(p\d+)\\": " string', properties) == names[::-1]
    values = [f"value {i}" for i in range(3000)]
    check_gbnf(schema_to_gbnf({"enum": values}))


def test_what_values_begin_with_is_written_once() -> None:
    values = ["dog", "door", "do", 1, 12, None, 'say "so"', "dog"]
    assert schema_to_gbnf({"enum": values}).splitlines()[0] == (
        r'root ::= ("\"" ("do" ("g\"" | "or\"" | "\"") | "say \\\"so\\\"\"") | "1" ("2")? | "null")'
    )
    # Groups are not nested without end.
    check_gbnf(schema_to_gbnf({"enum": ["a" * n for n in range(300)]}))
