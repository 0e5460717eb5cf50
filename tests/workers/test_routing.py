"""Who runs what: by queue, by capability, by the kinds a worker knows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.errors import UsageError
from holdfast.workers.role import Role
from tests.support.apps import MakeApp, happens, working


class Shop:
    """Two queues, and one job that needs a capability."""

    def __init__(self, app: Holdfast) -> None:
        self.ran: list[str] = []

        @app.job(name="mail", queue="mail")
        async def mail() -> None:
            self.ran.append("mail")

        @app.job(name="image", queue="images")
        async def image() -> None:
            self.ran.append("image")

        @app.job(name="render", queue="images", requires=["tag:gpu=yes"])
        async def render() -> None:
            self.ran.append("render")

        self.mail, self.image, self.render = mail, image, render


async def state(app: Holdfast, id: str) -> str:
    return (await app.jobs.get(id)).state


async def test_a_worker_takes_only_its_queues(make_app: MakeApp) -> None:
    app = make_app(embedded=False)
    shop = Shop(app)
    mail, image = await shop.mail.enqueue(), await shop.image.enqueue()
    await core_of(app).make_worker(Role(queues=("images",), until="empty")).run()
    assert (shop.ran, await state(app, mail.id), await state(app, image.id)) == (["image"], "pending", "succeeded")
    await core_of(app).make_worker(Role(queues=("mail", "other"), until="empty")).run()
    assert shop.ran == ["image", "mail"]


async def test_a_worker_without_the_capability_leaves_the_job(make_app: MakeApp) -> None:
    app = make_app(embedded=False)
    shop = Shop(app)
    render, image = await shop.render.enqueue(), await shop.image.enqueue()
    await core_of(app).make_worker(Role(until="empty")).run()
    assert (shop.ran, await state(app, render.id), await state(app, image.id)) == (["image"], "pending", "succeeded")
    await core_of(app).make_worker(Role(capabilities=("tag:gpu=yes", "tag:big=no"), until="empty")).run()
    assert shop.ran == ["image", "render"]


async def test_a_kind_nobody_knows_stays_until_a_worker_knows_it(make_app: MakeApp) -> None:
    new, old = make_app(embedded=False), make_app(embedded=False)
    ran: list[str] = []

    @new.job(name="fresh")
    async def fresh() -> str:
        ran.append("fresh")
        return "run by the new one"

    @old.job(name="known")
    async def known() -> None:
        ran.append("known")

    job = await fresh.enqueue()
    await known.enqueue()
    await core_of(old).make_worker(Role(until="empty")).run()
    row = await job.refresh()
    assert (ran, row.state, row.attempts, row.token) == (["known"], "pending", 0, "0.0")
    async with working(new):
        assert await job.result() == "run by the new one"


async def test_a_route_made_after_the_worker_started_is_served_at_once(make_app: MakeApp) -> None:
    """The same kind under another queue is a route that the worker has not heard of."""
    settings = {"poll_interval": "10m", "sweep_interval": "10m"}
    worker_app, other = make_app(embedded=False, **settings), make_app(embedded=False)

    @worker_app.job(name="work", queue="usual")
    async def here() -> str:
        return "done"

    @other.job(name="work", queue="another")
    async def there() -> str: ...  # type: ignore[empty-body]

    async with working(worker_app):
        assert await (await here.enqueue()).result() == "done"
        job = await there.enqueue()
        assert await job.result(timeout="30s") == "done"


async def test_a_lower_priority_number_runs_first(make_app: MakeApp) -> None:
    app = make_app(embedded=False, concurrency=1)
    ran: list[str] = []

    @app.job
    async def work(name: str) -> None:
        ran.append(name)

    @app.job(priority=50)
    async def urgent(name: str) -> None:
        ran.append(name)

    for name in ("a", "b"):
        await work.enqueue(name)
    await urgent.enqueue("urgent")
    await work.options(priority=1).enqueue("most urgent")
    await work.options(priority=500).enqueue("last")
    await work.enqueue("c")
    await core_of(app).make_worker(Role(until="empty")).run()
    assert ran == ["most urgent", "urgent", "a", "b", "c", "last"]


async def test_two_workers_share_the_work(make_app: MakeApp) -> None:
    app = make_app(embedded=False, concurrency=1)
    both = asyncio.Barrier(2)

    @app.job
    async def work() -> None:
        async with asyncio.timeout(60), both:
            pass

    async with working(app), working(app):
        jobs = await work.enqueue_many([{}] * 2)
        for job in jobs:
            await job.result()
        rows = [attempt for job in jobs for attempt in await app.jobs.attempts(job.id)]
        assert len({row.worker for row in rows}) == 2


async def test_what_no_live_worker_serves_waits_while_others_run(make_app: MakeApp) -> None:
    app = make_app(embedded=False)
    done = asyncio.Event()

    @app.job(name="plain")
    async def plain() -> None:
        done.set()

    @app.job(name="special", requires=["tag:rare=yes"])
    async def special() -> None: ...

    blocked = await special.enqueue()
    await special.options(priority=1).enqueue()
    async with working(app):
        await plain.enqueue()
        await happens(done)
        assert await state(app, blocked.id) == "pending"


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ({"quueues": ["mail"]}, "Did you mean 'queues'?"),
        ({"tags": ["gpu=yes"]}, "name them: only={'tag': ['gpu=yes']}."),
        ({"tags": "gpu=yes"}, "name them: only={'tag': ['gpu=yes']}."),
        ({"slots": 4}, "its options are name, id, queues, capabilities, until, only, pool."),
    ],
)
def test_an_option_that_a_role_does_not_have_is_refused_with_fitting_advice(option: Any, advice: str) -> None:
    with pytest.raises(UsageError) as refused:
        Role(**option)
    assert str(refused.value).endswith(advice)
    assert ("only=" in str(refused.value)) == ("tags" in option)
