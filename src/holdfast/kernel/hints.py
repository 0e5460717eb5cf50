"""Hints: words that make a worker or a caller look sooner, sent after the commit that caused them. Any may be lost.

A hint is a subject and names: `route 1,2,3` (something may be claimable there), `cancel 4,5` (these workers should
renew now), `looked …` (somebody looked at the store for everybody: `kernel.crowd`). `look` names nothing and is for
everybody. Layers have words of their own, which their readers understand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

LOOK = "look"
WORDS = frozenset({LOOK, "looked", "route", "cancel"})  # a layer's words are others
EVERY = "*"  # in place of names that would be too many
LARGEST = 7_900  # bytes; a NOTIFY carries 8,000


class Announcement(NamedTuple):
    """What outside listeners read: words on their channel."""

    channel: str
    payload: str


def route_note(routes: Iterable[int]) -> str:
    """The hint for work on these routes; "" when there are none."""
    listed = ",".join(str(route) for route in sorted(set(routes)))
    return f"route {listed}" if listed else ""


def merged(notes: Iterable[str], largest: int = LARGEST) -> list[str]:
    """The same hints in as few notes as they fit into, each no larger than that; subjects stay in their order."""
    named: dict[str, set[str]] = {}
    for note in notes:
        subject, _, names = note.partition(" ")
        named.setdefault(subject, set()).update(names.split(",") if names else ())
    return list(dict.fromkeys(note for subject, names in named.items() for note in _cut(subject, names, largest)))


def _cut(subject: str, names: set[str], largest: int) -> Iterator[str]:
    if EVERY in names:
        names = {EVERY}
    size, part = len(subject.encode()), list[str]()
    if not names:
        yield subject if size <= largest else LOOK
    begun = size
    for name in sorted(names):
        more = 1 + len(name.encode())
        if part and size + more > largest:
            yield f"{subject} {','.join(part)}"
            size, part = begun, []
        if size + more > largest:
            yield LOOK
            continue
        size, part = size + more, [*part, name]
    if part:
        yield f"{subject} {','.join(part)}"
