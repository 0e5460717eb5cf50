"""Order between routes: a busy route must not hide the others, with or without hints."""

from __future__ import annotations

from holdfast.app import core_of
from holdfast.workers.claims import MOST_HOT
from holdfast.workers.role import Role
from tests.support.apps import MakeApp


async def test_an_urgent_job_on_another_route_overtakes_a_backlog_without_a_hint(make_app: MakeApp) -> None:
    app = make_app(embedded=False, concurrency=1, prefetch=0, poll_interval="1ms")
    ran: list[str] = []

    @app.job(name="common")
    async def common() -> None:
        ran.append("common")
        if len(ran) == 3:
            await urgent.options(priority=0, notify=False).enqueue()

    @app.job(name="urgent")
    async def urgent() -> None:
        ran.append("urgent")

    await common.enqueue_many([()] * 40)
    await core_of(app).make_worker(Role(until="empty")).run()
    assert len(ran) == 41
    assert ran.index("urgent") < 20


async def test_more_busy_routes_than_one_claim_asks_are_all_served(make_app: MakeApp) -> None:
    app = make_app(embedded=False, concurrency=2, prefetch=0, poll_interval="1ms")
    ran: set[int] = set()
    many = MOST_HOT + 8
    for number in range(many):

        async def one(number: int = number) -> None:
            ran.add(number)

        await app.job(name=f"kind-{number}")(one).enqueue_many([()] * 3)
    await core_of(app).make_worker(Role(until="empty")).run()
    assert ran == set(range(many))
