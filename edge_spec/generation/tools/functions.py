"""Functions that a model may call, as a program describes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge_spec.errors import Sentence, SettingsError

__all__ = ["CHOICES", "NAME", "Tool", "callable_functions", "declared"]

NAME = r"^[a-zA-Z0-9_.-]{1,128}$"
"""Names that a grammar can tell from what follows them."""

CHOICES = ("auto", "none", "required")

_FORM = '{"type": "function", "function": {"name": "...", "description": "...", "parameters": {a JSON schema}}}'


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A function that a model may call.

    Attributes:
        name: what it is called by.
        description: what it does, for the model.
        parameters: the JSON schema of its arguments; None if it has none.
        strict: a schema that cannot be kept is an error.

    Raises:
        SettingsError: it is not in that form.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool | None = None

    @classmethod
    def of(cls, given: Any, number: int) -> Tool:
        """Return the one that a program gives.

        Args:
            number: its place among them.
        """
        function = given.get("function") if isinstance(given, Mapping) and given.get("type") == "function" else None
        if not isinstance(function, Mapping):
            raise _refused(f"[{number}] is no function")
        name, kinds = function.get("name"), {"description": str, "parameters": Mapping, "strict": bool}
        values = {each: function.get(each) for each in kinds}
        if not isinstance(name, str) or not re.fullmatch(NAME, name):
            problem = f"[{number}] has the name {str(name)[:64]!r} and needs one of letters, digits, dots, dashes and _"
            raise _refused(problem)
        wrong = next((each for each, kind in kinds.items() if not isinstance(values[each], kind | None)), None)
        if wrong is not None:
            raise _refused(f"[{number}] ({name}) has a {wrong} of the wrong type")
        try:
            json.dumps(values)
        except (TypeError, ValueError, RecursionError):
            raise _refused(f"[{number}] ({name}) holds what JSON cannot write") from None
        return cls(name=name, **values)


def _refused(problem: str, hint: str = f"write it as {_FORM}") -> SettingsError:
    return SettingsError(problem, argument="tools", hint=hint)


def declared(function: Tool) -> dict[str, Any]:
    """Return a tool as templates show it to models."""
    parameters = function.parameters or {"type": "object", "properties": {}}
    values = {"name": function.name, "description": function.description or "", "parameters": parameters}
    return {"type": "function", "function": values}


def callable_functions(tools: Sequence[Mapping[str, Any]] | None, choice: str) -> tuple[list[Tool], list[Tool]]:
    """Return the functions that a prompt shows, and those of them that may be called.

    Args:
        choice: ``auto``, ``none``, ``required``, or the name of the function to call.

    Raises:
        SettingsError: one of the tools is not in the right form, or the choice is not among them.
    """
    if tools is not None and (isinstance(tools, str | Mapping) or not isinstance(tools, Sequence)):
        raise _refused(f"is {type(tools).__name__} and must be a list")
    functions = [Tool.of(given, number) for number, given in enumerate(tools or ())]
    names = [function.name for function in functions]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _refused(f"has two functions named {twice}", "rename one")
    if choice not in (*CHOICES, *names):
        hint = f"give one of {', '.join((*CHOICES, *names))}"
        raise SettingsError(f"is {str(choice)[:64]!r}", argument="tool_choice", hint=hint)
    if choice == "required" and not functions:
        hint = Sentence("give {tools}, or leave it out")
        raise SettingsError("is 'required', but there are no tools", argument="tool_choice", hint=hint)
    if choice == "none":
        return [], []
    return functions, functions if choice in CHOICES else [each for each in functions if each.name == choice]
