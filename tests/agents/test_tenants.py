"""Tenants: who sees one tenant alone finds nothing of another's, whatever id it has."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.conversation import Session
from holdfast.agents.handles import Run
from holdfast.errors import NotFound, UsageError
from holdfast.models.script import call, say
from tests.support.agents import scripted

RUN_METHODS = (
    *("refresh", "result", "text", "stream", "cancel", "usage", "turns", "calls", "events", "children", "why"),
    *("steer", "interrupt", "inquiries", "fork", "forked_from", "export", "cassette"),
)
SESSION_METHODS = (
    *("refresh", "send", "messages", "runs", "usage", "update", "delete", "fork", "compact", "compact_if_needed"),
    *("needs_compaction", "compaction_stats", "compaction_config", "compactions", "restore", "preserve"),
)


def methods(kind: type) -> set[str]:
    """What a handle offers, the calls for code without an event loop aside: they call these."""
    found = inspect.getmembers(kind, inspect.isfunction)
    return {name for name, _ in found if not name.startswith("_") and not name.endswith("_sync")}


def test_every_method_is_looked_at() -> None:
    assert methods(Run) - {"check"} == set(RUN_METHODS)
    assert methods(Session) - {"check", "open"} == set(SESSION_METHODS)  # one makes it, in its own tenant


async def test_nothing_of_another_tenant_is_found_by_any_method(hf: Holdfast) -> None:
    @hf.tool
    def look() -> str:
        """Look."""
        return "seen"

    agent = hf.agent("a", model=scripted(hf, call("look"), say("secret")), tools=[look])
    theirs, mine = hf.tenant("theirs"), hf.tenant("mine")
    await hf.ensure_worker()
    run = await theirs.enqueue(agent, "Secret", session="s")
    assert (await run.result()).text == "secret"
    session = (await theirs.sessions.list())[0].id
    stored = await theirs.agents.create("hidden", model="scripted:")
    (made,) = await run.calls()

    arguments: dict[str, Any] = {
        "send": (("Hi", agent), {}),
        "update": ((), {"metadata": {}}),
        "steer": (("Hi",), {}),
        "export": (("nowhere.db",), {}),
        "cassette": (("nowhere.json",), {}),
        "preserve": (("a message",), {}),
    }
    handles = [(mine.runs[run.id], RUN_METHODS), (mine.sessions[session], SESSION_METHODS)]
    for handle, names in handles:
        for name in names:
            args, options = arguments.get(name, ((), {}))
            answer = getattr(handle, name)(*args, **options)
            with pytest.raises(NotFound):
                await (anext(answer) if inspect.isasyncgen(answer) else answer)
    for asked in (
        mine.runs.get(run.id),
        mine.runs.call(made.id),
        mine.sessions.get(session),
        mine.sessions.get("s"),
        mine.sessions.delete(session),
        mine.agents.get(stored.id),
        mine.agents.get("hidden"),
        mine.agents.update(stored.id, instructions="mine now"),
        mine.agents.versions(stored.id),
        mine.agents.delete(stored.id),
        mine.agents[stored.id].enqueue("Hi"),
        mine.enqueue(agent, "Hi", session=mine.sessions[session]),
    ):
        with pytest.raises(NotFound):
            await asked
    with pytest.raises(NotFound):
        async for _ in mine.runs.as_completed([mine.runs[run.id]]):
            pass
    with pytest.raises(UsageError):
        await mine.enqueue(agent, "Hi", session=theirs.sessions[session])
    for tenant in (None, "theirs", "mine"):
        assert await mine.runs.list(tenant=tenant) == []
        assert await mine.sessions.list(tenant=tenant) == []
        assert await mine.sessions.count(tenant=tenant) == 0
        assert await mine.agents.list(tenant=tenant) == []
    assert await mine.sessions.values("x") == []
    assert (await run.refresh()).state == "completed"
    assert len(await theirs.runs.list()) == 1


async def test_the_app_itself_sees_every_tenant(hf: Holdfast) -> None:
    agent = hf.agent("a", model=scripted(hf, say("ok")))
    await hf.ensure_worker()
    for tenant in ("a", "b"):
        run = await hf.tenant(tenant).enqueue(agent, "Go", session="same key")
        await run.result()
    assert len(await hf.runs.list()) == 2
    assert len(await hf.runs.list(tenant="a")) == 1
    sessions = await hf.sessions.list()
    assert len({row.id for row in sessions}) == 2
    assert (await hf.sessions[sessions[0].id].refresh()).tenant in ("a", "b")
    assert len(await hf.sessions[sessions[0].id].messages()) == 2
    with pytest.raises(UsageError):
        hf.tenant("")
