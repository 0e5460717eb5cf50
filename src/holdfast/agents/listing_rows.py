"""Rows of lists: where a look ended, and who has something."""

from __future__ import annotations

from typing import NamedTuple


class RunPlace(NamedTuple):
    created_at: int
    id: str


class TenantName(NamedTuple):
    tenant: str


class CallPlace(NamedTuple):
    id: str
    at: int
