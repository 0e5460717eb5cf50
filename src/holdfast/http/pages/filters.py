"""Filters: what a list is narrowed by, as it stands in the address."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import Request

from holdfast import durations
from holdfast.app import core_of
from holdfast.http.api.seen import PrincipalScope
from holdfast.values import moment


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


def now_of(seen: PrincipalScope) -> datetime:
    return moment(core_of(seen.hf).ports.clock.wall_us())


def from_when(seen: PrincipalScope, span: str | None) -> datetime | None:
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


# Metadata in lists: the columns and drop-downs that `hf.web(columns=, filters=)` names, as the address has them.


PREFIX = "meta."  # of each of them in an address: ?meta.plan=gold
MOST_VALUES = 50  # that a drop-down offers


@dataclass(frozen=True, slots=True)
class DropDownValue:
    """One value that can be chosen: as the address has it, and how many have it."""

    value: str
    count: int


@dataclass(frozen=True, slots=True)
class DropDown:
    name: str
    field: str
    chosen: str
    values: Sequence[DropDownValue]


@dataclass(frozen=True, slots=True)
class MetadataColumns:
    """`columns` are keys that have a column of their own, `filters` keys with a drop-down; `chosen` what it says.

    `refreshes`: only rows are asked for, so that no drop-down needs its values.
    """

    columns: tuple[str, ...]
    filters: tuple[str, ...]
    chosen: Mapping[str, str]
    refreshes: bool

    @property
    def wanted(self) -> dict[str, Any]:
        """What metadata must contain."""
        return {name: value_of(text) for name, text in self.chosen.items()}

    @property
    def asked(self) -> dict[str, str]:
        """What is chosen, as it stands in the address."""
        return {PREFIX + name: text for name, text in self.chosen.items()}

    def chips(self, others: Mapping[str, str | None]) -> tuple[Chip, ...]:
        """What is chosen, as filters that can be taken away; `others` are those that stay."""
        kept = {name: value for name, value in others.items() if value}
        return tuple(
            Chip(name, text, kept | {field: said for field, said in self.asked.items() if field != PREFIX + name})
            for name, text in self.chosen.items()
        )

    async def drop_downs(self, values: Callable[[str], Awaitable[Sequence[tuple[Any, int]]]]) -> list[DropDown]:
        """Each with the values that there are, and the chosen one if none of the newest has it any more."""
        return [
            DropDown(name, PREFIX + name, self.chosen.get(name, ""), await self._values(name, values))
            for name in self.filters
        ]

    async def _values(
        self, name: str, values: Callable[[str], Awaitable[Sequence[tuple[Any, int]]]]
    ) -> list[DropDownValue]:
        found = [] if self.refreshes else [DropDownValue(text_of(value), n) for value, n in await values(name)]
        chosen = self.chosen.get(name)
        if chosen is not None and chosen not in {each.value for each in found}:
            found.insert(0, DropDownValue(chosen, 0))
        return found


def text_of(value: Any) -> str:
    """A value as an address has it: a plain text as it is, everything else as JSON."""
    return value if isinstance(value, str) and value_of(value) == value else json.dumps(value, ensure_ascii=False)


def value_of(text: str) -> Any:
    """What `text_of` made this text of."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


async def metadata_shown(request: Request) -> MetadataColumns:
    columns, filters = request.state.columns
    given = {name: request.query_params.get(PREFIX + name, "").strip() for name in filters}
    chosen = {name: text for name, text in given.items() if text}
    return MetadataColumns(columns, filters, chosen, request.headers.get("hx-request") == "true")


ShownMetadata = Annotated[MetadataColumns, Depends(metadata_shown)]
