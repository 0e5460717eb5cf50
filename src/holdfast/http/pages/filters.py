"""Filters: what a list is narrowed by, as it stands in the address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast import durations
from holdfast.app import core_of
from holdfast.http.api.seen import Seen
from holdfast.values.times import moment


@dataclass(frozen=True, slots=True)
class Tab:
    """One state of a list as a tab; `value` is what the address says, empty for all."""

    value: str
    name: str


@dataclass(frozen=True, slots=True)
class Chip:
    """A filter that is on: what it says, and the filters that are left without it."""

    name: str
    value: str
    without: Mapping[str, str]

    def beside(self, others: Mapping[str, str]) -> Chip:
        """The same, where these filters are on too."""
        return Chip(self.name, self.value, {**self.without, **others})


def now_of(seen: Seen) -> datetime:
    return moment(core_of(seen.hf).ports.clock.wall_us())


def from_when(seen: Seen, span: str | None) -> datetime | None:
    """From when on: `since=1h` in an address is an hour before now, whenever it is opened."""
    if not span:
        return None
    wide = min(durations.microseconds(span), durations.microseconds("36500d"))
    return now_of(seen) - timedelta(microseconds=wide)


def chips(given: Mapping[str, str | None]) -> tuple[Chip, ...]:
    """The filters that are on."""
    chosen = {name: value for name, value in given.items() if value}
    return tuple(
        Chip(name, value, {each: other for each, other in chosen.items() if each != name})
        for name, value in chosen.items()
    )
