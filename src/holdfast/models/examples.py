"""A value that follows a JSON schema: the arguments and the structured output of a script that was given none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def example(schema: Mapping[str, Any], text: str) -> Any:
    """Strings take `text`, numbers 1, booleans true, enums their first value; of a choice the first, `null` last."""
    return _example(schema, text, schema)


def _example(schema: Mapping[str, Any], text: str, root: Mapping[str, Any]) -> Any:
    if "$ref" in schema:
        return _example(_resolved(schema["$ref"], root), text, root)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            choices = [each for each in schema[key] if each.get("type") != "null"] or schema[key]
            return _example(choices[0], text, root)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), "null")
    return _of_type(kind, schema, text, root)


def _of_type(kind: str, schema: Mapping[str, Any], text: str, root: Mapping[str, Any]) -> Any:
    match kind:
        case "object":
            properties: Mapping[str, Any] = schema.get("properties") or {}
            wanted = schema.get("required", list(properties))
            return {name: _example(properties.get(name, {}), text, root) for name in wanted}
        case "array":
            count = max(1, schema.get("minItems", 1))
            return [_example(schema.get("items") or {}, text, root)] * count
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return text or "text"


def _resolved(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    value: Any = root
    for step in reference.removeprefix("#/").split("/"):
        value = value[step]
    found: Mapping[str, Any] = value
    return found
