"""What has ended, counted and grouped, as a program asks for it over HTTP."""

from __future__ import annotations

import pytest

from holdfast import Holdfast, Retry
from holdfast.access.principals import Principal
from holdfast.agents import queries
from holdfast.app import core_of
from holdfast.errors import RunFailed
from holdfast.http import web
from holdfast.kernel import tally
from holdfast.models.script import Script, call, reject, say
from holdfast.values import as_json
from tests.http.client import Client
from tests.http.test_api import API, guide

LATER = "2100-01-01T00:00:00Z"


def seen_by(hf: Holdfast, tenant: str | None = None) -> Client:
    return Client(web(hf, who=lambda _: Principal("ann", "viewer", tenant)))


async def count_all(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for the minute to be over."""
    monkeypatch.setattr(tally, "settled", lambda now_us: now_us)
    database = await core_of(hf).opened()
    while await database.transact(queries.count, hf.settings):
        pass


async def test_what_ended_is_counted_by_what_is_asked_for(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    @hf.job(name="paint", queue="images", retry=Retry(attempts=1))
    async def paint(n: int) -> None:
        if n == 2:
            raise ValueError(f"no color {n}")

    agent = guide(hf)
    await hf.ensure_worker()
    for n in range(3):
        job = await paint.options(tenant="acme" if n else "").enqueue(n)
        if n == 2:
            with pytest.raises(RunFailed):
                await job.result()
        else:
            await job.result()
    await agent.run("Hello", tenant="acme")
    await count_all(hf, monkeypatch)
    ann, acme, evil = seen_by(hf), seen_by(hf, "acme"), seen_by(hf, "evil")

    jobs = (await ann.get(f"{API}/system/stats", source="images", by=["kind", "state"], step="hour")).json
    assert {(row["kind"], row["state"]): row["count"] for row in jobs} == {
        ("paint", "succeeded"): 2,
        ("paint", "failed"): 1,
    }
    assert all(row["duration_p95"] and row["wait_p50"] for row in jobs)
    minutes = (await ann.get(f"{API}/system/stats", source="images", since="1h")).json
    assert sum(row["count"] for row in minutes) == 3
    assert as_json(await hf.jobs.stats(source="images", since="1h")) == minutes
    (mine,) = (await acme.get(f"{API}/system/stats", source="images", step="all")).json
    assert mine["count"] == 2
    (turns,) = (await acme.get(f"{API}/system/stats", of="turns", by="kind", step="day")).json
    assert (turns["kind"], turns["count"], turns["output_tokens"] > 0) == ("scripted:guide", 2, True)
    (calls,) = (await acme.get(f"{API}/system/stats", of="calls", by=["source", "kind"], step="day")).json
    assert (calls["source"], calls["kind"], calls["count"]) == ("guide", "look_up", 1)
    (runs,) = (await acme.get(f"{API}/system/stats", of="runs", by=["source", "state"], step="day")).json
    assert (runs["source"], runs["state"], runs["count"]) == ("guide", "completed", 1)
    assert (await evil.get(f"{API}/system/stats", step="all")).json == []
    assert (await evil.get(f"{API}/system/stats", tenant="acme")).status == 404
    assert (await acme.get(f"{API}/system/stats", step="minute")).status == 422
    assert (await ann.get(f"{API}/system/stats", since="soon")).status == 422
    assert (await ann.get(f"{API}/system/stats", by="nonsense")).status == 422

    (group,) = (await ann.get(f"{API}/system/failures")).json
    assert (group["subject"], group["kind"], group["error"], group["message"], group["count"]) == (
        *("jobs", "paint", "ValueError", "no color <n>"),
        1,
    )
    assert (await hf.jobs.get(group["last_id"])).state == "failed"
    assert (await acme.get(f"{API}/system/failures", of="jobs", kind="paint")).json == [group]
    assert (await acme.get(f"{API}/system/failures", of="runs")).json == []
    assert (await evil.get(f"{API}/system/failures")).json == []


@pytest.mark.both
async def test_runs_that_ended_late_are_counted_with_their_hour(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = guide(hf)
    await hf.ensure_worker()
    await agent.run("Hello", tenant="acme", session="first")
    monkeypatch.setattr(tally, "settled", lambda now_us: now_us + tally.HOUR)
    database = await core_of(hf).opened()
    while await database.transact(queries.count, hf.settings):
        pass
    await agent.run("Hello", tenant="acme", session="late")
    await agent.run("Hello", tenant="acme", session="gone")
    await hf.tenant("acme").sessions["gone"].delete()
    monkeypatch.setattr(tally, "over", lambda now_us: now_us + 2 * tally.HOUR)
    for _ in range(2):
        while await database.transact(queries.count_again, hf.settings):
            pass
        runs = await hf.runs.stats(of="runs", tenant="acme", step="all")
        turns = await hf.runs.stats(of="turns", tenant="acme", step="all")
        calls = await hf.runs.stats(of="calls", tenant="acme", step="all")
        assert [[each.count for each in found] for found in (runs, turns, calls)] == [[3], [6], [3]]


async def test_failed_runs_and_calls_are_grouped_by_agent_and_tool(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @hf.tool
    def weigh(what: str) -> str:
        """Weigh it."""
        raise KeyError(f"no scale {what}")

    hf.script("weigher", Script(call("weigh", what="17"), say("I cannot.")))
    agent = hf.agent("weigher", model="scripted:weigher", tools=[weigh])
    hf.script("broken", Script(reject("out of order")))
    broken = hf.agent("broken", model="scripted:broken")
    await hf.ensure_worker()
    await agent.run("Weigh it")
    with pytest.raises(RunFailed):
        await broken.run("Hello")
    await count_all(hf, monkeypatch)
    groups = (await seen_by(hf).get(f"{API}/system/failures")).json
    assert {(group["subject"], group["kind"]) for group in groups} == {("calls", "weigh"), ("runs", "broken")}
    (call_group,) = await hf.runs.failures(of="calls")
    assert (call_group.error, call_group.kind) == ("KeyError", "weigh")
    assert (await hf.runs.call(call_group.last_id)).name == "weigh"


async def test_what_a_deleted_session_did_stays_counted(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = guide(hf)
    await hf.ensure_worker()
    for key in ("counted", "not counted"):
        await agent.run("Hello", session=key)
        if key == "counted":
            await count_all(hf, monkeypatch)
    used = await hf.budgets.used("agent", "model", "mode", "tenant", "day")
    assert [row.turns for row in used] == [4]
    for key in ("counted", "not counted"):
        await hf.sessions.delete(key)
        assert await hf.budgets.used("agent", "model", "mode", "tenant", "day") == used
    await count_all(hf, monkeypatch)
    assert await hf.budgets.used("agent", "model", "mode", "tenant", "day") == used
    assert [row.turns for row in await hf.budgets.used(tenant="")] == [4]
    for of, expected in (("runs", 2), ("turns", 4), ("calls", 2)):
        (found,) = await hf.runs.stats(of=of, step="all")  # type: ignore[arg-type]
        assert found.count == expected


async def test_calls_of_all_runs_are_listed(hf: Holdfast) -> None:
    agent = guide(hf)
    await hf.ensure_worker()
    runs = [await agent.enqueue("Hello", tenant=tenant) for tenant in ("acme", "acme", "evil")]
    for run in runs:
        await run.result()
    ann, acme = seen_by(hf), seen_by(hf, "acme")
    listed: list[str] = []
    after = None
    while True:
        page = (await ann.get(f"{API}/calls", limit=2, after=after, name="look_up", state="completed")).json
        listed += [each["run"] for each in page["items"]]
        if (after := page["next"]) is None:
            break
    assert sorted(listed) == sorted(run.id for run in runs)
    mine = (await acme.get(f"{API}/calls")).json["items"]
    assert {each["run"] for each in mine} == {run.id for run in runs[:2]}
    times = [each["finished_at"] for each in mine]
    assert times == sorted(times, reverse=True)
    for query in ({"state": "failed", "name": "look_up"}, {"name": "other"}, {"state": "running"}, {"since": LATER}):
        assert (await ann.get(f"{API}/calls", **query)).json["items"] == [], query
    assert (await ann.get(f"{API}/calls", state="happy")).status == 422
    assert (await acme.get(f"{API}/calls", tenant="evil")).status == 404


async def test_failed_and_open_calls_are_listed(hf: Holdfast) -> None:
    @hf.tool
    def weigh(what: str) -> str:
        """Weigh it."""
        raise KeyError(what)

    @hf.tool(approve=True)
    def pay(what: str) -> str:
        """Pay it."""
        return what

    hf.script("weigher", Script(call("weigh", what="x"), call("pay", what="y"), say("Done.")))
    run = await hf.agent("weigher", model="scripted:weigher", tools=[weigh, pay]).enqueue("Weigh it")
    await hf.ensure_worker()
    async for event in run.stream():
        if type(event).__name__ == "ApprovalRequested":
            break
    ann = seen_by(hf)
    (failed,) = (await ann.get(f"{API}/calls", state="failed", name="weigh")).json["items"]
    assert (failed["name"], failed["is_error"]) == ("weigh", True)
    (waiting,) = (await ann.get(f"{API}/calls", state="pending")).json["items"]
    assert waiting["name"] == "pay"


async def test_a_search_finds_what_begins_so(hf: Holdfast) -> None:
    @hf.job(name="paint", queue="guided-tours")
    async def paint() -> None: ...

    agent = guide(hf)
    run = await agent.enqueue("Hello", session="guests of acme", tenant="acme")
    job = await paint.enqueue()
    ann, acme, evil = seen_by(hf), seen_by(hf, "acme"), seen_by(hf, "evil")

    async def found(client: Client, text: str) -> set[tuple[str, str]]:
        answer = await client.get(f"{API}/system/search", q=text)
        assert answer.status == 200, answer.body
        return {(each["noun"], each["name"]) for each in answer.json}

    assert await found(ann, "gui") == {("agent", "guide"), ("queue", "guided-tours")}
    assert await found(ann, "guests of") == await found(acme, "guests") == {("session", "guests of acme")}
    assert await found(evil, "gu") == set()
    for id, expected in (
        (run.id, ("run", "guide")),
        (run.id[:13].upper(), ("run", "guide")),
        (job.id, ("job", "paint")),
    ):
        assert expected in await found(ann, id)
    assert await found(evil, run.id) == await found(evil, job.id) == set()
    assert ("run", "guide") in await found(acme, run.id)
    assert (await ann.get(f"{API}/system/search", q="x")).status == 422


async def test_jobs_are_listed_since_a_time(hf: Holdfast) -> None:
    @hf.job(name="paint")
    async def paint(n: int) -> None: ...

    jobs = [await paint.enqueue(n) for n in range(5)]
    rows = [await hf.jobs.get(job.id) for job in jobs]
    ann = seen_by(hf)
    for n in range(5):
        expected = [job.id for job, row in zip(jobs, rows, strict=True) if row.created_at >= rows[n].created_at]
        for more in ({}, {"state": "pending"}, {"kind": "paint"}):
            page = (await ann.get(f"{API}/jobs", since=rows[n].created_at.isoformat(), **more)).json
            assert ([job["id"] for job in page["items"]], page["next"]) == (expected[::-1], None)
    assert (await ann.get(f"{API}/jobs", since=LATER)).json["items"] == []


async def test_a_key_finds_a_job_of_who_asks(hf: Holdfast) -> None:
    @hf.job(name="paint")
    async def paint(n: int) -> None: ...

    ours, theirs = [await paint.options(key="K", tenant=whose).enqueue(1) for whose in ("", "acme")]
    mine, their = {"key": "K"}, {"key": "K", "tenant": "acme"}
    for reader, asked, expected in ((None, mine, [ours.id]), (None, their, [theirs.id]), ("acme", mine, [theirs.id])):
        page = (await seen_by(hf, reader).get(f"{API}/jobs", **asked)).json
        assert [job["id"] for job in page["items"]] == expected
    assert (await seen_by(hf, "evil").get(f"{API}/jobs", **mine)).json["items"] == []


async def test_a_list_says_how_many_there_are_if_asked(hf: Holdfast) -> None:
    agent = guide(hf)
    for n in range(3):
        await agent.enqueue("Hello", session=f"s{n}", tenant="acme" if n else "")
    ann, acme = seen_by(hf), seen_by(hf, "acme")
    for path in ("/runs", "/sessions"):
        answer = await ann.get(API + path, limit=1, count=1)
        assert answer.json.get("total") == 3, answer.body
        assert (await acme.get(API + path, limit=1, count=1)).json["total"] == 2
        assert "total" not in (await ann.get(API + path)).json
    assert (await ann.get(f"{API}/runs", count=1, state="failed")).json["total"] == 0
    assert (await ann.get(f"{API}/runs", count=1, agent="guide", session="s0")).json["total"] == 1
