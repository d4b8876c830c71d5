"""Laws of grammars that would keep the processor busy without end: they are refused at once."""

from __future__ import annotations

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
    n = 20_000
    check_gbnf("root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(n)) + f'\nr{n} ::= "x"?')


def test_schemas_with_many_properties_and_values_are_read() -> None:
    schema_to_gbnf({"properties": {f"p{i}": {"type": "string"} for i in range(300)}})
    schema_to_gbnf({"enum": [f"value {i}" for i in range(3000)]})
