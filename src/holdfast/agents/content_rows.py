"""Rows about content: calls in what was said, results that a provider refuses, messages that are retired."""

from __future__ import annotations

from typing import NamedTuple


class UseId(NamedTuple):
    id: str


class TurnError(NamedTuple):
    error: str | None


class Unaccepted(NamedTuple):
    """A message that no answer has followed."""

    id: str
    ordinal: int
    kind: str
    run: str
    turn: int


class FoundMessage(NamedTuple):
    id: str
    ordinal: int
    branch: str
    run: str
    kind: str
    made_by: str | None


class RunId(NamedTuple):
    id: str


class RetiredMessage(NamedTuple):
    id: str
    ordinal: int
    made_by: str | None  # the compaction that wrote it
