"""What a campaign attacks with that is made, not changed: nested values, tokenizers, and large numbers, by number."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from json_schemas import SCHEMAS
from mutations import Mutations
from published_models import publish
from published_weights import read_weights

from edge_spec.cli import main as command
from edge_spec.generation.prompts import render_chat
from edge_spec.models import resolve_family

__all__ = ["nested", "numbers", "tokenizer"]

_BEGINS = ("1", "[1]", "(1,)", "{}", "'a'", "namespace(a=1)", "range(9)", "messages", "1.5", "'a b'.split()", "dict()")
_GROWS = (
    *("[X, X]", "(X, X)", "{'a': X, 'b': X}", "namespace(a=X, b=X)", "[X] + [X]", "X ~ X", "[X, Y]", "(Y, X)"),
    *("{X: 1}", "dict(a=X, b=Y)", "[X]|list", "[X, X]|tojson", "[X] * 2", "X|string", "{'a': X}.items()", "X"),
    *("[X]|map('string')|list", "[X, Y]|batch(1)|list", "(X, X).__class__", "[X, X]|unique", "'%s%s' % (X, X)"),
)
_USES = (
    *("X == Y", "X < Y", "X in [Y]", "X is eq Y", "[X].index(Y)", "[X].count(Y)", "[X, Y]|max", "[X, Y]|sort"),
    *("{X: 1}|length", "{}[X]", "{}.get(X)", "dict([(X, 1)])", "[X]|unique|list", "X|tojson(indent=4)", "X|string"),
    *("[{'a': X}, {'a': Y}]|groupby('a')", "[X]|select('eq', Y)|list", "X ~ Y", "X|length", "X|pprint", "X|list"),
    *("[X, Y]|sum(start=[])", "X|join(Y|string)", "X.copy() == Y", "X|dictsort", "'%s' % (X,)", "'{}'.format(X)"),
    *("X|map('list')|list", "X|first", "X|random", "X|reverse|list", "X|xmlattr", "X|urlize", "X|urlencode", "[X] * N"),
    *("X|round(-N)", "X|int(N)", "X|center(N)", "X|indent(N)", "X|batch(N)|list", "X|slice(N)|list", "X ** N", "X * N"),
    *(
        "X.replace('a', Y)",
        "X|replace('a', 'a' * N)",
        "X.items() == Y.items()",
        "X|wordwrap(1)",
        "X|striptags",
        "X[::-1]",
    ),
)
_NUMBERS = ("3", "60", "99999", "10**9", "-10**9", "10**30", "'x'")


def nested(number: int, _: Path) -> Callable[[], object]:
    """A template that nests values in each other, some sixty times, and then does something with them."""
    chance = Random(number)
    grows = [chance.choice(_GROWS) for _ in range(chance.choice((1, 2, 3)))]
    steps = "".join(
        f"{{% set n.{name} = {grow.replace('X', f'n.{name}').replace('Y', other)} %}}"
        for grow in grows
        for name, other in (("x", "n.y"), ("y", "n.x"))
    )
    begin = chance.choice(_BEGINS)
    uses = [chance.choice(_USES) for _ in range(chance.choice((1, 1, 2)))]
    use = "|list == ".join(uses) if chance.random() < 0.1 else " }}{{ ".join(uses)
    use = use.replace("X", "n.x").replace("Y", "n.y").replace("N", chance.choice(_NUMBERS))
    times = chance.choice((3, 18, 40, 60, 2000))
    made = f"{{% set n = namespace(x={begin}, y={begin}) %}}{{% for i in range({times}) %}}{steps}{{% endfor %}}"
    made += f"{{{{ {use} }}}}"
    return lambda: render_chat(made, [{"role": "user", "content": "hi"}] * 2, bos="", eos="")


_ATOMS = (
    r"\w",
    r"\s",
    "a",
    "[ab]",
    ".",
    r"\p{L}",
    r"[^\s\p{L}]",
    "b",
    r"\d",
    "(?i:a|b)",
    "(?=a)",
    r"(?!\S)",
    "$",
    "東",
)
_TIMES = ("", "", "", "?", "*", "+", "{1,3}", "{0,9}", "{2,}", "*?", "++", "{1,999}")


def _pattern(chance: Random, depth: int = 2) -> str:
    made = ""
    for _ in range(chance.choice((1, 2, 2, 3, 4))):
        atom = chance.choice(_ATOMS)
        if depth and chance.random() < 0.3:
            atom = f"({chance.choice(('', '?:', '?=', '?!', '?>'))}{_pattern(chance, depth - 1)})"
        made += atom + chance.choice(_TIMES)
    return f"{made}|{_pattern(chance, depth - 1)}" if depth and chance.random() < 0.3 else made


def _part(chance: Random) -> dict[str, Any]:
    """A part of a tokenizer's normalizers or splitters."""
    by: dict[str, Any] = (
        {"Regex": _pattern(chance)} if chance.random() < 0.6 else {"String": chance.choice(("a", "ab", "l"))}
    )
    content = chance.choice(("", "a", "ll", "a" * 9, "a" * 70, "\u2581"))
    return chance.choice(
        (
            {"type": "Split", "pattern": by, "behavior": chance.choice(("Isolated", "Removed", "MergedWithPrevious"))}
            | {"invert": chance.random() < 0.2},
            {"type": "Replace", "pattern": by, "content": content},
            {"type": "Prepend", "prepend": content},
            {
                "type": chance.choice(
                    ("NFKD", "NFC", "Lowercase", "ByteLevel", "Whitespace", "Digits", "Nmt", "BertNormalizer")
                )
            },
            {
                "type": "Precompiled",
                "precompiled_charsmap": chance.choice(("AAAA", "BAAAAP////8=", "//////////////8=")),
            },
            {"type": "FixedLength", "length": chance.choice((0, 1, 5))},
            {"type": "Strip", "strip_left": True, "strip_right": False},
        )
    )


