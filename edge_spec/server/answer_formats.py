"""Read the form of an answer from a request: a grammar, or a JSON schema in any place where clients put it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge_spec.errors import SettingsError
from edge_spec.sampling.gbnf import gbnf_to_lark
from edge_spec.sampling.json_schema import schema_to_lark
from edge_spec.sampling.lark import Lark
from edge_spec.server.errors import ApiError, bad_value, in_fields
from edge_spec.server.fields import MAX_GRAMMAR, MAX_SCHEMAS, ReplyFields

__all__ = ["CONSTRAINTS", "WantedFormat", "require_short", "wanted_format"]

CONSTRAINTS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "regex", "ebnf")
"""Fields of other servers that constrain answers and are not supported here."""

_ANY_OBJECT = {"type": "object"}

_WRAPPER = frozenset(("name", "description", "strict", "schema"))
"""The keys that OpenAI's API puts around a schema."""


@dataclass(frozen=True)
class WantedFormat:
    """A grammar of whole answers.

    Attributes:
        field: the field of the request that asks for it.
        is_json: whether it is made of a schema.
    """

    grammar: Lark
    field: str
    is_json: bool

    def refused(self, error: SettingsError) -> ApiError:
        """Return the error for a grammar that cannot be enforced."""
        return bad_value(self.field, in_fields(error))


def wanted_format(asked: ReplyFields) -> WantedFormat | None:
    """Return the form that a request asks for; None if it asks for none.

    Raises:
        ApiError: it asks for two, or for one that cannot be kept.
    """
    wanted = asked.response_format
    given = {
        "response_format": wanted if wanted is not None and wanted.type != "text" else None,
        "json_schema": asked.json_schema,
        "format": asked.format,
        "grammar": asked.grammar,
    }
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise bad_value(names[1], f"it and {names[0]} both say what may be written; give one of them")
    if asked.grammar is not None:
        if len(asked.grammar) > MAX_GRAMMAR:
            n_chars = len(asked.grammar)
            raise bad_value("grammar", f"{n_chars} characters, and at most {MAX_GRAMMAR} are read; simplify it")
        return WantedFormat(gbnf_to_lark(asked.grammar), "grammar", is_json=False)
    if asked.json_schema is not None:
        return _json(*_unwrapped(asked.json_schema, "json_schema"))
    if asked.format is not None:
        return _json(_ANY_OBJECT if asked.format == "json" else asked.format, "format")
    if wanted is None:
        return None
    places = {"response_format.json_schema": wanted.json_schema, "response_format.schema": wanted.own_schema}
    schemas = [(schema, place) for place, schema in places.items() if schema is not None]
    if wanted.type == "text":
        if schemas:
            raise bad_value("response_format.type", "it is 'text' beside a schema; for JSON give 'json_schema'")
        return None
    if len(schemas) > 1:
        raise bad_value(schemas[1][1], f"it and {schemas[0][1]} are both schemas; give one of them")
    if not schemas and wanted.type == "json_schema":
        raise bad_value("response_format.json_schema", "this field is needed")
    return _json(*(_unwrapped(*schemas[0]) if schemas else (_ANY_OBJECT, "response_format")))


def require_short(schemas: Any, field: str) -> None:
    """Raise if the schemas are too long together.

    Raises:
        ApiError: the schemas are too long.
    """
    n_chars = len(json.dumps(schemas))
    if n_chars > MAX_SCHEMAS:
        raise bad_value(
            field, f"schemas of {n_chars} characters, and at most {MAX_SCHEMAS} are read; shorten or leave out some"
        )


def _unwrapped(given: Mapping[str, Any], field: str) -> tuple[Any, str]:
    """Return a schema, with or without OpenAI's names around it, and its field."""
    if given.keys() <= _WRAPPER:
        inner = given.get("schema")
        return inner if inner is not None else {}, f"{field}.schema"
    return given, field


def _json(schema: Any, field: str) -> WantedFormat:
    if not isinstance(schema, Mapping):
        raise bad_value(field, "must be an object")
    require_short(schema, field)
    try:
        return WantedFormat(schema_to_lark(schema), field, is_json=True)
    except SettingsError as error:
        raise bad_value(field, in_fields(error)) from None
