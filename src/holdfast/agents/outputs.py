"""What an answer must be: a type, its schema for the model, and the answer read as that type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from holdfast import checking
from holdfast.agents.tools import argument_schema
from holdfast.errors import UsageError

T = TypeVar("T")


class Output(Generic[T]):
    """A type that an answer must have: its schema for the model, and the answer as that type."""

    def __init__(self, kind: type[T]) -> None:
        if isinstance(kind, str | int | float | Mapping | Sequence):
            raise UsageError(f"output is a type that the answer must have, not {checking.shown(kind)}.")
        self._kind = kind

    def schema(self) -> dict[str, Any]:
        from pydantic import TypeAdapter

        return cast(dict[str, Any], _closed(argument_schema(TypeAdapter(self._kind).json_schema())))

    def __call__(self, _value: Any, text: str) -> T:
        from pydantic import TypeAdapter

        adapter: TypeAdapter[T] = TypeAdapter(self._kind)
        return adapter.validate_json(text)  # as it was written: a strict type takes less of what was read from it


def _closed(node: Any) -> Any:
    """Structured output wants every object to say that it has no further properties."""
    if isinstance(node, dict):
        closed = {key: _closed(value) for key, value in node.items()}
        if closed.get("type") == "object" and "additionalProperties" not in closed:
            closed["additionalProperties"] = False
        return closed
    return [_closed(item) for item in node] if isinstance(node, list) else node
