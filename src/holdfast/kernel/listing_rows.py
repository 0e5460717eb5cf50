"""Rows of lists and searches."""

from __future__ import annotations

from typing import NamedTuple


class Match(NamedTuple):
    """What a search found. `name` is how people call it."""

    id: str
    name: str


class CreatedJob(NamedTuple):
    seq: int
    at: int


class EndedAtSeq(NamedTuple):
    """When a job ended, and its number."""

    at: int
    seq: int


class FailedJob(NamedTuple):
    """`error` is JSON with a type and a message."""

    id: str
    tenant: str
    error: str | None
    at: int
