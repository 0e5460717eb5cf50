"""JSON mode: what pydantic may read from stored text itself, without a decoder before it.

It goes by other rules then: a strict model takes a date from its text, 1.0 is another Decimal, a union prefers
another member. A job must get the same arguments whichever way they are read. So only annotations made of the parts
listed here are read so, and the tests must show for each new part that both ways agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_Schema = Mapping[str, Any]  # of pydantic's core

# Each part, and where it has others inside. These are known for what they are both ways, also among others in a union.
_EXACT: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("any", "none", "bool", "int", "float", "str", "literal"), ()),
    "list": ("items_schema",),
    "dict": ("keys_schema", "values_schema"),
    "nullable": ("schema",),
    "union": ("choices",),
}
# These are made of the same text or list both ways, but a union would be less sure of them in one than in the other.
_MADE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("datetime", "date", "time", "timedelta", "uuid", "enum"), ()),
    **dict.fromkeys(("tuple", "set", "frozenset"), ("items_schema",)),
    **dict.fromkeys(("default", "model", "model-field", "dataclass", "dataclass-field"), ("schema",)),
    "model-fields": ("fields", "extras_schema"),
    "dataclass-args": ("fields",),
}
# What makes a part go by other rules, when it is set; and which keys of a model's configuration are harmless.
_DISTURBING = ("strict", "validate_default", "coerce_numbers_to_str", "custom_init", "revalidate_instances")
_HARMLESS = frozenset({"title", "extra_fields_behavior", "ser_json_inf_nan", "ser_json_bytes", "ser_json_timedelta"})


def reads_alike(schema: _Schema, *, in_union: bool = False) -> bool:
    """Whether values of this core schema come out the same, read from text or from what a decoder made of it."""
    kind = schema["type"]
    inside = _EXACT.get(kind) if in_union or kind in _EXACT else _MADE.get(kind)
    if inside is None or _is_disturbed(schema) or not _is_plain(kind, schema):
        return False
    within = in_union or kind == "union"
    return all(reads_alike(part, in_union=within) for key in inside for part in _parts(schema.get(key)))


def _is_disturbed(schema: _Schema) -> bool:
    config = schema.get("config", {})
    return any(schema.get(key) for key in _DISTURBING) or any(config[key] for key in config.keys() - _HARMLESS)


def _is_plain(kind: str, schema: _Schema) -> bool:
    """Whether what it is compared with is written in JSON as it is."""
    match kind:
        case "literal":
            return all(type(value) is str for value in schema["expected"])
        case "enum":
            return all(type(member.value) in (str, int) for member in schema["members"])
        case "dict":
            return schema.get("keys_schema", {}).get("type", "any") in ("any", "str")
        case _:
            return True


def _parts(inner: Any) -> Iterator[_Schema]:
    """The schemas under one key: one, or several by name, in a row, or in a row with a label each."""
    if isinstance(inner, Mapping):
        yield from [inner] if isinstance(inner.get("type"), str) else inner.values()
    else:
        yield from (part[0] if isinstance(part, tuple) else part for part in inner or ())
