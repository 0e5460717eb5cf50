"""Runs by their metadata over HTTP: what `GET /runs?metadata=` lists, and the values that there are."""

from __future__ import annotations

import json
from typing import Any

from holdfast import validation
from holdfast.agents.api.lists import newest_first
from holdfast.agents.api.options import moment_us
from holdfast.agents.marked_runs import RunMarks, mark_values, marked_page
from holdfast.agents.states import RUN
from holdfast.agents.values.runs import RunRecord, run_of
from holdfast.app import core_of
from holdfast.errors import UsageError
from holdfast.http.api.paging import Paging
from holdfast.http.api.seen import Seen
from holdfast.kernel import codec
from holdfast.values import Page
from holdfast.values.page import cursor


async def list_marked(
    seen: Seen, page: Paging, metadata: str, where: dict[str, Any], how: dict[str, Any]
) -> Page[RunRecord]:
    """A page of runs whose metadata contain these, the newest first."""
    validation.one_of(how["state"], "state", RUN.names)
    session = where["session"]
    marks = RunMarks(
        metadata=_object(metadata, seen.hf.settings.metadata_cap),
        tenant=where["tenant"],
        session=None if session is None else (await seen.find_session(session)).id,
        agent=where["agent"],
        parent=where["parent"],
        state=how["state"],
        mode=how["mode"],
        since=0 if how["since"] is None else moment_us(how["since"], "since"),
    )
    before = newest_first(page.after)
    if how["until"] is not None:
        before = min(before, (moment_us(how["until"], "until"), ""))
    found = await core_of(seen.hf).runtime().transact(marked_page, marks, before=before, limit=page.limit)
    further = None if found.place is None else cursor(*found.place)
    return Page(map(run_of, found.rows), next=further, looked=found.looked)


async def list_mark_values(seen: Seen, key: str, limit: int) -> list[tuple[Any, int]]:
    """The values that the newest runs have under a key of their metadata, and how many of them have each."""
    return await core_of(seen.hf).runtime().transact(mark_values, key, seen.tenant, limit)


def _object(text: str, cap: int) -> str:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UsageError("metadata is a JSON object.")
    return codec.encode(found, what="metadata", cap=cap)
