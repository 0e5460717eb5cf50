"""What the gateway stores beside jobs goes when it is old, or when its tenant is erased."""

from __future__ import annotations

import json

import pytest

from holdfast import Holdfast
from holdfast.agw.link import GatewayAddress, Link
from holdfast.app import core_of
from holdfast.kernel.retention import KeepRule, Pruner
from holdfast.resp.client import KeyPrincipal, digest_of
from holdfast.resp.plans import kernel_id
from tests.resp.conftest import KEYS as KEYS_OF_WORKERS
from tests.resp.conftest import Client, Connect, Serve
from tests.resp.test_plans_and_actions import PLAN, action
from tests.support.apps import MakeApp, eventually
from tests.support.contents import contents_at, mentions

CANARY, OTHER = "yellow-bird", "grey-mouse"
KEYS = {"acme": "aa" * 32, "other": "bb" * 32}
WORDS = {"acme": CANARY, "other": OTHER}


@pytest.fixture
def principals() -> tuple[KeyPrincipal, ...]:
    return tuple(
        KeyPrincipal(f"of-{tenant}", digest_of(key.encode()), ("*",), tenant=tenant) for tenant, key in KEYS.items()
    )


async def test_nothing_of_an_erased_tenant_stays_in_the_gateway_and_others_lose_nothing(
    hf: Holdfast, serve: Serve, connect: Connect, principals: tuple[KeyPrincipal, ...]
) -> None:
    server = await serve(principals=principals)
    for tenant, word in WORDS.items():
        client = await connect(None, server.port)
        assert await client("AUTH", KEYS[tenant]) == "OK"
        plan = {**PLAN, "plan_id": f"p-{word}", "plan_description": word}
        assert str(await client("PLAN.SUBMIT", json.dumps(plan))).startswith("OK")
        assert str(await client("ACTION.SUBMIT", action(f"a-{word}", {"text": word}, plan=f"p-{word}"))) != ""
        assert await client("SET", f"s:{word}", word) == "OK"
        assert await client("HSET", f"h:{word}", "field", word) == 1
        assert await client("ZADD", f"z:{word}", "1", word) == 1
        assert await client("LPUSH", f"l:{word}", word) == 1
    before = contents_at(hf.settings.url)
    used = {"plan", "action", "plan_job", "resp_value", "resp_part"}
    assert used <= mentions(before, CANARY).keys() & mentions(before, OTHER).keys()
    erased = await hf.tenant("acme").erase()
    assert erased.rows == 7
    after = contents_at(hf.settings.url)
    assert mentions(after, CANARY) == {}
    assert mentions(after, OTHER) == mentions(before, OTHER)


async def test_an_action_goes_when_retention_has_removed_the_last_of_its_jobs(make_app: MakeApp, serve: Serve) -> None:
    hf = make_app(embedded=False, cleanup_interval="50ms", duty_ttl="200ms", poll_interval="20ms", retention="1h")
    server = await serve(hf)  # alone: another server would hold the clean-up, with settings of its own
    client = Client(await Link.open(GatewayAddress("127.0.0.1", server.port)))
    assert await client("AUTH", KEYS_OF_WORKERS["w1"]) == "OK"
    await client("PLAN.SUBMIT", json.dumps(PLAN))
    for id in ("first", "second"):
        await client("ACTION.SUBMIT", action(id, {"text": "a"}, {"text": "b"}))
    jobs = {id: json.loads(await client.text("ACTION.GET", id))["jobs"] for id in ("first", "second")}
    for job in (*jobs["first"], jobs["second"][0]):
        await hf.jobs[str(kernel_id(job["job_id"]))].cancel()
    pruner = Pruner(core_of(hf).runtime().database, KeepRule(0, 0, firm=True))
    assert sum([removed async for removed in pruner.thoroughly()]) == 3

    async def is_gone() -> bool:
        return await client("ACTION.GET", "first") is None

    await eventually(is_gone)
    found = contents_at(hf.settings.url)
    assert [row for row in found["plan_job"] if "first" in repr(row)] == []
    assert len(found["plan_job"]) == 2, "an action stays as a whole while one of its jobs is there"
    assert len(json.loads(await client.text("ACTION.GET", "second"))["jobs"]) == 2
    await client.close()
