"""Tenants: who sees one tenant alone finds nothing of another's, whatever id it has."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.api.run import Run
from holdfast.agents.api.session import Session
from holdfast.errors import NotFound, UsageError
from holdfast.models.script import Script, call, say
from holdfast.testing import Labs
from tests.support.agents import scripted

RUN_METHODS = (
    *("refresh", "result", "text", "stream", "cancel", "usage", "turns", "calls", "events", "children", "why"),
    *("steer", "interrupt", "inquiries", "fork", "forked_from", "export", "cassette", "waterfall"),
    "messages",
)
SESSION_METHODS = (
    *(
        "refresh",
        "send",
        "messages",
        "latest",
        "runs",
        "run_after",
        "usage",
        "update",
        "delete",
        "fork",
        "compact",
        "compact_if_needed",
    ),
    *("needs_compaction", "compaction_stats", "compaction_config", "compactions", "restore", "preserve", "retire"),
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
    theirs.allow(models=["scripted:"])
    stored = await theirs.agents.create("hidden", model="scripted:")
    (made,) = await run.calls()

    arguments: dict[str, Any] = {
        "send": (("Hi", agent), {}),
        "run_after": ((0,), {}),
        "update": ((), {"metadata": {}}),
        "steer": (("Hi",), {}),
        "export": (("nowhere.db",), {}),
        "cassette": (("nowhere.json",), {}),
        "preserve": (("a message",), {}),
        "retire": (("a message",), {}),
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
        assert await mine.agents.count(tenant=tenant) == 0
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


async def test_a_tenant_sees_its_own_money_jobs_and_sessions(hf: Holdfast) -> None:
    @hf.job(name="work")
    async def work() -> None: ...

    acme, other = hf.tenant("acme"), hf.tenant("other")
    mine = await work.options(tenant="acme").enqueue()
    theirs = await work.options(tenant="other").enqueue()
    assert [row.id for row in await acme.jobs.list()] == [mine.id]
    assert (await acme.jobs.get(mine.id)).id == mine.id
    assert [reason.gate for reason in await acme.jobs.why(mine.id)] == ["no_worker"]
    for asked in (acme.jobs.get, acme.jobs.why, acme.jobs.attempts, acme.jobs.cancel):
        with pytest.raises(NotFound, match=f"there is no job {theirs.id}"):
            await asked(theirs.id)
    assert await acme.jobs.cancel(mine.id) == "cancelled"
    assert await acme.used() == []

    await hf.session("ann", tenant="acme")
    await hf.session("ann", tenant="other")
    whole = await acme.budgets.set("5", per="1d")
    part = await acme.budgets.set("1", session="ann")
    assert (whole.scope, whole.subject, part.scope) == ("tenant", "acme", "session")
    await other.budgets.set("7")
    assert [row.id for row in await acme.budgets.list()] == [whole.id]
    for row in (whole, part):
        with pytest.raises(NotFound, match="there is no budget"):
            await other.budgets.delete(row.id)
        await acme.budgets.delete(row.id)
    assert [row.subject for row in await hf.budgets.list()] == ["other"]

    updated = await acme.sessions.update("ann", metadata={"for": "ann"}, during="steer")
    assert (updated.tenant, updated.metadata, updated.during) == ("acme", {"for": "ann"}, "steer")
    assert (await other.sessions.get("ann")).during == "queue"


async def test_a_tenant_is_told_what_it_used(labs: Labs) -> None:
    hf = Holdfast("sqlite:///never.db")
    desk = hf.agent("desk", model="scripted:")
    lab = await labs.use(hf, Script(say("hi")))
    for tenant in ("acme", "other"):
        await desk.enqueue("hi", tenant=tenant)
    await lab.drain()
    assert [(row.tenant, row.turns) for row in await hf.tenant("acme").used("tenant")] == [("acme", 1)]
