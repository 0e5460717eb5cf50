"""Who a job belongs to: a column says it, not its name. A program's own job may be called whatever it likes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, Retry
from holdfast.errors import StoreRefused, UsageError
from holdfast.models.script import call, say
from tests.conftest import Place
from tests.support.agents import scripted
from tests.support.apps import MakeApp, working
from tests.support.past_kernel import query


def mailer(hf: Holdfast) -> Any:
    @hf.job(name="mail:send", retry=Retry(attempts=1))
    async def send(to: str) -> str:
        if to == "nobody":
            raise LookupError("no such mailbox")
        return f"sent to {to}"

    return send


async def test_a_programs_job_with_a_colon_in_its_name_is_a_plain_job(make_app: MakeApp, place: Place) -> None:
    hf = make_app(embedded=False)
    send = mailer(hf)
    async with working(hf):
        done = await send.enqueue("Ada")
        assert await done.result() == "sent to Ada"
        lost = await send.enqueue("nobody")
        with pytest.raises(StoreRefused):
            await lost.result()
        again = await hf.jobs.retry(lost.id)
        with pytest.raises(StoreRefused):
            await again.result()
        assert (await again.refresh()).retry_of == lost.id
    row = await hf.jobs.get(lost.id)
    assert (row.kind, row.layer) == ("mail:send", None)
    waiting = await send.enqueue("Bob")
    assert {job.id for job in await hf.jobs.list(kind="mail:send")} == {done.id, lost.id, again.id, waiting.id}
    assert "mail:send" in str(await hf.why(waiting.id))
    await waiting.cancel()
    assert (await hf.jobs.get(waiting.id)).state == "cancelled"
    assert query(place, "select layer from holdfast.job_readable") == [(None,)] * 4


async def test_what_agents_own_says_so_and_is_not_enqueued_again_by_hand(make_app: MakeApp, place: Place) -> None:
    hf = make_app(embedded=False)

    @hf.tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    agent = hf.agent("adder", model=scripted(hf, call("add", a=1, b=2), say("3")), tools=[add])
    async with working(hf):
        run = await agent.enqueue("1 + 2?")
        assert await run.text() == "3"
    rows = await hf.jobs.list()
    assert {row.kind: row.layer for row in rows} == {"agent:adder": "agents", "tool:add": "agents"}
    for row in rows:
        with pytest.raises(StoreRefused, match=r"belongs to agents, .* Start a new run instead"):
            await hf.jobs.retry(row.id)
    query(place, "update holdfast.job set layer = 'ledgers'")  # as a later release may write them
    with pytest.raises(StoreRefused, match=r"belongs to ledgers, .* again through ledgers"):
        await hf.jobs.retry(rows[0].id)


@pytest.mark.parametrize("name", ["agent:x", "tool:x", "system:x"])
def test_a_name_that_belongs_to_agents_is_refused_when_it_is_declared(hf: Holdfast, name: str) -> None:
    def work() -> None: ...

    declare: Callable[..., Any] = hf.job(name=name)
    with pytest.raises(UsageError, match=rf"'{name}' cannot be declared: .* belong to agents. Give it another name="):
        declare(work)
