"""What has ended, counted and grouped, as a program asks for it over HTTP."""

from __future__ import annotations

import pytest

from holdfast import Holdfast, Retry
from holdfast.access.principals import Principal
from holdfast.agents import tallies
from holdfast.app import core_of
from holdfast.errors import RunFailed
from holdfast.http import web
from holdfast.kernel import tally
from holdfast.models.script import Script, call, say
from holdfast.values import as_json
from tests.http.client import Client
from tests.http.test_api import API, guide


def seen_by(hf: Holdfast, tenant: str | None = None) -> Client:
    return Client(web(hf, who=lambda _: Principal("ann", "viewer", tenant)))


async def count_all(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for the minute to be over."""
    monkeypatch.setattr(tally, "settled", lambda now_us: now_us)
    database = await core_of(hf).opened()
    while await database.transact(tallies.count, hf.settings):
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


async def test_failed_runs_and_calls_are_grouped_by_agent_and_tool(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @hf.tool
    def weigh(what: str) -> str:
        """Weigh it."""
        raise KeyError(f"no scale {what}")

    hf.script("weigher", Script(call("weigh", what="17"), say("I cannot.")))
    agent = hf.agent("weigher", model="scripted:weigher", tools=[weigh])
    broken = hf.agent("broken", model="scripted:nothing-of-this-name")
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
    for key in ("counted", "not counted"):
        await hf.sessions.delete(key)
    await count_all(hf, monkeypatch)
    for of, expected in (("runs", 2), ("turns", 4), ("calls", 2)):
        (found,) = await hf.runs.stats(of=of, step="all")  # type: ignore[arg-type]
        assert found.count == expected
