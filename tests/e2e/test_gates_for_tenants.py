"""Every gate, asked about as a tenant: by HTTP, in Python and on the command line, with the same answer."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.agents.runs.end import line_of
from holdfast.app import core_of
from holdfast.client.jobs import JobFunction
from holdfast.errors import NotFound
from holdfast.kernel.claim import claim
from holdfast.kernel.complete import complete_and_settle, error_json
from holdfast.kernel.ids import JobId, new_id
from holdfast.kernel.routes import LANE
from holdfast.kernel.rows import Ending, Lease, Suspension
from holdfast.kernel.states import State
from holdfast.kernel.waiting import suspend
from holdfast.kernel.workers import Registration, register
from holdfast.reasons import FOR_TENANTS, OWN, Gate
from holdfast.values.jobs import Why
from holdfast.workers.definitions import LACKS
from tests.conftest import Place
from tests.http.client import Client
from tests.support.commands import holdfast
from tests.support.past_kernel import lift_checks, query

API = "/api/v1"
HOUR_US = 3_600_000_000
WORKER, HOST, ELSEWHERE = "worker-7f3a", "db-host-12", "other-tenants-mail"
SECRETS = (WORKER, HOST, ELSEWHERE)


class Kept(NamedTuple):
    """A job or a run that a gate keeps, and all gates that are closed before it."""

    id: str
    gates: tuple[Gate, ...]
    is_run: bool = False


class Scene:
    """A store with one job or run behind each gate. What only a fault or a long story brings about is written there."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.hf = Holdfast(place.url, embedded=False)
        self.acme = self.hf.tenant("acme")
        self.jobs: dict[str, JobFunction[..., Any]] = {}

    async def begin(self) -> None:
        self.database = await core_of(self.hf).opened()
        await asyncio.to_thread(lift_checks, self.place)
        who = Registration(
            incarnation=new_id(core_of(self.hf).ports),
            id=WORKER,
            name=WORKER,
            hostname=HOST,
            pid=17,
            version="0",
            capabilities=("job:work", "job:narrow", LANE, f"{LACKS}agent:keyless"),
            queues=None,
            slots=10,
        )
        self.worker = await self.database.transact(register, who, [], ttl_us=HOUR_US, gone=[])

    async def job(self, name: str, *, queue: str = "default", concurrency: int | None = None, **options: Any) -> JobId:
        if name not in self.jobs:

            @self.hf.job(name=name, queue=queue, concurrency=concurrency)
            async def work() -> None: ...

            self.jobs[name] = work
        return (await self.jobs[name].options(tenant="acme", **options).enqueue()).id

    async def later(self, **changes: Any) -> JobId:
        """A job that waits, with its row as it is after something else has happened."""
        id = await self.job("later", delay="1h")
        changed = ", ".join(f"{name} = {value}" for name, value in changes.items())
        await self.write(f"update holdfast.later set {changed} where seq = {await self.seq(id)}")
        return id

    async def claimed(self, id: JobId, ttl_us: int = HOUR_US) -> JobId:
        return (await self.lease_of(id, ttl_us)).id

    async def lease_of(self, id: JobId, ttl_us: int = HOUR_US) -> Lease:
        (row,) = await self.read(f"select route from holdfast.job_now where id = '{id}'")
        (lease,) = await self.database.transact(claim, self.worker, [row[0]], 1, ttl_us)
        assert lease.id == id
        return lease

    async def failed(self) -> JobId:
        lease = await self.lease_of(await self.job("fails"))
        error = error_json("handler", "no route", f'  File "/srv/{HOST}/jobs.py", line 3, in work\n    send()')
        ending = Ending(lease.seq, lease.worker, lease.epoch, lease.token, "failed", State.FAILED, 0, 1, None, error)
        assert await self.database.transact(complete_and_settle, [ending], [])
        return lease.id

    async def run(self, name: str = "clerk", state: str | None = None, **options: Any) -> str:
        of_agent = {each: options.pop(each) for each in ("fallbacks", "queue", "fallback_after") if each in options}
        agent = self.hf.agent(name, model="scripted:a", **of_agent)
        run = await self.acme.enqueue(agent, "Go", **options)
        if state is not None:
            await self.write(f"update holdfast.run set state = '{state}' where id = '{run.id}'")
        return run.id

    async def asked(self) -> str:
        run = await self.run("asks", "awaiting_input")
        await self.write(
            "insert into holdfast.inquiry (id, run, session, tenant, kind, name, digest, data, state, asked_at) "
            f"values ('q', '{run}', 's', 'acme', 'approval', 'refund', '', '{{}}', 'open', 1000000)"
        )
        return run

    async def batched(self) -> str:
        run = await self.run("batched", "batch_pending")
        await self.write(
            "insert into holdfast.batch (id, lane, model, credential, state, job, error, created_at) "
            f"values ('b', 'l', 'm', 'c', 'submitted', 'j', 'refused by {HOST}', 1)"
        )
        await self.write(
            "insert into holdfast.batch_request (custom_id, batch, run, job, turn, attempt, bytes, state, created_at) "
            f"values ('r', 'b', '{run}', 1, 1, 1, 1, 'sent', 1)"
        )
        return run

    async def limited(self) -> str:
        run = await self.run("limited", delay="1h")
        await self.write(f"update holdfast.run set limited = 'the budget of {ELSEWHERE}' where id = '{run}'")
        return run

    async def paused(self) -> JobId:
        id = await self.job("mail", queue=ELSEWHERE)
        await self.hf.queues.pause(ELSEWHERE, reason=f"{HOST} is down")
        return id

    async def unrouted(self) -> JobId:
        id = await self.job("odd", queue=f"{ELSEWHERE}-too")
        await self.write(
            f"delete from holdfast.route where id = (select route from holdfast.job_now where id = '{id}')"
        )
        return id

    async def behind(self) -> str:
        session = await self.acme.session("s")
        await self.run(session=session)
        run = await self.run(session=session)
        line = line_of((await self.hf.runs[run].refresh()).session)
        await self.database.transact(suspend, [Suspension(JobId(run), line)])
        return run

    async def cancelled(self) -> JobId:
        id = await self.job("cancelled")
        await self.hf.jobs[id].cancel("not needed")
        return id

    async def signalled(self) -> JobId:
        id = await self.job("signalled")
        await self.database.transact(suspend, [Suspension(id, f"{ELSEWHERE}/ready")])
        return id

    async def laned(self) -> JobId:
        await self.claimed(await self.job("narrow", concurrency=1))
        return await self.job("narrow")

    async def seq(self, id: str) -> int:
        return (await self.hf.jobs.get(id)).seq

    async def read(self, text: str) -> list[tuple[Any, ...]]:
        return await asyncio.to_thread(query, self.place, text)

    async def write(self, text: str) -> None:
        await self.read(text)

    async def closed(self) -> dict[Gate, Kept]:
        """One for each gate."""
        return {
            Gate.ENDED: Kept(await self.cancelled(), (Gate.ENDED,)),
            Gate.RAISED: Kept(await self.failed(), (Gate.ENDED, Gate.RAISED, Gate.REMEDY)),
            Gate.LANE: Kept(await self.laned(), (Gate.LANE,)),
            Gate.LEASED: Kept(await self.claimed(await self.job("work")), (Gate.LEASED,)),
            Gate.LEASE_ENDED: Kept(await self.claimed(await self.job("lapsed"), 1), (Gate.LEASE_ENDED,)),
            Gate.NOT_DUE: Kept(await self.later(attempts=0), (Gate.NOT_DUE,)),
            Gate.UNKNOWN: Kept(await self.later(state=f"'on {HOST}'"), (Gate.UNKNOWN,)),
            Gate.CHILDREN: Kept(await self.later(state="'waiting'"), (Gate.CHILDREN,)),
            Gate.SIGNAL: Kept(await self.signalled(), (Gate.SIGNAL,)),
            Gate.NO_WORKER: Kept(await self.job("unserved"), (Gate.NO_WORKER,)),
            Gate.NO_ROUTE: Kept(await self.unrouted(), (Gate.NO_ROUTE,)),
            Gate.PAUSED: Kept(await self.paused(), (Gate.PAUSED, Gate.NO_WORKER)),
            Gate.SESSION: Kept(await self.behind(), (Gate.SESSION,), is_run=True),
            Gate.KEY: Kept(await self.run("keyless"), (Gate.KEY,), is_run=True),
            Gate.TOOLS: Kept(await self.run("uses", "pending_tools"), (Gate.TOOLS,), is_run=True),
            Gate.PERSON: Kept(await self.asked(), (Gate.PERSON,), is_run=True),
            Gate.BATCH: Kept(await self.batched(), (Gate.BATCH,), is_run=True),
            Gate.BUDGET: Kept(await self.limited(), (Gate.NOT_DUE, Gate.BUDGET), is_run=True),
            Gate.MODEL: Kept(
                await self.run("falls", fallbacks=["scripted:b"], fallback_after="5m", delay="1h"),
                (Gate.NOT_DUE, Gate.MODEL),
                is_run=True,
            ),
        }


