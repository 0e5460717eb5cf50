"""Erasing a tenant: nothing that it said or was told stands in any table afterwards, and nobody else loses anything."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from holdfast import Holdfast, Retry
from holdfast.agents.retention import erasure
from holdfast.agents.retention.erasure import Erased, Eraser
from holdfast.app import core_of
from holdfast.durations import next_tick
from holdfast.errors import StoreBusy
from holdfast.kernel.claim import claim
from holdfast.kernel.schedules import put_schedule
from holdfast.models.script import Script, call, say
from holdfast.testing import Lab, Labs
from tests.support.agents import MODEL, Gated
from tests.support.apps import MakeApp
from tests.support.contents import Contents, contents_at, mentions
from tests.support.table_owners import KEEPS_A_NAME

NOWHERE = "sqlite:////nowhere/at-all.db"
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
CANARY = "yellow-bird"
OTHER = "grey-mouse"


class Office:
    """An app in which a tenant can leave traces of every sort."""

    def __init__(self, hf: Holdfast) -> None:
        self.hf = hf

        @hf.tool(effect="read")
        def look(where: str) -> str:
            """Look."""
            if where.startswith("nowhere"):
                raise ValueError(f"there is no {where}")
            return f"seen {where}"

        @hf.tool(approve=True)
        def pay(what: str) -> str:
            """Pay."""
            return f"paid {what}"

        @hf.job(unique="1h")
        async def note(text: str) -> str:
            return f"noted {text}"

        @hf.job(retry=Retry(attempts=1))
        async def break_down(text: str) -> None:
            raise ValueError(f"broken by {text}")

        self.note, self.break_down = note, break_down
        below = hf.agent("below", model=MODEL, tools=[look])
        self.clerk = hf.agent("clerk", model=MODEL, tools=[look, pay], agents=[below])

    async def leave_traces(self, lab: Lab, tenant: str, word: str) -> None:
        hf, mine = self.hf, self.hf.tenant(tenant)
        told: dict[str, Any] = {"variables": {"word": word}, "metadata": {"word": word}, "tenant": tenant}
        prompt = f"About {word} {'x' * 40_000}"
        done = await self.clerk.enqueue(prompt, session=f"s-{word}", key=f"key-{word}", **told)
        await self.clerk.enqueue(f"Wait for {word}", session="other", **told)
        await lab.drain()
        await hf.approve(done.id, by=word)
        await self.note.options(tenant=tenant).enqueue(word)
        await self.break_down.options(tenant=tenant, key=f"job-{word}").enqueue(word)
        await self.note.options(tenant=tenant, delay="1d").enqueue(f"later {word}")
        await lab.drain()
        await mine.sessions.update(f"s-{word}", metadata={"word": word})
        await (await mine.session(f"s-{word}")).fork()
        await mine.agents.create(f"own-{word}", model=MODEL, tools=["look"], instructions=f"Be {word}.")
        await self.plan(tenant, word)
        await mine.budgets.set("5")
        await mine.retention(events="90d")
        assert done.state == "completed"

    async def plan(self, tenant: str, word: str) -> None:
        """A schedule whose jobs would be the tenant's, as a worker writes it."""
        self.hf.schedule("every 1h", name=f"every {word}", args={"text": word})(self.note.options(tenant=tenant))
        await core_of(self.hf).runtime().transact(put_schedule, core_of(self.hf).registry.schedules.pop(), next_tick)


class Echo(Script):
    """Says the word of whoever asks, in every way in which something can be said."""

    def turn(self, body: Any) -> Any:
        text = str(body["messages"][0])
        word = CANARY if CANARY in text else OTHER
        if "only below" in text:
            return Script(call("look", where=f"nowhere {word}"), say(f"no {word}")).turn(body)
        steps = [call("look", where=word), call("below", task=f"only below {word}"), call("pay", what=word)]
        return Script(*steps, say(f"{word} " * 50)).turn(body)


@pytest.fixture
async def office(provided: Labs) -> tuple[Office, Lab]:
    office = Office(Holdfast(NOWHERE))
    lab = await provided.use(office.hf, Echo(), now=NOON)
    lab.price("0.01")
    await office.leave_traces(lab, "acme", CANARY)
    await office.leave_traces(lab, "other", OTHER)
    assert len(mentions(contents_at(lab.url), CANARY)) >= 10
    return office, lab


def of_others(contents: Contents) -> Any:
    return mentions(contents, OTHER)


async def sums(hf: Holdfast) -> Any:
    used = [
        await hf.budgets.used("tenant", "model", "mode", "day", since=LONG_AGO, tenant=tenant)
        for tenant in ("acme", "other")
    ]
    return used, [(row.scope, row.subject, row.spent) for row in await hf.budgets.list()]


