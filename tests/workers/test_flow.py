"""Flow control as a program sees it: limits that hold, calls that are one, turns, pauses, and the clock."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Holdfast, Queue
from holdfast.app import core_of
from holdfast.errors import BadSetting, UsageError
from tests.support.apps import MakeApp, eventually, happens, in_state


class Crowd:
    """Counts how many handlers are inside at once."""

    def __init__(self) -> None:
        self.inside: dict[str, int] = {}
        self.most: dict[str, int] = {}

    async def visit(self, key: str) -> None:
        self.inside[key] = self.inside.get(key, 0) + 1
        self.most[key] = max(self.most.get(key, 0), self.inside[key])
        await asyncio.sleep(0.01)
        self.inside[key] -= 1


async def test_a_queue_runs_no_more_at_once_than_it_may(make_app: MakeApp) -> None:
    crowd = Crowd()
    apps = [make_app(embedded=False) for _ in range(2)]

    async def visit() -> None:
        await crowd.visit("images")

    for app in apps:
        app.queue("images", Queue(concurrency=3))
        app.job(queue="images", name="visit")(visit)
    job = apps[0].job(queue="images", name="visit")(visit)
    jobs = await job.enqueue_many([() for _ in range(40)])
    workers = [core_of(app).make_worker() for app in apps]
    for app, worker in zip(apps, workers, strict=True):
        await core_of(app).runtime().open()
        await worker.start()
    for each in jobs:
        await each.result()
    for worker in workers:
        await worker.stop()
    assert crowd.most == {"images": 3}


async def test_each_lane_has_the_limit_for_itself(hf: Holdfast) -> None:
    crowd = Crowd()

    @hf.job(concurrency=2)
    async def visit(customer: str) -> None:
        await crowd.visit(customer)

    async with hf:
        jobs = [await visit.options(lane=name).enqueue(name) for name in "ababababcc" * 2]
        for job in jobs:
            await job.result()
    assert set(crowd.most) == {"a", "b", "c"}
    assert max(crowd.most.values()) == 2


async def test_a_rate_spaces_the_starts(hf: Holdfast) -> None:
    starts: list[float] = []

    @hf.job(rate="20/s")
    async def tick() -> None:
        starts.append(asyncio.get_running_loop().time())

    async with hf:
        for job in await tick.enqueue_many([() for _ in range(6)]):
            await job.result()
    assert starts[-1] - starts[0] >= 0.2, "six starts at twenty a second"


async def test_a_unique_job_is_one_job(hf: Holdfast) -> None:
    @hf.job(unique="live")
    async def report(day: str) -> str:
        return day

    first, again, other = [await report.enqueue(day) for day in ("mon", "mon", "tue")]
    assert first.id == again.id != other.id
    async with hf:
        assert await first.result() == "mon"
        assert await other.result() == "tue"
        assert (await report.enqueue("mon")).id != first.id


async def test_a_handle_says_what_its_call_did(hf: Holdfast) -> None:
    inside, let_go = asyncio.Event(), asyncio.Event()

    @hf.job(unique="live", on_duplicate="replace")
    async def rebuild(page: str) -> str:
        inside.set()
        await let_go.wait()
        return page

    made = await rebuild.options(unique_key="k").enqueue("home")
    replacing = await rebuild.options(unique_key="k").enqueue("about")
    async with hf:
        await happens(inside)
        late = await rebuild.options(unique_key="k").enqueue("news")
        let_go.set()
        assert await made.result() == "about"
    assert {made.id, replacing.id, late.id} == {made.id}
    assert [(job.fresh, job.replaced) for job in (made, replacing, late)] == [
        (True, False),
        (False, True),
        (False, False),
    ]
    assert hf.jobs[made.id].fresh is None


async def test_a_debounced_job_that_its_lane_held_back_runs(hf: Holdfast) -> None:
    pages: list[str] = []
    inside, let_go = asyncio.Event(), asyncio.Event()

    @hf.job(debounce="10ms", concurrency=1)
    async def reindex(page: str) -> None:
        pages.append(page)
        inside.set()
        await let_go.wait()

    async with hf:
        await reindex.options(unique_key="first").enqueue("first")
        await happens(inside)
        second = await reindex.options(unique_key="second").enqueue("second")

        async def blocked() -> bool:
            return (await second.refresh()).gate is not None

        await eventually(blocked)
        again = await reindex.options(unique_key="second").enqueue("second, changed")
        assert (again.id, again.replaced) == (second.id, True)
        let_go.set()
        await second.result()
    assert pages == ["first", "second, changed"]


async def test_debounced_calls_become_the_last_of_them(hf: Holdfast) -> None:
    seen: list[int] = []

    @hf.job(debounce="200ms")
    async def save(version: int) -> None:
        seen.append(version)

    async with hf:
        jobs = [await save.enqueue(version) for version in range(5)]
        assert len({job.id for job in jobs}) == 1
        await jobs[0].result()
    assert seen == [4]


async def test_a_flood_of_one_tenant_does_not_keep_another_waiting(make_app: MakeApp) -> None:
    app = make_app(concurrency=1, batch=1, prefetch=0)
    app.queue("mail", Queue(fair=True))
    order: list[str] = []

    @app.job(queue="mail")
    async def send(tenant: str) -> None:
        order.append(tenant)

    flood = await send.options(tenant="big").enqueue_many([("big",)] * 60)
    few = await send.options(tenant="small").enqueue_many([("small",)] * 3)
    async with app:
        for job in [*flood, *few]:
            await job.result()
    assert [n for n, tenant in enumerate(order) if tenant == "small"] == [1, 3, 5]


async def test_a_paused_queue_rests_until_it_is_resumed(make_app: MakeApp) -> None:
    app = make_app(poll_interval="30s")

    @app.job(queue="mail")
    async def send() -> str:
        return "sent"

    async with app:
        await send.run()
        await app.queues.pause("mail", reason="the server moves")
        job = await send.enqueue()
        assert "was paused at" in str(await app.why(job.id))
        assert await app.queues.resume("mail")
        assert await job.result() == "sent"


async def test_the_clock_enqueues_what_is_scheduled(hf: Holdfast) -> None:
    fired = asyncio.Event()

    @hf.schedule("every 1s", args={"who": "clock"})
    async def greet(who: str) -> None:
        assert who == "clock"
        fired.set()

    async with hf:
        await happens(fired)
        (schedule,) = await hf.schedules.list()
        assert (schedule.cron, schedule.timezone, schedule.catch_up) == ("every 1s", "UTC", "one")
        await hf.schedules.pause(schedule.name)
        job = await hf.schedules.run(schedule.name)
        await job.result()


async def test_a_scheduled_function_is_a_job_like_any_other(hf: Holdfast) -> None:
    @hf.schedule("0 3 * * *", timezone="Europe/Athens")
    async def nightly() -> str:
        return "done"

    async with hf:
        assert await nightly.run() == "done"
        assert [row.name for row in await hf.schedules.list()] == [nightly.definition.kind]


async def test_finished_jobs_leave_by_themselves(make_app: MakeApp) -> None:
    app = make_app(retention="0s", cleanup_interval="100ms", duty_ttl="400ms")

    @app.job
    async def work() -> None: ...

    async with app:
        await work.enqueue()

        async def gone() -> bool:
            return not await app.jobs.list()

        await eventually(gone)


async def test_why_of_a_job_in_a_full_lane(hf: Holdfast) -> None:
    let_go = asyncio.Event()

    @hf.job(name="work", concurrency=1)
    async def work() -> None:
        await let_go.wait()

    async with hf:
        first, second = [await work.enqueue() for _ in range(2)]
        await in_state(hf, first.id, "running")

        async def told() -> bool:
            return str(await hf.why(second.id)) == "lane 'job:work' is full: 1 of 1 running"

        await eventually(told)
        let_go.set()
        await second.result()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1; got 0"),
        ({"concurrency": 2**31}, "concurrency must be at most 2,147,483,647"),
        ({"rate": "fast"}, "'fast' is not a rate; write it like"),
        ({"rate": "0/s"}, "is out of range"),
        ({"unique": "soon"}, "'soon' is not a duration"),
        ({"unique": "live", "on_duplicate": "drop"}, 'on_duplicate must be "keep" or "replace"'),
        ({"debounce": "5s", "unique": "live"}, "debounce already decides"),
    ],
)
def test_what_is_no_limit(hf: Holdfast, options: dict[str, object], message: str) -> None:
    with pytest.raises((BadSetting, UsageError), match=message):
        hf.job(**options)(lambda: None)  # type: ignore[call-overload]


def test_a_queue_is_declared_before_its_jobs(hf: Holdfast) -> None:
    @hf.job(name="send", queue="mail")
    async def send() -> None: ...

    with pytest.raises(UsageError, match="job 'send' was declared for queue 'mail' before its policy"):
        hf.queue("mail", Queue(concurrency=1))


async def test_a_lane_needs_a_limit_and_a_key_excludes_unique(hf: Holdfast) -> None:
    @hf.job
    async def plain() -> None: ...

    @hf.job(unique="live")
    async def alone() -> None: ...

    with pytest.raises(UsageError, match="has no limits that a lane could apply"):
        await plain.options(lane="a").enqueue()
    with pytest.raises(UsageError, match="an idempotency key or be unique, not both"):
        await alone.options(key="k").enqueue()
    with pytest.raises(UsageError, match="unique jobs are enqueued one by one"):
        await alone.enqueue_many([()])
    with pytest.raises(UsageError, match="cost must be at least 1"):
        await plain.options(cost=0).enqueue()
    with pytest.raises(UsageError, match="cost must be at most 2,147,483,647"):
        await plain.options(cost=10**15).enqueue()
