"""Laws of grammars that would keep the processor busy without end: they are refused at once."""

from __future__ import annotations

import re

import pytest

from edge_spec.errors import SettingsError
from edge_spec.sampling.gbnf import check_gbnf
from edge_spec.sampling.json_schema import schema_to_gbnf


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root ::= " + '"a"? ' * 101, "more than 100 optional parts in a row"),
        ("root ::= " + "a " * 101 + '\na ::= b\nb ::= "x"*', "more than 100 optional parts in a row"),
        ("root ::= " + '("a"{0,2000} | "b") ' * 51, "has 102102 parts, repetitions included"),
    ],
)
def test_what_would_take_minutes_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check_gbnf(text)
    check_gbnf("root ::= " + '"a"? ' * 100)


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
    choices = schema_to_gbnf({"enum": values})
    check_gbnf(choices)
    assert re.findall(r'"\\"(value \d+)\\""', choices) == values