async def test_nothing_is_left_of_an_erased_tenant_and_others_lose_nothing(office: tuple[Office, Lab]) -> None:
    hf, lab = office[0].hf, office[1]
    before, money = of_others(contents_at(lab.url)), await sums(hf)
    assert money[0][0][0].cost > Decimal("0.05")
    told: list[Erased] = []
    erased = await hf.tenant("acme").erase(progress=told.append)
    assert (erased.sessions, erased.agents, erased.schedules) == (3, 1, 1)
    assert erased.cancelled >= 2
    assert erased.jobs >= 1
    assert told[-1] == erased
    after = contents_at(lab.url)
    assert set(mentions(after, CANARY)) == {"audit"}, "who decided stays written"
    assert of_others(after) == before
    assert await sums(hf) == money
    assert [row.agent for row in await hf.budgets.used("agent", since=LONG_AGO, tenant="acme")] == ["(erased)"]
    assert set(mentions(after, "acme")) == KEEPS_A_NAME
    assert await hf.tenant("acme").erase() == Erased()


async def test_whoever_is_killed_while_erasing_is_followed_by_another(
    office: tuple[Office, Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    hf, lab = office[0].hf, office[1]
    monkeypatch.setattr(erasure, "_LOOK", 3)
    before, money = of_others(contents_at(lab.url)), await sums(hf)
    deaths = 0
    for survived in range(1, 100):
        steps: list[Erased] = []

        def die(so_far: Erased, limit: int = survived, steps: list[Erased] = steps) -> None:
            steps.append(so_far)
            if len(steps) > limit and so_far != (steps[-2] if len(steps) > 1 else Erased()):
                raise KeyboardInterrupt

        try:
            await hf.tenant("acme").erase(progress=die)
        except KeyboardInterrupt:
            deaths += 1
            continue
        break
    assert deaths >= 3
    assert set(mentions(contents_at(lab.url), CANARY)) == {"audit"}
    assert of_others(contents_at(lab.url)) == before
    assert await sums(hf) == money


async def test_the_lanes_of_a_tenant_s_jobs_go_and_those_of_others_stay(labs: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")

    @hf.job(concurrency=1)
    async def send(text: str) -> str:
        return text

    lab = await labs.use(hf)
    for tenant, lane in (("acme", "user-yellow-bird"), ("acme", "shared"), ("other", "shared")):
        await send.options(tenant=tenant, lane=lane).enqueue("x")
    await lab.drain()
    await hf.tenant("acme").erase()
    left = contents_at(lab.url)
    assert mentions(left, "yellow-bird") == {}
    assert "lane" in mentions(left, "shared")


async def test_what_runs_is_asked_to_stop_and_waited_for(make_app: MakeApp) -> None:
    hf = make_app(heartbeat="100ms", lease_ttl="60s")
    core_of(hf).book.substitute = model = Gated(say("never heard"))
    agent = hf.agent("writer", model="scripted:")
    await hf.ensure_worker()
    await agent.enqueue(f"Go {CANARY}", tenant="acme")
    await model.reached(1)
    erased = await hf.tenant("acme").erase()
    assert (erased.cancelled, erased.sessions) == (1, 1)
    assert mentions(contents_at(hf.settings.url), CANARY) == {}
    assert await hf.runs.list() == []


async def test_what_does_not_stop_in_time_is_told_of(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("writer", model="scripted:")
    await agent.enqueue("Go", tenant="acme")
    routes = [route.id for route in core_of(hf).registry.routes()]
    assert (
        len(await core_of(hf).runtime().transact(claim, 999, routes, 1, 60_000_000)) == 1
    )  # by a worker that hears nothing
    with pytest.raises(StoreBusy, match="1 job of tenant acme did not stop, though asked to"):
        await hf.tenant("acme").erase(within="0s")


@pytest.mark.parametrize("what", ["a job", "a session"])
async def test_what_comes_while_it_is_erased_is_told_of_and_never_left_in_silence(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    hf = make_app(embedded=False)

    @hf.job
    async def note(text: str) -> None: ...

    erase_agents = Eraser._erase_agents

    async def meanwhile(self: Eraser) -> None:
        if what == "a job":
            await note.options(tenant="acme").enqueue(CANARY)
        else:
            await hf.tenant("acme").session(CANARY)
        await erase_agents(self)

    with monkeypatch.context() as patched:
        patched.setattr(Eraser, "_erase_agents", meanwhile)
        with pytest.raises(StoreBusy, match="Stop its programs, and erase it again"):
            await hf.tenant("acme").erase()
    await hf.tenant("acme").erase()
    assert mentions(contents_at(hf.settings.url), CANARY) == {}