@pytest.mark.slow
async def test_every_gate_is_told_to_a_tenant_in_its_own_words_wherever_it_asks(place: Place) -> None:
    scene = Scene(place)
    async with scene.hf:
        await scene.begin()
        closed = await scene.closed()
        assert closed.keys() == {*Gate} - {Gate.REMEDY}  # it follows an end
        revealing = set()
        for gate, kept in closed.items():
            whole = await scene.hf.why(kept.id)
            assert tuple(each.gate for each in whole) == kept.gates, gate
            revealing |= {each.gate for each in whole if any(name in each.sentence for name in SECRETS)}
            told = await scene.acme.why(kept.id)
            assert tuple(each.gate for each in told) == kept.gates
            for mine, theirs in zip(told, whole, strict=True):
                assert mine.until == theirs.until
                assert mine.sentence == (theirs.sentence if mine.gate in OWN else FOR_TENANTS[mine.gate])
                assert not [name for name in SECRETS if name in mine.sentence], gate
            await everybody_says(scene, kept, told)
        named = {
            Gate.LEASED,
            Gate.LEASE_ENDED,
            Gate.PAUSED,
            Gate.SIGNAL,
            Gate.KEY,
            Gate.BATCH,
            Gate.BUDGET,
            Gate.RAISED,
        }
        assert revealing >= named


async def everybody_says(scene: Scene, kept: Kept, told: Why) -> None:
    """Wherever the tenant asks it reads the same, and another tenant reads nothing."""
    nouns = ("jobs", "runs") if kept.is_run else ("jobs",)
    assert await scene.acme.jobs.why(kept.id) == told
    if kept.is_run:
        assert await scene.acme.runs[kept.id].why() == told
    wanted = [(each.gate, each.sentence) for each in told]
    client = Client(scene.hf.web(who=lambda _: Principal("eve", "viewer", "acme")))
    other = Client(scene.hf.web(who=lambda _: Principal("bob", "viewer", "other")))
    for noun in nouns:
        found = (await client.get(f"{API}/{noun}/{kept.id}/why")).json
        assert [(each["gate"], each["sentence"]) for each in found] == wanted
        assert (await other.get(f"{API}/{noun}/{kept.id}/why")).status == 404
        asked = (noun, "why", kept.id, "--url", scene.place.url, "--json", "--tenant")
        typed = await asyncio.to_thread(holdfast, *asked, "acme")
        assert [(each["gate"], each["sentence"]) for each in typed.json] == wanted
    with pytest.raises(NotFound):
        await scene.hf.tenant("other").why(kept.id)
