"""Short ids: as much of the beginning of an id as names one thing in this database.

An id begins with its time, so the things next to it in the index of ids decide how much is needed. Two looks into that
index answer for each id, however many there are. A short id of a list stays right: it is long enough to differ from
the ids that are made from now on.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from holdfast.agents import queries as agent_queries
from holdfast.app import Holdfast, core_of
from holdfast.cli.options import all_of, seen_by
from holdfast.errors import NotFound, UsageError
from holdfast.kernel import queries
from holdfast.kernel.ids import is_id, new_id
from holdfast.kernel.rows import AdjacentIds

LEAST = 8
_FEWEST = 4  # characters that are taken for the beginning of an id
_SHAPE = (8, 4, 4, 4, 12)
_NAMED = 5  # ids that an error lists
_WITH_NAMES = frozenset({"worker", "agent", "session"})  # what people name, perhaps so that it looks like an id


async def shortest(app: Holdfast, noun: str, ids: Sequence[str]) -> int:
    """How many characters of these ids name one thing each, in this database."""
    if not ids:
        return LEAST
    coming = new_id(core_of(app).runtime().ports)
    needed = LEAST
    for id, before, after in await _beside(app, noun, ids):
        others = [other for other in (before, after, coming) if other is not None and other != id]
        needed = max([needed, *(_alike(id, other) + 1 for other in others)])
    return needed + 1 if needed in _DASHES else needed


async def whole(app: Holdfast, text: str, *nouns: str) -> str:
    """The id that begins so, of the first noun that has one. What cannot be part of an id is answered as it is.

    Raises `UsageError` when there are several, and `NotFound` when there is none, except for a noun with names of its
    own: then the text may be such a name, and is answered as it is.
    """
    prefix = _written(text)
    if prefix is None:
        return text
    found: list[str] = []
    for noun in nouns:
        if found := await _beginning(app, noun, prefix):
            break
    if text in found:  # a worker may have a name that begins another's
        return text
    if len(found) > 1:
        more = " and others" if len(found) > _NAMED else ""
        known = ", ".join(found[:_NAMED])
        raise UsageError(f"{text} is the beginning of several ids: {known}{more}. Write more of the id.")
    if not found and not _WITH_NAMES.issuperset(nouns):
        raise NotFound(f"there is no {' or '.join(nouns)} whose id begins with {text!r}.")
    return found[0] if found else text


async def whole_session(app: Holdfast, text: str, tenant: str | None = None) -> str:
    """A session's id by its id, its key or a short id. A key goes before a short id."""
    if _written(text) is None:
        return text
    try:
        return (await seen_by(app, tenant).sessions[text].refresh()).id
    except NotFound:
        return await whole(app, text, "session")


async def whole_agent(app: Holdfast, text: str, tenant: str | None = None) -> str:
    """An agent's name or id, by its name, its id or a short id. A name goes before a short id."""
    if _written(text) is None or await seen_by(app, tenant).agents.list(name=text, limit=1):
        return text
    return await whole(app, text, "agent")


async def _beginning(app: Holdfast, noun: str, prefix: str) -> list[str]:
    """The ids that begin so, and no more of them than an error needs."""
    digits = prefix.replace("-", "")
    place = max(0, int(digits.ljust(32, "0"), 16) - 1)
    id = _shaped(f"{place:032x}")
    found: list[str] = []
    while len(found) <= _NAMED:
        ((_, _, following),) = await _beside(app, noun, [id])
        if following is None or not following.startswith(prefix):
            break
        found.append(following)
        id = following
    return found


async def _workers(app: Holdfast) -> list[str]:
    """All of them, because no index has those that are gone."""
    return sorted({row.id for row in await all_of(app.workers.list, all=True)})


async def _tokens(app: Holdfast) -> list[str]:
    return sorted(row.id for row in await all_of(app.access.tokens.list))


_FEW = {"worker": _workers, "token": _tokens}  # nouns of which all ids are read


async def _beside(app: Holdfast, noun: str, ids: Sequence[str]) -> list[AdjacentIds]:
    runtime = core_of(app).runtime()
    if noun in _FEW:
        known = await _FEW[noun](app)
        return [AdjacentIds(id, *_around(known, id)) for id in ids]
    if noun == "job":
        return await runtime.database.transact(queries.jobs_beside, ids)
    return await runtime.database.transact(agent_queries.ids_beside, noun, ids)


def _alike(id: str, other: str) -> int:
    """How many characters they begin with in common."""
    return next((at for at, (a, b) in enumerate(zip(id, other, strict=False)) if a != b), min(len(id), len(other)))


def _around(known: Sequence[str], id: str) -> tuple[str | None, str | None]:
    before, after = bisect_left(known, id), bisect_right(known, id)
    return known[before - 1] if before else None, known[after] if after < len(known) else None


def _written(text: str) -> str | None:
    """A short id as the store has ids, with its dashes; None for what cannot be one."""
    digits = text.replace("-", "").lower()
    if is_id(text) or not _FEWEST <= len(digits) < sum(_SHAPE) or not re.fullmatch("[0-9a-f]+", digits):
        return None
    return _shaped(digits)


def _shaped(digits: str) -> str:
    parts: list[str] = []
    for length in _SHAPE:
        parts.append(digits[:length])
        digits = digits[length:]
    return "-".join(part for part in parts if part)


_DASHES = (9, 14, 19, 24)  # lengths that would end with a dash
