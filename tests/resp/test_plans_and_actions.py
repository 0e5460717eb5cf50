"""Plans are stored before they are acknowledged and never change; an action is all of its jobs or none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.errors import StoreUnavailable
from holdfast.kernel.database import Transaction
from holdfast.kernel.ids import new_id
from holdfast.resp import plans
from holdfast.resp.plans import NewAction
from tests.resp.conftest import Connect

PLAN: dict[str, Any] = {
    "plan_id": "count-words",
    "plan_description": "Count words",
    "tasks": [
        {"task_number": 1, "command": "printf", "args": ["{{input.text}}"]},
        {"task_number": 2, "command": "sort", "input_from_task": 1, "timeout_secs": 5},
    ],
}


def action(id: str, *inputs: object, plan: str = "count-words") -> str:
    return json.dumps({"action_id": id, "plan_id": plan, "inputs": inputs})


async def test_agx_14_a_plan_is_there_when_it_was_acknowledged(connect: Connect) -> None:
    client = await connect()
    assert await client("PLAN.SUBMIT", json.dumps(PLAN)) == "OK plan_id=count-words"
    read = json.loads(await client.text("PLAN.GET", "count-words"))
    assert [task["command"] for task in read["tasks"]] == ["printf", "sort"]
    assert read["tasks"][0]["timeout_secs"] == 300
    assert read["metadata"]["total_jobs"] == 0
    assert await client("PLAN.GET", "other") is None


@pytest.mark.parametrize(
    ("tasks", "problem"),
    [
        ([{"task_number": 2, "command": "a"}], "without gaps"),
        ([{"task_number": 1, "command": "a", "input_from_task": 1}], "earlier task"),
        ([{"task_number": n, "command": "a"} for n in range(1, 102)], "1 to 100 tasks"),
        ([], "1 to 100 tasks"),
    ],
)
async def test_agx_14_a_plan_that_is_none_is_refused_and_not_stored(
    connect: Connect, tasks: object, problem: str
) -> None:
    client = await connect()
    answer = await client.text("PLAN.SUBMIT", json.dumps({"plan_id": "bad", "tasks": tasks}))
    assert answer.startswith("-ERR Invalid plan schema: ")
    assert problem in answer
    assert await client("PLAN.GET", "bad") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 5_000, '{"plan_id": NaN}', "\x00"])
async def test_a_plan_that_is_not_json_is_refused(connect: Connect, text: str) -> None:
    client = await connect()
    assert (await client.text("PLAN.SUBMIT", text)).startswith("-ERR Invalid plan schema: not ")
    assert await client("PING") == "PONG"


async def test_a_plan_is_utf_8(connect: Connect) -> None:
    client = await connect()
    plan = '{"plan_id": "p", "tasks": []}'.encode("utf-16")
    assert await client("PLAN.SUBMIT", plan) == "-ERR Invalid plan schema: not JSON"


async def test_a_plan_of_very_many_values_is_refused_before_it_is_parsed(connect: Connect) -> None:
    client = await connect()
    text = '{"plan_id": "bad", "tasks": [' + "1," * 50_000 + "1]}"
    assert await client("PLAN.SUBMIT", text) == "-ERR Invalid plan schema: more than 50000 values"


async def test_agx_15_the_same_plan_again_is_fine_and_another_is_refused(connect: Connect) -> None:
    client = await connect()
    for _ in range(2):
        assert await client("PLAN.SUBMIT", json.dumps(PLAN)) == "OK plan_id=count-words"
    changed = {**PLAN, "plan_description": "Other"}
    assert await client("PLAN.SUBMIT", json.dumps(changed)) == "-ERR Plan already exists: count-words"


async def test_agx_16_an_action_enqueues_a_job_for_each_input(connect: Connect) -> None:
    client = await connect()
    await client("PLAN.SUBMIT", json.dumps(PLAN))
    inputs = [{"text": str(n)} for n in range(5)]
    assert await client("ACTION.SUBMIT", action("a1", *inputs)) == "OK action_id=a1 jobs_created=5"
    status = json.loads(await client.text("ACTION.STATUS", "a1"))
    assert (status["total_jobs"], status["pending_jobs"], status["status"]) == (5, 5, "pending")
    whole = json.loads(await client.text("ACTION.GET", "a1", "1", "2"))
    assert [job["input_index"] for job in whole["jobs"]] == [1, 2]
    assert json.loads(await client.text("PLAN.GET", "count-words"))["metadata"]["total_actions"] == 1
    assert await client("PLAN.DELETE", "count-words") == "-ERR Cannot delete plan with active jobs"


async def test_agx_16_a_crash_midway_leaves_no_job(hf: Holdfast, connect: Connect) -> None:
    client = await connect()
    await client("PLAN.SUBMIT", json.dumps(PLAN))
    core = core_of(hf)
    database = await core.opened()
    new = NewAction("a1", "count-words", [{}, {}], [new_id(core.ports) for _ in range(2)], "ready")

    async def crashing(tx: Transaction) -> None:
        await plans.submit_action(tx, "", new)
        raise StoreUnavailable("the server was killed before the commit")

    with pytest.raises(StoreUnavailable):
        await database.transact(crashing)
    assert await client("ACTION.STATUS", "a1") is None
    assert await hf.jobs.list() == []
    assert await client("ACTION.SUBMIT", action("a1", {}, {})) == "OK action_id=a1 jobs_created=2"


async def test_agx_17_actions_that_cannot_be_are_refused_in_the_documented_words(connect: Connect) -> None:
    client = await connect()
    await client("PLAN.SUBMIT", json.dumps(PLAN))
    assert await client("ACTION.SUBMIT", action("a1", {}, plan="nope")) == "-ERR Plan not found: nope"
    assert await client("ACTION.SUBMIT", action("a1")) == "-ERR inputs array must have 1 to 100 items"
    assert await client("ACTION.SUBMIT", action("a1", *[{}] * 101)) == "-ERR inputs array must have 1 to 100 items"
    await client("ACTION.SUBMIT", action("a1", {}))
    assert await client("ACTION.SUBMIT", action("a1", {}, {})) == "-ERR Action ID already exists: a1"
    status = json.loads(await client.text("ACTION.STATUS", "a1"))
    assert status["total_jobs"] == 1


async def test_plans_are_listed_and_removed(connect: Connect) -> None:
    client = await connect()
    for number in range(3):
        await client("PLAN.SUBMIT", json.dumps({**PLAN, "plan_id": f"p{number}"}))
    listed = await client("PLAN.LIST", "0", "2")
    assert isinstance(listed, list)
    assert [json.loads(each)["plan_id"] for each in listed] == ["p2", "p1"]  # type: ignore[arg-type]
    assert [await client("PLAN.DELETE", "p1") for _ in range(2)] == [1, 0]
    assert "limit 1 to 100" in await client.text("PLAN.LIST", "0", "101")
