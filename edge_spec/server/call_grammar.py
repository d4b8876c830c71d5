"""Grammars of answers that may or must call tools, in Lark's syntax."""

from __future__ import annotations

import re
from collections.abc import Sequence

from edge_spec.errors import SettingsError
from edge_spec.sampling.guidance import check_grammar
from edge_spec.sampling.json_schema import json_expression
from edge_spec.sampling.lark import Lark, literal
from edge_spec.server.call_syntax import CallSyntax
from edge_spec.server.errors import ApiError
from edge_spec.server.fields import FunctionFields

__all__ = ["after_thought", "calls_grammar"]

_ANY_OBJECT = {"type": "object"}
_THINK, _THOUGHT = "<think>", "</think>"
_SPACE = r" \t\r\n"
_THOUGHTS = rf"""
thought[suffix="{_THOUGHT}"]: /[{_SPACE}]*{_THINK}(?s:.*)/
UNENDED: /[{_SPACE}]*{_THINK}(?s:.*)/ & ~/(?s:.*)<\/think>(?s:.*)/
"""


def calls_grammar(
    functions: Sequence[FunctionFields], syntax: CallSyntax, *, required: bool, several: bool, may_think: bool
) -> Lark:
    """Return a grammar of answers: free text that may end in calls, or calls alone. Arguments are valid by their
    schemas.

    A terminal ends where it can go on no longer, so of what may come at one place each excludes the others.

    Args:
        required: there is at least one call, and no text of an answer.
        several: there may be more than one.
        may_think: a thought may come before them. A call that is mentioned in a thought is not made.

    Raises:
        ApiError: the schema of a strict function cannot be kept.
    """
    begin = '{"name": "'
    more = f" ({literal(syntax.separator + syntax.opening + begin)} call)*" if several else ""
    rules = "".join(_function(function, syntax, number) for number, function in enumerate(functions))
    ways = " | ".join(f"f{number}" for number in range(len(functions)))
    rules += f"call: ({ways}) {literal('}' + syntax.closing)}\ncalls: {literal(syntax.opening + begin)} call{more}\n"
    if required:
        first = f'first[suffix="{_THOUGHT}"]: /{_THINK}(?s:.*)/\n' if may_think else ""
        return Lark(f"first /[{_SPACE}]/* calls | calls" if may_think else "calls", rules + first)
    if syntax.opening:
        rest = literal(syntax.opening.removeprefix(syntax.mark) + begin)
        mark = re.escape(syntax.mark).replace("/", r"\/")

        def free(name: str, allowed: str) -> str:
            """Rules for a text in which a call begins with the first mark."""
            text = name.upper()
            return (
                f"{name}: {text}A | {name}b {rest} call{more}\n{text}: {allowed}\n"
                f"{text}A: {text} & ~/(?s:.*){mark}(?s:.*)/\n{name}b[suffix={literal(syntax.mark)}]: {text}\n"
            )

        anything, unthought = "/(?s:.*)/", f"/(?s:.*)/ & ~/[{_SPACE}]*{_THINK}(?s:.*)/"
    else:

        def free(name: str, allowed: str) -> str:
            """Rules for a text that is calls if it begins with a brace, as it will be read."""
            text = name.upper()
            first = rf"/[;{_SPACE}]*\{{\"name\": \"/"
            return f"{name}: {text} | {name}b call{more}\n{text}: {allowed}\n{name}b: {first}\n"

        anything = rf"/[;{_SPACE}]*([^{{;{_SPACE}](?s:.*))?/"
        unthought = f"{anything} & ~/[;{_SPACE}]*{_THINK}(?s:.*)/"
    rules += free("free", anything)
    if not may_think:
        return Lark("free", rules)
    return Lark("thought free | UNENDED | other", rules + free("other", unthought) + _THOUGHTS)


def after_thought(grammar: Lark) -> Lark:
    """Return the same grammar after a thought that the prompt has opened."""
    space = r"[\n ]"
    answer = f"ANSWER: /{space}*/ {grammar.root}\n"
    if not grammar.root.isupper():
        answer = f"answer: /{space}/* ({grammar.root})\n"
    rules = f'ended[suffix="{_THOUGHT}"]: /(?s:.*)/\n{answer}{grammar.rules}'
    return Lark(f"ended {answer.partition(':')[0]}", rules, grammar.argument)


def _function(function: FunctionFields, syntax: CallSyntax, number: int) -> str:
    """Return the rule of a call's name and arguments.

    What a grammar cannot keep of a schema is left to the tool, unless it is strict.
    """
    schema = function.parameters or {"properties": {}}
    if schema.get("properties") == {}:
        # Where no argument is named there is none.
        schema = {"additionalProperties": False, **schema}
    try:
        arguments = json_expression({"type": "object", **schema})
        check_grammar(Lark(arguments, argument="json_schema"))
    except SettingsError as error:
        if function.strict:
            param = f"tools[{number}].function.parameters"
            raise ApiError(400, f"{param}: {error}", code="invalid_schema", param=param) from None
        arguments = json_expression(_ANY_OBJECT)
    named = literal(f'{function.name}", "{syntax.arguments}": ')
    return f"f{number}: {named} {arguments}\n"
