"""Grammars of answers that may or must call tools, in Lark's syntax."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edge_spec.errors import SettingsError
from edge_spec.generation.thoughts import THOUGHTS, ThoughtMarks, marks_of
from edge_spec.generation.tools.functions import Tool
from edge_spec.generation.tools.schemas import Rules, Schema, pattern_of, refused
from edge_spec.generation.tools.syntax import CallSyntax
from edge_spec.sampling.lark import Lark, literal

__all__ = ["after_thought", "answer_grammar", "calls_grammar", "in_answer", "schema_of"]

_ANY_OBJECT = {"type": "object"}
_PIECES = re.compile(r'"[^"]*"|[{}]|[:,] ')
"""The terminals of JSON as grammars have them."""

_SPACE = r" \t\r\n"


def answer_grammar(
    functions: Sequence[Tool],
    syntax: CallSyntax,
    *,
    template: str,
    opening: str,
    required: bool,
    several: bool,
    answer: Lark | None,
    on_notice: Callable[[str], object],
) -> Lark | None:
    """Return a grammar of answers to a prompt; None if all are possible.

    Args:
        template: the model's chat template.
        opening: what the prompt has written of the answer.
        required, several, on_notice: of calls, see ``calls_grammar``.
        answer: of an answer that calls no function.

    Raises:
        SettingsError: the schema of a strict function cannot be kept.
    """
    marks = marks_of(template)
    is_open = marks.opening in opening
    if functions:
        # Where the answer is free it may begin with a thought, whatever the template knows.
        is_free = not required and answer is None
        may_think = not is_open and (is_free or marks.closing in template)
        answer = calls_grammar(
            functions,
            syntax,
            required=required,
            several=several,
            may_think=may_think,
            marks=marks,
            answer=answer,
            on_notice=on_notice,
        )
    elif answer is not None and marks.answer and not is_open:
        answer = in_answer(answer, marks)
    return after_thought(answer, marks) if answer is not None and is_open else answer


def calls_grammar(
    functions: Sequence[Tool],
    syntax: CallSyntax,
    *,
    required: bool,
    several: bool,
    may_think: bool,
    marks: ThoughtMarks = THOUGHTS[0],
    answer: Lark | None = None,
    on_notice: Callable[[str], object] = str,
) -> Lark:
    """Return a grammar of answers: free text that may end in calls, or calls alone. Arguments are valid by their
    schemas.

    A terminal ends where it can go on no longer, so of what may come at one place each excludes the others.

    Args:
        required: there is at least one call, and no text of an answer.
        several: there may be more than one.
        may_think: a thought may come before them. A call that is mentioned in a thought is not made.
        marks: those of a thought.
        answer: a grammar in JSON of an answer without calls; then the answer is that or calls. None for free text.
        on_notice: called with a sentence for each schema, of a function that is not strict, that is not kept whole.

    Raises:
        SettingsError: the schema of a strict function cannot be kept.
    """
    # Where both may begin with a brace, calls are written piece by piece as JSON is.
    in_json = not (syntax.mark or required) and answer is not None
    rules = "".join(
        _function(function, syntax, number, on_notice, in_json=in_json) for number, function in enumerate(functions)
    )
    ways = " | ".join(f"f{number}" for number in range(len(functions)))
    joined = f" ({literal(syntax.joined)} ({ways}))*" if several and syntax.joined else ""
    rules += f"call: ({ways}){joined} {_literal(syntax.closing)}\n"
    repeated = several and not syntax.joined and not syntax.forced
    opening = "" if in_json else literal(syntax.opening)
    between = literal(syntax.separator if in_json else syntax.separator + syntax.opening)
    more = f" ({between} call)*" if repeated else ""
    if required or answer is not None:
        forced = f"({literal(syntax.forced)} | {opening})" if syntax.forced else opening
        rules += f"calls: {forced} call{more}\n"
        if answer is not None and not required:
            rules += f"calls_or_answer: calls | {_literal(marks.answer)} ({answer.root})\n{answer.rules}"
        root = "calls" if required else "calls_or_answer"
        return Lark(_thought_first(root, marks) if may_think else root, rules + _first(marks))
    if syntax.mark:
        rest = _literal(syntax.opening.removeprefix(syntax.mark))
        mark = pattern_of(syntax.mark)

        def free(name: str, allowed: str) -> str:
            """Rules for a text in which a call begins with the first mark."""
            text = name.upper()
            return (
                f"{name}: {text}A | {name}b {rest} call{more}\n{text}: {allowed}\n"
                f"{text}A: {text} & ~/(?s:.*){mark}(?s:.*)/\n{name}b[suffix={literal(syntax.mark)}]: {text}\n"
            )

        anything, unthought = "/(?s:.*)/", f"/(?s:.*)/ & ~/[{_SPACE}]*{pattern_of(marks.opening)}(?s:.*)/"
    else:

        def free(name: str, allowed: str) -> str:
            """Rules for a text that is calls if it begins with a brace, as it will be read."""
            text = name.upper()
            first = f"/[;{_SPACE}]*{pattern_of(syntax.opening)}/"
            return f"{name}: {text} | {name}b call{more}\n{text}: {allowed}\n{name}b: {first}\n"

        anything = rf"/[;{_SPACE}]*([^{{;{_SPACE}](?s:.*))?/"
        unthought = f"{anything} & ~/[;{_SPACE}]*{pattern_of(marks.opening)}(?s:.*)/"
    rules += free("free", anything)
    if not may_think:
        return Lark("free", rules)
    begun, closing = f"[{_SPACE}]*{pattern_of(marks.opening)}(?s:.*)", pattern_of(marks.closing)
    thoughts = f"thought[suffix={literal(marks.closing)}]: /{begun}/\nUNENDED: /{begun}/ & ~/(?s:.*){closing}(?s:.*)/\n"
    return Lark("thought free | UNENDED | other", rules + free("other", unthought) + thoughts)


def after_thought(grammar: Lark, marks: ThoughtMarks = THOUGHTS[0]) -> Lark:
    """Return the same grammar after a thought that the prompt has opened."""
    space = r"[\n ]"
    answer = f"ANSWER: /{space}*/ {grammar.root}\n"
    if not grammar.root.isupper():
        answer = f"answer: /{space}/* ({grammar.root})\n"
    rules = f"ended[suffix={literal(marks.closing)}]: /(?s:.*)/\n{answer}{grammar.rules}"
    return Lark(f"ended {answer.partition(':')[0]}", rules, grammar.argument)


def in_answer(grammar: Lark, marks: ThoughtMarks) -> Lark:
    """Return the same grammar for answers that have a mark before them, and may have a thought before that."""
    rules = f"marked: {literal(marks.answer)} ({grammar.root})\n{grammar.rules}{_first(marks)}"
    return Lark(_thought_first("marked", marks), rules, grammar.argument)


def _first(marks: ThoughtMarks) -> str:
    """Return the rule of a thought that may come first."""
    return f"first[suffix={literal(marks.closing)}]: /{pattern_of(marks.opening)}(?s:.*)/\n"


def _thought_first(root: str, marks: ThoughtMarks) -> str:
    return f"first /[{_SPACE}]/* {_literal(marks.between)} {root} | {root}"


def _literal(text: str) -> str:
    return literal(text) if text else ""


def _function(
    function: Tool, syntax: CallSyntax, number: int, on_notice: Callable[[str], object], *, in_json: bool
) -> str:
    """Return the rules of a call's name and arguments, ``in_json`` of what comes before them, too.

    What a grammar cannot keep of a schema is left to the tool, unless it is strict.
    """
    # Requests without tools do without the library, which takes 5 MiB.
    from edge_spec.sampling.guidance import check_grammar

    def said(error: SettingsError) -> str:
        return error.spelled(lambda _: f"the schema of {function.name}")

    def made(schema: Schema, *, whole: bool) -> str:
        rules = Rules(f"f{number}", strict=whole, check=None if whole else check_grammar)
        try:
            arguments = syntax.arguments.grammar(schema, rules)
            check_grammar(Lark(arguments, rules.text, argument="json_schema"))
        except RecursionError:
            raise refused("parts that are nested so deep") from None
        for each in rules.left_out.values():
            on_notice(f"{said(each)}; as it is not strict, some arguments may be anything")
        begin = f"{literal(function.name)} {syntax.between}"
        if in_json:
            begin = " ".join(map(literal, _PIECES.findall(syntax.opening + function.name + syntax.middle)))
        return f"f{number}: {begin} {arguments}\n{rules.text}"

    schema = schema_of(function)
    try:
        return made(schema, whole=True)
    except SettingsError as error:
        if function.strict:
            raise SettingsError(said(error)) from None
    ways = [
        (schema, "what it says of all arguments together is left out"),
        (_of_each(schema), "its arguments may be anything"),
    ]
    notice = ""
    for each, left in ways:
        try:
            rules = made(each, whole=False)
            break
        except SettingsError as error:
            notice = f"{said(error)}; as it is not strict, {left}"
    else:
        rules = made(_ANY_OBJECT, whole=True)
    if notice:
        on_notice(notice)
    return rules


def _of_each(schema: Schema) -> Schema:
    """Return what a schema says of single arguments: their names, which are required, and what each may be."""
    named, needed = schema.get("properties"), schema.get("required")
    named = named if isinstance(named, Mapping) else {}
    known = [name for name in needed if isinstance(name, str) and name in named] if isinstance(needed, list) else []
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    return {**definitions, "type": "object", "properties": named, "required": known}


def schema_of(function: Tool) -> dict[str, Any]:
    """Return the schema of a function's arguments."""
    schema = function.parameters or {"properties": {}}
    if schema.get("properties") == {}:
        # Where no argument is named there is none.
        schema = {"additionalProperties": False, **schema}
    return {**_ANY_OBJECT, **schema}
