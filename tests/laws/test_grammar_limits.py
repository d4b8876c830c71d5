"""Laws of grammars that would keep the processor busy without end: refused, or given up where it is too much."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from edge_spec.errors import SettingsError
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models import resolve_family
from edge_spec.sampling.gbnf import gbnf_to_lark
from edge_spec.sampling.guidance import GuidedGrammar, GuidedVocabulary
from edge_spec.sampling.json_schema import schema_to_lark

MAX_S = 3.0


@pytest.fixture(scope="module")
def vocabulary() -> GuidedVocabulary:
    return GuidedVocabulary(LlamaWeights(resolve_family("demo").target, vocab_only=True))


def doubled(form: str, n: int) -> str:
    """Rules that each have the next one twice."""
    return "".join(f"r{i} ::= {form.format(f'r{i + 1}')}\n" for i in range(n)) + f'r{n} ::= "a"'


def alternatives(n: int) -> list[Any]:
    return [{"properties": {"kind": {"const": f"v{i}"}, "x": {}}, "required": ["kind"]} for i in range(n)]


GRAMMARS = {
    "repeated repetitions": 'root ::= "a"' + "+" * 300,
    "nested repetitions": "root ::= " + "(" * 190 + '"a"' + ")+" * 190,
    "nested bounds": 'root ::= "a"' + "{1,2}" * 190,
    "large bounds": 'root ::= (("a"{0,2000}){0,2000}){0,2000}',
    "large bounds that recur": 'root ::= (("a"{0,2000}){0,2000}){0,2000} root?',
    "optional parts": "root ::= " + '"a"? ' * 2000,
    "right recursion": 'root ::= "a" root?',
    "ambiguous": 'root ::= root root root | "a" | ""',
    "twice itself": "root ::= r0 root?\n" + doubled("{0} {0}", 40) + ' | ""',
    "states without end": 'root ::= ([ab]* "a" [ab]{1000}){20} "c"',
}
SCHEMAS: dict[str, Any] = {
    "alternatives": {"anyOf": alternatives(1000)},
    "values": {"enum": [f"value {i}" for i in range(20_000)]},
    "long array": {"type": "array", "minItems": 100_000},
    "deep arrays": json.loads('{"items":' * 100 + "{}" + "}" * 100),
    "repeated pattern": {"type": "string", "pattern": "^(((a{1,1000}){1,1000}){1,1000})$"},
    "pattern of a square": {"type": "string", "pattern": r"^\w*\w*!$"},
    "pattern of a power": {"type": "string", "pattern": "^" + "(.*)" * 9 + "(a|b|ab)*c$"},
    "pattern with states without end": {"type": "string", "pattern": "^(a|b)*a(a|b){40}c$"},
}
REFUSED: dict[str, tuple[Any, str]] = {
    "doubled": ("root ::= r0\n" + doubled("{0} {0}", 40) + ' | ""', "too big"),
    "itself": ("root ::= root", "cannot be kept"),
    "a long chain": (doubled("{0}", 20_000).replace("r0", "root", 1), "more than 250 rules and groups"),
    "deep groups": ("root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000, "groups are nested deeper than 200"),
    "deep": ('{"items":' * 100_000 + "{}" + "}" * 100_000, "is not JSON"),
    "many kinds": ({"oneOf": alternatives(300)}, "at #/oneOf: more than 200 alternatives"),
    "many choices": ({"anyOf": alternatives(1001)}, "at #/anyOf: more than 1000 alternatives"),
    "a billion items": ({"type": "array", "minItems": 10**9}, "at #/minItems"),
    "a chain of references": (
        {"$ref": "#/$defs/0", "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(5000)} | {"5000": {}}},
        "nested too deep",
    ),
    "divisible": ({"type": "integer", "multipleOf": 999_999_937}, "cannot be kept"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", [*GRAMMARS, *SCHEMAS])
def test_what_could_take_for_ever_is_followed_or_given_up_in_time(vocabulary: GuidedVocabulary, name: str) -> None:
    began = time.process_time()
    lark = gbnf_to_lark(GRAMMARS[name]) if name in GRAMMARS else schema_to_lark(SCHEMAS[name])
    state = GuidedGrammar(vocabulary, lark).start()
    assert time.process_time() - began < MAX_S
    letter = vocabulary.tokenizer.tokenize("a", add_special=False)[-1]
    for _ in range(100):
        began = time.process_time()
        mask = list(state.allowed(range(vocabulary.n_vocab)))
        assert time.process_time() - began < MAX_S
        token = letter if mask[letter] else next((token for token, may in enumerate(mask) if may), -1)
        following = state.after(token) if token >= 0 else None
        if following is None:
            break
        state = following


@pytest.mark.long
@pytest.mark.parametrize("name", REFUSED)
def test_what_could_not_be_followed_is_refused_in_time(vocabulary: GuidedVocabulary, name: str) -> None:
    grammar, message = REFUSED[name]
    began = time.process_time()
    with pytest.raises(SettingsError, match=message):
        is_gbnf = isinstance(grammar, str) and "::=" in grammar
        GuidedGrammar(vocabulary, gbnf_to_lark(grammar) if is_gbnf else schema_to_lark(grammar))
    assert time.process_time() - began < MAX_S


def test_a_place_that_is_too_much_leaves_the_others_as_they_were(vocabulary: GuidedVocabulary) -> None:
    start = GuidedGrammar(vocabulary, gbnf_to_lark(GRAMMARS["large bounds that recur"])).start()
    everything = range(vocabulary.n_vocab)
    letter = vocabulary.tokenizer.tokenize("a", add_special=False)[-1]
    states, masks = [start], [list(start.allowed(everything))]
    while any(masks[-1]):
        following = states[-1].after(letter)
        assert following is not None
        states.append(following)
        masks.append(list(following.allowed(everything)))
    again = start
    for mask in masks:
        few = [*range(40), letter]
        assert list(again.allowed(few)) == [mask[token] for token in few]
        assert again.forced(5) == []
        following = again.after(letter)
        assert following is not None
        again = following
