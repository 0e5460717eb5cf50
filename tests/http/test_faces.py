"""Machines, plans, actions, pools, tools and tenants, as a program calls them over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.http import web
from holdfast.values import as_json
from tests.http.client import Client
from tests.http.test_api import API, guide
from tests.http.test_hooks import MACHINE

PLAN: dict[str, Any] = {
    "plan_id": "count",
    "plan_description": "Count lines.",
    "tasks": [{"task_number": 1, "command": "wc", "args": ["-l", "{{input.file}}"]}],
}


def seen_by(hf: Holdfast, role: Any = "operator", tenant: str | None = None) -> Client:
    return Client(web(hf, who=lambda _: Principal("ann", role, tenant)))


async def test_an_execution_is_started_followed_and_cancelled(hf: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "greeter.yml").write_text(MACHINE)
    machine = hf.machine(tmp_path / "greeter.yml")
    ann = seen_by(hf)
    assert (await ann.get(f"{API}/machines")).json == [{"name": "greeter", "states": ["greet", "done"]}]
    wanted = {"machine": "greeter", "input": {"name": "Bob"}, "execution_id": "one"}
    started = await ann.post(f"{API}/executions", wanted)
    early = await ann.post(f"{API}/executions/{started.json['id']}/resume")
    assert (early.status, early.json["detail"].partition(": ")[2]) == (
        422,
        "it continues by itself, so there is nothing to resume.",
    )
    assert (started.status, started.json["machine"]) == (201, "greeter"), started.body
    assert (await ann.post(f"{API}/executions", wanted)).json["id"] == started.json["id"]
    assert (await ann.post(f"{API}/executions", {**wanted, "input": {"name": "Eve"}})).status == 409
    assert (await machine.execution("one").refresh()).id == started.json["id"]
    await hf.ensure_worker()
    assert await machine.execution("one").result(timeout="60s") == {"greeting": "Hello Bob"}
    for id in ("one", started.json["id"]):
        shown = (await ann.get(f"{API}/executions/{id}")).json
        assert (shown["state"], shown["at"], shown["result"]) == ("succeeded", "done", {"greeting": "Hello Bob"})
        events = (await ann.get(f"{API}/executions/{id}/events")).json
        assert (events[0]["name"], events[-1]["name"]) == ("started", "ended")
    (listed,) = (await ann.get(f"{API}/executions", machine="greeter")).json["items"]
    assert (listed["id"], listed["at"]) == (started.json["id"], "done")
    assert (await ann.get(f"{API}/executions", machine="other")).json["items"] == []
    assert (await ann.post(f"{API}/executions/one/resume")).status == 422
    assert (await ann.post(f"{API}/executions/one/cancel")).json["state"] == "succeeded"
    assert (await ann.post(f"{API}/executions", {"machine": "nothing"})).status == 404


async def test_a_tenants_executions_are_its_own(hf: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "greeter.yml").write_text(MACHINE)
    hf.machine(tmp_path / "greeter.yml")
    acme, evil, fleet = (seen_by(hf, "operator", tenant) for tenant in ("acme", "evil", None))
    wanted = {"machine": "greeter", "input": {"name": "Secret"}, "execution_id": "one"}
    started = await acme.post(f"{API}/executions", wanted)
    assert (await hf.jobs.get(started.json["id"])).tenant == "acme"
    other = await evil.post(f"{API}/executions", {**wanted, "input": {}})
    assert other.status == 201
    assert other.json["id"] != started.json["id"]
    for id in (started.json["id"], "two"):
        for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/resume")):
            answer = await evil.call(method, f"{API}/executions/{id}{path}")
            assert answer.status == 404, (id, path, answer.body)
    assert [each["id"] for each in (await acme.get(f"{API}/executions")).json["items"]] == [started.json["id"]]
    assert len((await fleet.get(f"{API}/executions")).json["items"]) == 2
    assert (await fleet.get(f"{API}/executions/{started.json['id']}")).status == 200


async def test_a_job_that_is_no_execution_is_not_there(hf: Holdfast) -> None:
    run = await guide(hf).enqueue("Hello")
    assert (await seen_by(hf).get(f"{API}/executions/{run.id}")).status == 404
    assert (await seen_by(hf).get(f"{API}/executions")).json["items"] == []


async def test_plans_and_actions(hf: Holdfast) -> None:
    ann, eve = seen_by(hf), seen_by(hf, tenant="evil")
    made = await ann.post(f"{API}/plans", PLAN)
    assert (made.status, made.json["plan_id"], made.json["actions"]) == (201, "count", 0), made.body
    assert (await ann.post(f"{API}/plans", PLAN)).status == 201
    assert (await ann.post(f"{API}/plans", {**PLAN, "plan_description": "Other."})).status == 409
    assert (await ann.post(f"{API}/plans", {"plan_id": "x"})).status == 422
    asked = {"plan": "count", "inputs": [{"file": "a"}, {"file": "b"}], "id": "first"}
    action = await ann.post(f"{API}/actions", asked)
    assert (action.status, action.json["jobs"], action.json["status"]) == (201, 2, "pending"), action.body
    assert [each["input_index"] for each in action.json["results"]] == [0, 1]
    assert (await ann.post(f"{API}/actions", asked)).status == 409
    assert (await ann.post(f"{API}/actions", {**asked, "inputs": []})).status == 422
    assert (await ann.post(f"{API}/actions", {"plan": "nothing", "inputs": [1]})).status == 409
    assert (await ann.call("DELETE", f"{API}/plans/count")).status == 409
    for n in range(3):
        await ann.post(f"{API}/actions", {**asked, "id": f"more-{n}"})
    ids: list[str] = []
    after = None
    while True:
        page = (await ann.get(f"{API}/actions", limit=3, after=after)).json
        ids += [each["id"] for each in page["items"]]
        if (after := page["next"]) is None:
            break
    assert sorted(ids) == ["first", "more-0", "more-1", "more-2"]
    for path in ("/plans", "/actions"):
        assert (await eve.get(API + path)).json["items"] == []
        assert (await eve.get(API + path, tenant="")).status == 404
        assert (await ann.get(API + path, after="nonsense")).status == 422
    for path in ("/plans/count", "/actions/first"):
        assert (await eve.get(API + path)).status == 404
    assert (await eve.call("DELETE", f"{API}/plans/count")).status == 404


async def test_a_plan_that_nobody_uses_is_removed(hf: Holdfast) -> None:
    ann = seen_by(hf)
    await ann.post(f"{API}/plans", PLAN)
    assert [each["plan_id"] for each in (await ann.get(f"{API}/plans")).json["items"]] == ["count"]
    assert (await ann.call("DELETE", f"{API}/plans/count")).status == 204
    assert (await ann.get(f"{API}/plans/count")).status == 404


async def test_tools_say_who_offers_and_who_serves_them(hf: Holdfast) -> None:
    await hf.agents.put(guide(hf))
    ann = seen_by(hf, "viewer")
    (tool,) = (await ann.get(f"{API}/tools")).json["items"]
    assert (tool["name"], tool["agents"], tool["schema"]["properties"].keys()) == ("look_up", ["guide"], {"word"})
    assert (await ann.get(f"{API}/tools/look_up")).json["workers"] == []
    await hf.ensure_worker()
    assert len((await ann.get(f"{API}/tools/look_up")).json["workers"]) == 1
    assert (await ann.get(f"{API}/tools/nothing")).status == 404
    acme = seen_by(hf, "viewer", "acme")
    assert (await acme.get(f"{API}/tools")).json["items"] == []
    assert (await acme.get(f"{API}/tools/look_up")).status == 404


async def test_pools_are_shown(hf: Holdfast) -> None:
    ann = seen_by(hf, "viewer")
    assert (await ann.get(f"{API}/pools")).json["items"] == []
    async with hf.pool("render", min=1, max=2):
        (pool,) = (await ann.get(f"{API}/pools")).json["items"]
        assert (pool["name"], pool["min"], pool["max"]) == ("render", 1, 2)
        assert (await ann.get(f"{API}/pools/render")).json["name"] == "render"
    assert as_json(await hf.pools.get("render"))["name"] == "render"
    assert (await ann.get(f"{API}/pools/nothing")).status == 404


async def test_tenants_are_listed_by_name(hf: Holdfast) -> None:
    agent = guide(hf)
    for tenant in ("cats", "acme", "birds", "acme"):
        await agent.enqueue("Hello", tenant=tenant)
    await agent.enqueue("Hello")
    admin = seen_by(hf, "admin")
    page = (await admin.get(f"{API}/tenants", limit=2)).json
    assert [each["id"] for each in page["items"]] == ["acme", "birds"]
    rest = (await admin.get(f"{API}/tenants", limit=2, after=page["next"])).json
    assert ([each["id"] for each in rest["items"]], rest["next"]) == (["cats"], None)
    shown = (await admin.get(f"{API}/tenants/acme")).json
    assert (shown["id"], shown["used"]) == ("acme", [])
    assert (await seen_by(hf, "operator").get(f"{API}/tenants")).status == 403


@pytest.mark.parametrize("path", ["/pools", "/tenants", "/tenants/acme"])
async def test_the_fleet_is_not_there_for_a_tenant(hf: Holdfast, path: str) -> None:
    assert (await seen_by(hf, "admin", "acme").get(API + path)).status == 404
