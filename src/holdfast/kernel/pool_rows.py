"""Rows of pools. Each record's fields stand in the order of its statement's columns."""

from __future__ import annotations

from typing import NamedTuple


class PoolRow(NamedTuple):
    name: str
    settings: str
    keepers: int  # live processes that decide about it


class PastWorker(NamedTuple):
    """One of the last workers of a pool."""

    seq: int
    status: str
    pid: int  # 0: no process has taken the place
    started_at: int
    stopped_at: int | None
    boot_by: int | None  # the same for all that one decision started
    reason: str | None
    now: int


class LoadRow(NamedTuple):
    jobs: int


class PlaceRow(NamedTuple):
    seq: int
    id: str


class PlaceStanding(NamedTuple):
    seq: int
    id: str
    status: str