def tokenizer(number: int, folder: Path) -> Callable[[], object]:
    """A published model whose tokenizer splits and changes texts by parts that nobody published."""
    base, changed = folder / "sound", folder / "changed"
    if not base.exists():
        publish(base, read_weights(Path(str(resolve_family("demo").draft))), "plain")
    shutil.rmtree(changed, ignore_errors=True)
    shutil.copytree(base, changed)
    chance, file = Random(number), changed / "tokenizer.json"
    values = json.loads(file.read_text())
    for place, several in (("pre_tokenizer", "pretokenizers"), ("normalizer", "normalizers")):
        if chance.random() < 0.7:
            kinds = {"pre_tokenizer": ("Split", "Whitespace", "Digits", "ByteLevel", "FixedLength")}.get(place)
            parts = [_part(chance) for _ in range(chance.choice((1, 2, 4, 20)))]
            parts = [
                each for each in parts if (each["type"] in kinds if kinds else each["type"] not in ("Split", "Digits"))
            ]
            before = [values[place]] if values.get(place) and chance.random() < 0.7 else []
            values[place] = {"type": "Sequence", several: [*parts, *before]}
    if chance.random() < 0.3:
        values = Mutations(number).of_json(values)
    file.write_text(json.dumps(values))
    text = chance.choice(("a", "ab", " ", "a ", "1", "l", "a1", "東")) * chance.choice((3, 100, 1500)) + chance.choice(
        " !x"
    )
    asked = [
        "run",
        str(changed),
        "--raw",
        "-p",
        text,
        "-n",
        "2",
        "--threads",
        "1",
        "--memory",
        "600MiB",
        "--ctx",
        "256",
    ]
    return lambda: command(asked)


_LARGE = (10**309, -(10**309), 10**400, 10**4299, 10**18, 2**63, 2**64, 2**31, 10**30, -(2**63), 10**308, 5e-324, 1e308)


def numbers(number: int) -> dict[str, Any]:
    """A request in which numbers are large, wherever one may stand."""
    chance = Random(number)

    def large(_: Any = None) -> Any:
        return chance.choice(_LARGE)

    fields = ("temperature", "top_p", "min_p", "typical_p", "top_k", "max_tokens", "n", "seed", "presence_penalty")
    fields += ("frequency_penalty", "repeat_penalty", "dry_multiplier", "dry_base", "xtc_threshold", "top_logprobs")
    fields += (
        "max_completion_tokens",
        "repeat_last_n",
        "dry_allowed_length",
        "timeout",
        "xtc_probability",
        "logit_bias",
    )
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    for name in chance.sample(fields, k=chance.choice((0, 1, 1, 2))):
        asked[name] = {str(abs(large())): large()} if name == "logit_bias" else large()
    if chance.random() < 0.6:
        words = ("minimum", "maximum", "exclusiveMinimum", "multipleOf", "const", "minLength", "maxLength", "minItems")
        words += ("maxItems", "minProperties", "maxProperties")
        kind = chance.choice(("integer", "number", "string", "array", "object"))
        schema: dict[str, Any] = {"type": kind, **{name: large() for name in chance.sample(words, k=2)}}
        if chance.random() < 0.3:
            schema = {"enum": [large(), large(), 1.5]}
        if chance.random() < 0.3:
            schema = {**chance.choice([*SCHEMAS.values()]), **schema}
        if chance.random() < 0.7:
            asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        else:
            parameters = {"type": "object", "properties": {"a": schema}}
            asked["tools"] = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    return asked
