"""Ten schemas of different kinds: nested, enums, numbers, optional fields, Unicode, recursion, alternatives."""

from __future__ import annotations

from typing import Any

__all__ = ["SCHEMAS"]

_WORD = {"type": "string", "minLength": 1, "maxLength": 16}

SCHEMAS: dict[str, dict[str, Any]] = {
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 24},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "email": {"type": ["string", "null"], "maxLength": 24},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "enums": {
        "type": "object",
        "properties": {
            "animal": {"enum": ["dog", "cat", "bird", "fish"]},
            "mood": {"enum": ["happy", "sad", None, 3, True]},
            "kind": {"const": "story"},
        },
        "required": ["animal", "mood", "kind"],
    },
    "numbers": {
        "type": "object",
        "properties": {
            "any": {"type": "number"},
            "whole": {"type": "integer"},
            "share": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
            "degrees": {"type": "number", "minimum": -40, "maximum": 55},
            "year": {"type": "integer", "exclusiveMinimum": 1899, "maximum": 2100},
        },
        "required": ["any", "whole", "share", "degrees", "year"],
    },
    "nested": {
        "type": "object",
        "properties": {
            "title": _WORD,
            "place": {
                "type": "object",
                "properties": {
                    "town": _WORD,
                    "position": {
                        "type": "object",
                        "properties": {
                            "x": {"type": "integer", "minimum": 0, "maximum": 99},
                            "inside": {"type": "boolean"},
                        },
                        "required": ["x", "inside"],
                    },
                },
                "required": ["town", "position"],
            },
            "tags": {"type": "array", "items": _WORD, "minItems": 1, "maxItems": 3},
        },
        "required": ["title", "place", "tags"],
    },
    "optional": {
        "type": "object",
        "properties": {name: {"type": "boolean"} for name in ("first", "second", "third", "fourth")},
        "required": ["third"],
        "additionalProperties": False,
    },
    "unicode": {
        "type": "object",
        "properties": {
            "größe": {"enum": ["groß", "klein", "東京", '🙂 "so" \\ so']},
            "名前": {"type": "string", "maxLength": 12},
            "ночь": {"const": {"ключ": ["é", None]}},
        },
        "required": ["größe", "名前", "ночь"],
    },
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 8},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
                },
                "required": ["name"],
                "additionalProperties": False,
            }
        },
    },
    "alternatives": {
        "type": "array",
        "items": {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"type": {"const": "circle"}, "radius": {"type": "integer", "minimum": 1}},
                    "required": ["type", "radius"],
                },
                {
                    "type": "object",
                    "properties": {"type": {"const": "square"}, "side": {"type": "integer", "minimum": 1}},
                    "required": ["type", "side"],
                },
                {"type": "string", "format": "uuid"},
            ]
        },
        "minItems": 1,
        "maxItems": 3,
    },
    "dates": {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "moment": {"type": "string", "format": "date-time"},
            "pair": {
                "type": "array",
                "prefixItems": [{"type": "string", "maxLength": 5}, {"type": "integer", "maximum": -1}],
                "items": False,
                "minItems": 2,
            },
        },
        "required": ["day", "moment", "pair"],
    },
    "words": {
        "type": "object",
        "propertyNames": {"minLength": 1, "maxLength": 10},
        "minProperties": 1,
        "maxProperties": 4,
        "additionalProperties": {"anyOf": [{"type": "boolean"}, {"type": "null"}, {"enum": ["yes", "no"]}]},
    },
}
