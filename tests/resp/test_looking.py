"""Keys, lists and searches over jobs: right for who looks, at a cost that does not grow with what there is."""

from __future__ import annotations

import json

import pytest

from tests.resp.conftest import Client, Connect
from tests.resp.test_cost import statements
from tests.resp.test_jobs import PLAN, popped, submitted
from tests.resp.test_workers import registered
from tests.support.sent import Statements

__all__ = ["statements"]


async def keys(client: Client, *words: str) -> set[str]:
    answer = await client(*words)
    if words[0] == "SCAN":
        assert isinstance(answer, list)
        answer = answer[1]
    assert isinstance(answer, list)
    return {bytes(each).decode() for each in answer}  # type: ignore[arg-type]


@pytest.mark.both
async def test_keys_of_jobs_plans_and_queues_are_listed(connect: Connect) -> None:
    client, submitter = await registered(connect), await connect("submitter")
    assert (await submitter("TYPE", "queue:ready"), await submitter("EXISTS", "queue:ready")) == ("none", 0)
    first, second = await submitted(submitter, count=2)
    assert (await submitter("TYPE", "queue:ready"), await submitter("EXISTS", "queue:ready")) == ("list", 1)
    assert (await submitter("TTL", "queue:ready"), await submitter("TTL", "queue:none")) == (-1, -2)
    assert "WRONGTYPE" in await submitter.text("GET", "queue:ready")
    assert (await client("EXISTS", "queue:processing"), await submitter("EXISTS", "queue:processing")) == (0, 0)
    await popped(client)
    assert (await client("TYPE", "queue:processing"), await submitter("TYPE", "queue:processing")) == ("list", "none")
    jobs = {f"job:{first}:status", f"job:{first}:worker", f"job:{second}:status"}
    for words in (("KEYS", "job:*"), ("SCAN", "0", "MATCH", "job:*")):
        assert await keys(submitter, *words) == jobs
    assert await keys(submitter, "KEYS", "plan:*") == {"plan:sorting"}
    assert await keys(submitter, "KEYS", "q*") == {"queue:ready"}
    assert await keys(submitter, "SCAN", "0", "TYPE", "list") == {"queue:ready"}
    assert await keys(submitter, "KEYS", "*") >= jobs | {"plan:sorting", "queue:ready", "worker:w1:alive"}
    for key in await keys(submitter, "KEYS", "*"):
        assert await submitter("EXISTS", key) == 1


async def test_a_pattern_with_many_stars_holds_up_nobody(connect: Connect) -> None:
    client = await connect("submitter")
    await client("SET", "a" * 1_000, "1")
    for words in (("KEYS",), ("SCAN", "0", "MATCH")):
        assert await keys(client, *words, "*a" * 25 + "b") == set()
        assert await keys(client, *words, "*a" * 25) == {"a" * 1_000}
        assert "a pattern has at most 2048 bytes" in await client.text(*words, "?" * 2_049)


async def test_a_long_queue_shows_what_comes_next_first(connect: Connect, statements: Statements) -> None:
    client = await registered(connect)
    await client("LPUSH", "queue:in", *(f"e{number}" for number in range(1_100)))
    statements.clear()
    (last,) = await client("LRANGE", "queue:in", "-1", "-1")  # type: ignore[misc, str-unpack]
    (peeked,) = await client("QUEUE.PEEK", "in", "1")  # type: ignore[misc, str-unpack]
    assert last == peeked
    shown = await client("LRANGE", "queue:in", "-100", "-2")
    assert isinstance(shown, list)
    assert len(shown) == 99
    assert max(statements.sent.values()) <= 15, statements.sent  # what the gateway does beside it is little
    ((claimed, _, _),) = await client("JOB.CLAIM", "in")  # type: ignore[misc, str-unpack]
    assert json.loads(claimed)["job_id"] == json.loads(peeked)["job_id"]  # type: ignore[arg-type]


async def test_a_search_is_one_question_however_many_jobs_there_are(connect: Connect, statements: Statements) -> None:
    client, submitter = await registered(connect), await connect("submitter")
    ids = await submitted(submitter, count=40)
    await submitted(submitter, "a2", plan={**PLAN, "plan_id": "other"})
    job = await popped(client)
    await client("JOB.UPDATE", job["job_id"], '{"status": "completed"}')
    statements.clear()
    assert len(await keys(submitter, "JOBS.SEARCH", "pending", "sorting")) == 39
    assert await keys(submitter, "JOBS.SEARCH", "completed") == {ids[0]}
    assert len(await keys(submitter, "JOBS.LIST", "0", "30")) == 30
    newest = await submitter("JOBS.LIST", "1", "2")
    assert newest == [ids[39].encode(), ids[38].encode()]
    assert max(statements.sent.values()) <= 15, statements.sent  # what the gateway does beside it is little


async def listed(client: Client, *words: str) -> list[str]:
    found = await client("ACTION.LIST", *words)
    assert isinstance(found, list)
    return [json.loads(each)["action_id"] for each in found]  # type: ignore[arg-type]


@pytest.mark.long
async def test_actions_with_a_status_are_paged_among_themselves(connect: Connect, statements: Statements) -> None:
    client, submitter = await registered(connect), await connect("submitter")
    for number in range(6):
        await submitted(submitter, f"a{number}")
    assert await listed(submitter, "0", "2") == ["a5", "a4"]
    for _ in range(3):  # the oldest three are done
        job = await popped(client)
        await client("JOB.UPDATE", job["job_id"], '{"status": "completed"}')
    statements.clear()
    assert await listed(submitter, "completed", "1", "1") == ["a1"]
    assert await listed(submitter, "completed") == ["a2", "a1", "a0"]
    assert await listed(submitter, "pending", "2", "2") == ["a3"]
    assert await listed(submitter, "completed", "3", "1") == []
    assert statements.sent.total() - statements.sent["look"] <= 12, statements.sent
