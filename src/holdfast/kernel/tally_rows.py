"""Rows of the tally as the kernel reads and writes them."""

from __future__ import annotations

from typing import NamedTuple


class Finished(NamedTuple):
    """Something that has ended, as the tally counts it. `layer` is the part of the runtime that it belongs to."""

    at: int
    source: str
    kind: str
    mode: str
    state: str
    tenant: str
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int
    wait_us: int | None
    duration_us: int | None
    id: str
    error: str | None
    message: str | None
    layer: str | None


class Tally(NamedTuple):
    """How many ended in one time, and what they used."""

    subject: str
    grain: str
    tenant: str
    at: int
    source: str
    kind: str
    mode: str
    state: str
    number: int
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int


class TallyTime(NamedTuple):
    """How many of them waited or took so long."""

    subject: str
    grain: str
    tenant: str
    at: int
    source: str
    kind: str
    mode: str
    state: str
    measure: str
    bucket: int
    number: int


class Failures(NamedTuple):
    """Failures that differ only in numbers and ids."""

    id: str
    subject: str
    tenant: str
    kind: str
    error: str
    message: str
    number: int
    first_at: int
    last_at: int
    last_id: str


class FailureGroup(NamedTuple):
    subject: str
    kind: str
    error: str
    message: str
    number: int
    first_at: int
    last_at: int
    last_id: str


class SeriesPoint(NamedTuple):
    """A part of a series: what was not asked for is empty."""

    at: int
    tenant: str
    source: str
    kind: str
    mode: str
    state: str
    number: int
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int


class CountedTime(NamedTuple):
    at: int
    tenant: str
    source: str
    kind: str
    mode: str
    state: str
    measure: str
    bucket: int
    number: int


class TalliedName(NamedTuple):
    name: str


class TimeRow(NamedTuple):
    at: int


class SourceMark(NamedTuple):
    """Up to which moment a source is counted."""

    name: str
    at: int
