"""Schemas of structured output and strict tools: as the provider takes them, and what it refuses.

The provider's grammar knows a part of JSON Schema. What it does not know is moved into the description, where the model
may follow it: `accepted` gives what the official SDK's own transformation gives. The caller checks the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.errors import UsageError
from holdfast.models.protocol import Wire

Schema = dict[str, Any]

_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"),
)
_KNOWN = frozenset(
    (
        *("type", "anyOf", "allOf", "enum", "const", "$ref", "$defs", "definitions", "description", "title"),
        *("default", "properties", "required", "additionalProperties", "items", "minItems", "format", "pattern"),
    )
)
_BEYOND_GRAMMAR = re.compile(r"\(\?(?!:)|\\[bB1-9]")  # looking around, going back, ends of words


def accepted(schema: Mapping[str, Any], place: str = "the schema") -> Schema:
    """The schema as the provider takes it; `UsageError` where a part of it says nothing of what it is."""
    if not isinstance(schema, Mapping):
        raise UsageError(f"{place} is not a schema ({schema!r}): structured output needs its type.")
    rest = dict(schema)
    made: Schema = {}
    if (shared := rest.pop("$defs", None)) is not None:
        made["$defs"] = {name: accepted(each, f"{place}.{name}") for name, each in shared.items()}
    if (ref := rest.pop("$ref", None)) is not None:
        return {**made, "$ref": ref}
    if isinstance(rest.get("type"), list):
        kinds = rest.pop("type")
        rest["anyOf"] = [{**rest, "type": kind} for kind in kinds]
        rest = {key: rest[key] for key in ("anyOf", "description", "title") if key in rest}
    kind = _choose(made, rest, place)
    for word in ("description", "title"):
        if (text := rest.pop(word, None)) is not None:
            made[word] = text
    _SHAPES.get(kind or "", _plain)(made, rest, place)
    if rest:
        more = "{" + ", ".join(f"{key}: {value}" for key, value in rest.items()) + "}"
        made["description"] = f"{made['description']}\n\n{more}" if "description" in made else more
    return made


def check_schema(schema: Mapping[str, Any], place: str) -> None:
    """`UsageError` for what the provider would refuse as well, and for what a model could not fill in."""
    if _is_recursive(accepted(schema, place)):
        raise UsageError(f"{place} contains itself, which structured output does not support: limit its depth.")
    for where, part in _all_parts(schema, place):
        if not part.get("properties") and part.get("additionalProperties"):
            raise UsageError(
                f"{where} is a mapping of any keys, and structured output supports only fixed keys: "
                f"use a list of objects, each with a key and a value."
            )


def _all_parts(schema: Mapping[str, Any], place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield place, schema
    for name, part in _parts(schema):
        yield from _all_parts(part, f"{place}.{name}")


def _choose(made: Schema, rest: Schema, place: str) -> str | None:
    """Take over what the value is: a type, which is returned, one of several, or certain values."""
    kind = rest.pop("type", None)
    choices = {word: rest.pop(word, None) for word in ("anyOf", "oneOf", "allOf")}
    values = rest.get("enum")
    if isinstance(values, list) and values and all(map(_is_plain, values)):
        made["enum"] = rest.pop("enum")
    if "const" in rest and _is_plain(rest["const"]):
        made["const"] = rest.pop("const")
    literal = "enum" in made or "const" in made
    for word, variants in choices.items():
        if isinstance(variants, list):
            name = "allOf" if word == "allOf" else "anyOf"
            made[name] = [accepted(each, f"{place}.{word}.{number}") for number, each in enumerate(variants)]
            return None if literal else kind
    if literal:
        return None
    if kind not in _TYPES:
        raise UsageError(f"{place} does not say of which type it is ({kind!r}): structured output needs to know.")
    made["type"] = kind
    return str(kind)


def _plain(_made: Schema, _rest: Schema, _place: str) -> None:
    """Nothing more than its type is known to the provider."""


def _object(made: Schema, rest: Schema, place: str) -> None:
    properties = rest.pop("properties", {})
    made["properties"] = {name: accepted(each, f"{place}.{name}") for name, each in properties.items()}
    rest.pop("additionalProperties", None)
    made["additionalProperties"] = False
    if (required := rest.pop("required", None)) is not None:
        made["required"] = required


def _string(made: Schema, rest: Schema, _place: str) -> None:
    format = rest.pop("format", None)
    if format in _FORMATS:
        made["format"] = format
    elif format:
        rest["format"] = format  # last of what is said in words


def _array(made: Schema, rest: Schema, place: str) -> None:
    if (items := rest.pop("items", None)) is not None:
        made["items"] = accepted(items, f"{place}[]")
    least = rest.pop("minItems", None)
    if least in (0, 1):
        made["minItems"] = least
    elif least is not None:
        rest["minItems"] = least


_SHAPES = {"object": _object, "string": _string, "array": _array}


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def objection(body: Wire) -> str | None:
    """What the provider refuses in the schemas of a request, in its words; None when it takes them."""
    wanted = (body.get("output_config") or {}).get("format") or {}
    asked = [("output_config.format.schema", wanted.get("schema"))]
    tools = enumerate(body.get("tools") or [])
    asked += [(f"tools.{number}.custom", tool.get("input_schema")) for number, tool in tools if tool.get("strict")]
    for place, schema in asked:
        for problem in _refused(schema, ()) if isinstance(schema, dict) else ():
            return f"{place}: {problem}"
        if isinstance(schema, dict) and _is_recursive(schema):
            return f"{place}: Circular reference detected in schema definitions"
    return None


def _refused(schema: Any, path: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(schema, dict):
        yield f"{'.'.join(path) or 'schema'}: Input should be a valid dictionary"
        return
    kind = schema.get("type")
    unknown = sorted(set(schema) - _KNOWN)
    if unknown:
        yield f"For '{kind}' type, properties {', '.join(unknown)} are not supported"
    if kind == "object" and schema.get("additionalProperties") is not False:
        yield "For 'object' type, 'additionalProperties' must be explicitly set to false"
    if schema.get("minItems") not in (None, 0, 1):
        yield "For 'array' type, 'minItems' values other than 0 or 1 are not supported"
    if schema.get("format") is not None and schema["format"] not in _FORMATS:
        yield f"For 'string' type, format '{schema['format']}' is not supported"
    if _BEYOND_GRAMMAR.search(str(schema.get("pattern") or "")):
        yield "For 'string' type, 'pattern' uses a regular expression feature that is not supported"
    if not all(map(_is_plain, schema.get("enum") or ())):
        yield "'enum' may hold strings, numbers, booleans and null only"
    if not str(schema.get("$ref", "#")).startswith("#"):
        yield "external '$ref' is not supported"
    for name, part in _parts(schema):
        yield from _refused(part, (*path, name))


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for word in ("properties", "$defs", "definitions"):
        yield from (schema.get(word) or {}).items()
    for word in ("anyOf", "allOf"):
        yield from ((f"{word}.{number}", each) for number, each in enumerate(schema.get(word) or ()))
    if "items" in schema:
        yield "items", schema["items"]


def _is_recursive(schema: Schema) -> bool:
    """Whether a definition contains itself."""
    shared: dict[str, Any] = {**(schema.get("definitions") or {}), **(schema.get("$defs") or {})}
    inside = {name: set(_references(each)) for name, each in shared.items()}
    for start, direct in inside.items():
        seen, left = set[str](), list(direct)
        while left:
            name = left.pop()
            if name == start:
                return True
            if name not in seen:
                seen.add(name)
                left += inside.get(name, ())
    return False


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].rpartition("/")[2]
        for each in node.values():
            yield from _references(each)
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for each in node:
            yield from _references(each)
