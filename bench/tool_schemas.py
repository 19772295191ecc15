"""Schemas as they come from agents' tools and from the libraries that people write structured output with.

`PROMISES` are schemas that must be enforced to the last demand; `TOOLS` have demands in them that nobody can enforce,
and must work all the same.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

STRICT: Final[Schema] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "The name of the event"},
        "date": {"type": ["string", "null"], "description": "ISO 8601, null if unknown"},
        "participants": {"type": "array", "items": {"type": "string"}},
        "kind": {"type": "string", "enum": ["meeting", "party", "other"]},
        "place": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"city": {"type": "string"}, "zip": {"type": "string"}},
                    "required": ["city", "zip"],
                    "additionalProperties": False,
                },
                {"type": "null"},
            ]
        },
    },
    "required": ["name", "date", "participants", "kind", "place"],
    "additionalProperties": False,
}

RECURSIVE_STRICT: Final[Schema] = {
    "type": "object",
    "properties": {
        "ui": {"$ref": "#/$defs/node"},
        "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}},
    },
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "kind": {"type": "string", "enum": ["div", "button", "field"]},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["kind", "children"],
            "additionalProperties": False,
        },
        "step": {
            "type": "object",
            "properties": {"explanation": {"type": "string"}, "output": {"type": "string"}},
            "required": ["explanation", "output"],
            "additionalProperties": False,
        },
    },
    "required": ["ui", "steps"],
    "additionalProperties": False,
}

PYDANTIC: Final[Schema] = {
    "$defs": {
        "Cat": {
            "properties": {
                "kind": {"const": "cat", "title": "Kind", "type": "string"},
                "lives": {"default": 9, "exclusiveMinimum": 0, "title": "Lives", "type": "integer"},
            },
            "required": ["kind"],
            "title": "Cat",
            "type": "object",
        },
        "Dog": {
            "properties": {
                "kind": {"const": "dog", "title": "Kind", "type": "string"},
                "tags": {"additionalProperties": {"type": "number"}, "title": "Tags", "type": "object"},
            },
            "required": ["kind", "tags"],
            "title": "Dog",
            "type": "object",
        },
        "Level": {"enum": ["low", "high"], "title": "Level", "type": "string"},
    },
    "properties": {
        "pet": {
            "discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}, "propertyName": "kind"},
            "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
            "title": "Pet",
        },
        "level": {"$ref": "#/$defs/Level", "default": "low"},
        "born": {"anyOf": [{"format": "date", "type": "string"}, {"type": "null"}], "default": None, "title": "Born"},
        "pair": {
            "maxItems": 2,
            "minItems": 2,
            "prefixItems": [{"type": "integer"}, {"type": "string"}],
            "title": "Pair",
            "type": "array",
        },
        "by_code": {
            "patternProperties": {"^[A-Z]{3}$": {"type": "integer"}},
            "title": "By Code",
            "type": "object",
        },
        "price": {
            "anyOf": [
                {"type": "number"},
                {"pattern": "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$", "type": "string"},
            ],
            "title": "Price",
        },
    },
    "required": ["pet", "pair", "by_code"],
    "title": "Owner",
    "type": "object",
}
"""What `model_json_schema()` makes of a model with a tagged union, an enumeration, a tuple and a decimal."""

ZOD: Final[Schema] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "email": {
            "type": "string",
            "format": "email",
            "pattern": "^(?:[A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+\\-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$",
        },
        "age": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
        "settings": {
            "type": "object",
            "propertyNames": {"type": "string"},
            "additionalProperties": {"type": "boolean"},
        },
        "by_day": {
            "type": "object",
            "propertyNames": {"type": "string", "enum": ["monday", "tuesday"]},
            "additionalProperties": {"type": "number"},
            "required": ["monday", "tuesday"],
        },
        "point": {"type": "array", "items": [{"type": "number"}, {"type": "number"}], "minItems": 2, "maxItems": 2},
        "self": {"$ref": "#/properties/settings"},
    },
    "required": ["id", "email", "age", "settings", "by_day", "point"],
    "additionalProperties": False,
}

_FILES: Final[Schema] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 1, "pattern": "^[^\\u0000]+$"},
        "edits": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "oldText": {"type": "string", "description": "Text to search for - must match exactly"},
                    "newText": {"type": "string"},
                    "lines": {"$ref": "#/properties/ranges/items"},
                },
                "required": ["oldText", "newText"],
                "additionalProperties": False,
            },
        },
        "ranges": {
            "type": "array",
            "items": {"type": "array", "items": [{"type": "integer"}, {"type": "integer"}]},
        },
        "dryRun": {"type": "boolean", "default": False},
    },
    "required": ["path", "edits"],
    "additionalProperties": False,
    "$schema": "http://json-schema.org/draft-07/schema#",
}

_SEARCH: Final[Schema] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 2},
        "language": {"type": "string", "pattern": "^[a-z]{2}(?:-[A-Z]{2})?$"},
        "since": {"type": "string", "format": "date-time"},
        "link": {"type": "string", "format": "uri-reference"},
        "num": {"type": "integer", "minimum": 1, "maximum": 100, "default": 10},
        "page": {"type": "integer", "format": "int64", "minimum": 0, "maximum": 9223372036854775807},
        "filters": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}]}},
                {
                    "type": "object",
                    "properties": {"and": {"type": "array", "items": {"$ref": "#/properties/filters"}}},
                    "required": ["and"],
                },
            ]
        },
    },
    "required": ["query"],
}

_EMPTY: Final[list[Schema]] = [
    {},
    {"type": "object"},
    {"type": "object", "properties": {}},
    {"type": "object", "properties": {}, "required": []},
    {"type": "object", "properties": {"anything": {}, "described": {"description": "Any value"}}},
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    },
]

_DRAFT_4: Final[Schema] = {
    "$schema": "http://json-schema.org/draft-04/schema#",
    "id": "http://example.com/tool",
    "type": "object",
    "properties": {
        "ratio": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1},
        "child": {"$ref": "#/definitions/child"},
        "id": {"type": "string"},
    },
    "definitions": {"child": {"type": ["object", "null"], "properties": {"child": {"$ref": "#/definitions/child"}}}},
    "required": ["ratio"],
}


def _without(schema: Schema, name: str) -> Schema:
    return {**schema, "properties": {key: inner for key, inner in schema["properties"].items() if key != name}}


PROMISES: Final[dict[str, Schema]] = {
    "strict": STRICT,
    "strict and recursive": RECURSIVE_STRICT,
    "pydantic": _without(PYDANTIC, "price"),
    "zod": ZOD,
    "files": _FILES,
    "draft 4": _DRAFT_4,
    **{f"empty {number}": schema for number, schema in enumerate(_EMPTY)},
}

_PAGES: Final[Schema] = {
    "type": "object",
    "properties": {
        "parent": {
            "anyOf": [
                {"type": "object", "properties": {"page_id": {"type": "string"}}, "required": ["page_id"]},
                {"type": "object", "properties": {"database_id": {"type": "string"}}, "required": ["database_id"]},
            ]
        },
        "children": {
            "type": "array",
            "maxItems": 100,
            "uniqueItems": True,
            "items": {
                "oneOf": [
                    {
                        "type": "object",
                        "properties": {"paragraph": {"$ref": "#/$defs/text"}},
                        "required": ["paragraph"],
                    },
                    {"type": "object", "properties": {"heading": {"$ref": "#/$defs/text"}}, "required": ["heading"]},
                ]
            },
        },
        "archived": {"not": {}},
        "icon": {"type": "string", "not": {"enum": ["", "none"]}},
        "cover": {"$ref": "https://example.com/schemas/cover.json"},
    },
    "required": ["parent"],
    "$defs": {
        "text": {
            "type": "object",
            "properties": {
                "rich_text": {"type": "array", "items": {"type": "object", "additionalProperties": {}}},
                "password": {"type": "string", "pattern": "^(?=.*\\d)(?=.*[a-z]).{8,}$"},
            },
        }
    },
    "if": {"required": ["children"]},
    "then": {"required": ["icon"]},
    "dependentRequired": {"icon": ["cover"]},
}

_CALENDAR: Final[Schema] = {
    "type": "object",
    "properties": {
        "when": {
            "oneOf": [
                {"type": "object", "properties": {"date": {"type": "string", "format": "date"}}},
                {"type": "object", "properties": {"dateTime": {"type": "string", "format": "date-time"}}},
            ]
        },
        "reminders": {
            "type": "object",
            "minProperties": 1,
            "properties": {"email": {"type": "integer"}, "popup": {"type": "integer"}},
        },
        "color": {"type": "string", "pattern": "^#(?:[0-9a-f]{3}){1,2}$", "nullable": True},
        "attendees": {"type": "array", "items": {"type": "string", "format": "idn-email"}, "contains": {"const": "me"}},
        "flag": {"type": "boolean", "required": True},
    },
    "required": ["when"],
}

TOOLS: Final[dict[str, Schema]] = {
    "search": _SEARCH,
    "pages": _PAGES,
    "calendar": _CALENDAR,
    "pydantic with a decimal": PYDANTIC,
}


def long_tool_list(num: int = 200) -> list[Schema]:
    """Return the parameters of `num` tools, about half a kilobyte each."""
    return [
        {
            "type": "object",
            "properties": {
                "resource": {"type": "string", "description": f"The resource of tool {number}, as it is known there."},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "limit": {"type": "integer", "minimum": 1, "maximum": 10 * number + 10},
                "order": {"type": "string", "enum": ["asc", "desc"]},
                "after": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}], "default": None},
                "fields": {"type": "array", "items": {"type": "string", "pattern": "^[a-z_]+$"}, "uniqueItems": True},
            },
            "required": ["resource"],
        }
        for number in range(num)
    ]
