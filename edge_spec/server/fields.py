"""Fields of requests: how they are read, and told when they are wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from edge_spec.server.errors import bad_value

__all__ = ["EACH", "Fields", "parse"]

EACH: Any = Field(fail_fast=True)
"""Validation of a list stops at the first wrong item: reporting a hundred thousand would take seconds."""


class Fields(BaseModel):
    """Base of fields: unknown fields are ignored, wrong types are errors, and null means that a field is absent."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {name: value for name, value in given.items() if value is not None}


F = TypeVar("F", bound=Fields)


def parse(kind: type[F], body: Mapping[str, Any]) -> F:
    """Return the fields of a request. A field that is null counts as absent.

    Raises:
        ApiError: a field is missing, of the wrong type or out of its range.
    """
    given = {name: value for name, value in body.items() if value is not None}
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        # Each branch of a union reports errors; the one deepest in the request is the most precise.
        complaints = [
            (_place(each["loc"], given, missing=each["type"] == "missing"), _wanted(each))
            for each in error.errors(include_url=False)
        ]
        param = max((place for place, _ in complaints), key=len)
        first, *others = dict.fromkeys(wanted for place, wanted in complaints if place == param)
        wanted = " or ".join((first, *(each.removeprefix("must be ") for each in others)))
        raise bad_value(param, wanted) from None


def _place(loc: tuple[int | str, ...], value: Any, *, missing: bool) -> str:
    """Return a path in the request, such as ``messages[0].content``. Names of a union's branches are left out."""
    place = ""
    for part in loc:
        if isinstance(part, int):
            place += f"[{part}]"
            value = value[part] if isinstance(value, list) and part < len(value) else None
        elif isinstance(value, Mapping) and (part in value or (missing and part == loc[-1])):
            place += f".{part}" if place else part
            value = value.get(part)
    return place


_WANTED = {
    "missing": "this field is needed",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "string_type": "must be a text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "literal_error": "must be one of {expected}",
    "too_short": "must not be empty",
    "too_long": "must have at most {max_length} items",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "string_pattern_mismatch": "must be 1 to 128 letters, digits, dots, dashes and underscores",
}
"""In the words of this API: the library's own name its classes."""


def _wanted(error: Any) -> str:
    sentence = _WANTED.get(error["type"], "is not what this API describes here").format(**error.get("ctx", {}))
    return sentence if " or " in sentence else sentence.replace("must be one of", "must be")
