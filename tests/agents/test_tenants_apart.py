"""Each tenant has its own sessions, keys and reasons."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.errors import NotFound, UsageError
from holdfast.models.script import say
from holdfast.testing import Labs
from tests.support.agents import Noting, scripted
from tests.support.apps import MakeApp


async def test_a_session_by_its_id_has_the_tenant_it_has(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    made = await hf.session("k", tenant="acme")
    run = await hf.sessions[made.id].send("Go", agent)
    assert ((await run.refresh()).tenant, run.session_id) == ("acme", made.id)
    assert (await (await agent.enqueue("Go", session=hf.sessions[made.id])).refresh()).tenant == "acme"
    with pytest.raises(UsageError, match="does not belong to tenant"):
        await hf.sessions[made.id].send("Go", agent, tenant="other")
    with pytest.raises(NotFound):
        await hf.tenant("other").sessions[made.id].send("Go", agent)
    with pytest.raises(NotFound):
        await hf.sessions["018f0000-0000-7000-8000-000000000000"].send("Go", agent)


async def test_a_tenant_asks_why_of_its_own_runs(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    run = await hf.agent("a", model="scripted:").enqueue("Go", tenant="acme")
    assert await hf.tenant("acme").why(run.id) == await hf.tenant("acme").jobs.why(run.id)
    assert str(await hf.tenant("acme").why(run.id)) == "no live worker can run it"
    assert "agent:a" in str(await run.why())
    with pytest.raises(NotFound):
        await hf.tenant("other").why(run.id)


NOWHERE = "sqlite:////nowhere/at-all.db"


async def test_tenants_may_use_one_key_for_messages_that_join(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = hf.agent("guide", model="scripted:")
    script = Noting(say("read"))
    lab = await labs.use(hf, script)
    for tenant in ("a", "b"):
        first = await agent.enqueue("One", session="s", tenant=tenant)
        joined = await agent.enqueue(f"for {tenant}", session="s", tenant=tenant, key="k", during="coalesce")
        assert joined.id == first.id
    await lab.drain()
    assert {"for a", "for b"} <= {part["text"] for body in script.bodies for part in body["messages"][0]["content"]}
