"""Grammars of answers that may or must call tools."""

from __future__ import annotations

from collections.abc import Sequence

from edge_spec.errors import SettingsError
from edge_spec.sampling.json_schema import schema_to_gbnf
from edge_spec.server.call_syntax import CallSyntax
from edge_spec.server.errors import ApiError
from edge_spec.server.fields import MAX_GRAMMAR, FunctionFields
from edge_spec.server.gbnf import literal, renamed, unlike, until

__all__ = ["after_thought", "calls_grammar"]

_ANY_OBJECT = {"type": "object"}
_THINK, _THOUGHT = "<think>", "</think>"
_SPACE = " \\t\\r\\n"


def calls_grammar(
    functions: Sequence[FunctionFields], syntax: CallSyntax, *, required: bool, several: bool, may_think: bool
) -> str:
    """A grammar of answers: free text that may end in calls, or calls alone. Arguments are valid by their schemas.

    Args:
        required: there is at least one call, and no text of an answer.
        several: there may be more than one.
        may_think: a thought may come before them.

    Raises:
        ApiError: the schema of a strict function cannot be kept.
    """
    rules = ""
    ways = []
    for number, function in enumerate(functions):
        rules += renamed(_arguments(function, number, MAX_GRAMMAR - len(rules)), f"f{number}-")
        named = literal(f'{function.name}", "{syntax.arguments}": ')
        ways.append(f"{named} f{number}-root")
    begin, end = literal('{"name": "'), literal("}")
    rules += f"object ::= {begin} ({' | '.join(ways)}) {end}\n"
    call = f"{literal(syntax.opening)} object {literal(syntax.closing)}"
    more = f" ({literal(syntax.separator)} call)*" if several else ""
    rules += f"call ::= {call}\ncalls ::= call{more}\n"
    if required:
        if not may_think:
            return f"root ::= calls\n{rules}"
        rules += until("t", _THOUGHT, f"[{_SPACE}]* calls", or_end=False)
        return f"root ::= {literal(_THINK)} t0 | calls\n{rules}"
    if syntax.opening:
        rest = f"{literal(syntax.opening.removeprefix(syntax.mark))} object {literal(syntax.closing)}{more}"
        rules += f"free ::= s0\n{until('s', syntax.mark, 'rest', or_end=True)}rest ::= {rest}\n"
        other = "free"
    else:
        # As the answer is read: a brace at its beginning, white space aside, begins a call.
        rules += f"space ::= [;{_SPACE}]*\nfree ::= space (calls | [^{{;{_SPACE}] .*)?\n"
        other = "space (calls | o0)?"
    if not may_think:
        return f"root ::= free\n{rules}"
    # A call that is mentioned in a thought is not made.
    if not syntax.opening:
        rules += unlike("o", _THINK, "{;" + _SPACE)
    rules += until("t", _THOUGHT, "free", or_end=True)
    return f"root ::= [{_SPACE}]* {literal(_THINK)} t0 | {other}\n{rules}"


def after_thought(grammar: str) -> str:
    """The same grammar after a thought that the prompt has opened."""
    rules = until("t", _THOUGHT, "[\\n ]* answer-root", or_end=False)
    return f"root ::= t0\n{rules}{renamed(grammar, 'answer-')}"


def _arguments(function: FunctionFields, number: int, max_chars: int) -> str:
    """A grammar of a function's arguments. What a grammar cannot keep is left to the tool, unless it is strict."""
    schema = function.parameters or {"properties": {}}
    if schema.get("properties") == {}:
        # Where no argument is named there is none.
        schema = {"additionalProperties": False, **schema}
    try:
        return schema_to_gbnf({"type": "object", **schema}, max_chars=max_chars)
    except SettingsError as error:
        if function.strict:
            param = f"tools[{number}].function.parameters"
            raise ApiError(400, f"{param}: {error}", code="invalid_schema", param=param) from None
        return schema_to_gbnf(_ANY_OBJECT)
