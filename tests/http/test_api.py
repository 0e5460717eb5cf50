"""The JSON API, route by route, as a program calls it."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pytest

from holdfast import Agent, Holdfast
from holdfast.http import web
from holdfast.models.script import Script, call, say
from holdfast.values import as_json
from tests.http.client import Client

API = "/api/v1"


def guide(hf: Holdfast) -> Agent[str]:
    @hf.tool
    def look_up(word: str) -> str:
        """Look a word up."""
        return f"{word}: found"

    hf.script("guide", Script(call("look_up", word="cat"), say("A cat.")))
    return hf.agent("guide", model="scripted:guide", tools=[look_up])


@pytest.fixture
async def admin(hf: Holdfast) -> Client:
    made = await hf.access.tokens.create("ann", role="admin")
    return Client(web(hf), made.secret)


async def test_a_run_is_started_and_its_result_read(hf: Holdfast, admin: Client) -> None:
    guide(hf)
    await hf.ensure_worker()
    started = await admin.post(f"{API}/runs", {"agent": "guide", "prompt": "What is it?", "metadata": {"a": 1}})
    assert started.status == 201, started.body
    id = started.json["id"]
    result = await admin.get(f"{API}/runs/{id}/result", wait="60s")
    assert (result.status, result.json["text"]) == (200, "A cat.")
    shown = (await admin.get(f"{API}/runs/{id}")).json
    assert shown == as_json(await hf.runs.get(id))
    assert (shown["state"], shown["metadata"]) == ("completed", {"a": 1})
    turns = (await admin.get(f"{API}/runs/{id}/turns")).json
    assert [turn["number"] for turn in turns["items"]] == [1, 2]
    assert [each["name"] for each in (await admin.get(f"{API}/runs/{id}/calls")).json["items"]] == ["look_up"]
    (first, *_) = (await admin.get(f"{API}/runs/{id}/events", limit=1)).json["items"]
    assert (first["type"], first["seq"]) == ("run_created", 1)
    spans = (await admin.get(f"{API}/runs/{id}/waterfall")).json
    assert [span["kind"] for span in spans if span["kind"] != "wait"] == ["run", "turn", "call", "turn"]
    assert [run["id"] for run in (await admin.get(f"{API}/runs/{id}/tree")).json] == [id]
    assert (await admin.get(f"{API}/runs/{id}/usage")).json["turns"] == 2
    (why,) = (await admin.get(f"{API}/runs/{id}/why")).json
    assert (why["gate"], why["sentence"].endswith("answered")) == ("ended", True)
    messages = (await admin.get(f"{API}/sessions/{shown['session']}/messages")).json["items"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]
    assert len((await admin.get(f"{API}/runs/{id}/messages")).json["items"]) == 4
    exported = await admin.get(f"{API}/runs/{id}/export")
    assert (exported.status, exported.body[:15]) == (200, b"SQLite format 3")


async def test_a_repeated_request_creates_nothing(hf: Holdfast, admin: Client) -> None:
    guide(hf)
    body = {"agent": "guide", "prompt": "Hello", "session": "chat-1"}
    first = await admin.post(f"{API}/runs", body, idempotency_key="k1")
    again = await admin.post(f"{API}/runs", body, idempotency_key="k1")
    assert (first.status, again.status) == (201, 200)
    assert first.json == again.json
    other = await admin.post(f"{API}/runs", {**body, "prompt": "Bye"}, idempotency_key="k1")
    assert (other.status, other.json["error"]) == (409, "RequestConflict")
    assert len(await hf.runs.list()) == 1
    made = [await admin.post(f"{API}/sessions", {"metadata": {"n": 1}}, idempotency_key="k2") for _ in range(2)]
    assert [each.status for each in made] == [201, 200]
    assert len(await hf.sessions.list()) == 2


async def test_a_refused_request_frees_its_key(hf: Holdfast, admin: Client) -> None:
    guide(hf)
    body = {"agent": "nobody", "prompt": "Hello"}
    assert (await admin.post(f"{API}/runs", body, idempotency_key="k1")).status == 404
    body = {"agent": "guide", "prompt": "Hello"}
    assert (await admin.post(f"{API}/runs", body, idempotency_key="k1")).status == 201


async def test_lists_come_in_pages(hf: Holdfast, admin: Client) -> None:
    agent = guide(hf)
    runs = [(await agent.enqueue(f"n{n}", session=f"s{n % 2}")).id for n in range(5)]
    seen: list[str] = []
    after = None
    while True:
        page = (await admin.get(f"{API}/runs", limit=2, after=after)).json
        assert set(page) == {"items", "next", "looked"}
        seen += [run["id"] for run in page["items"]]
        after = page["next"]
        if after is None:
            break
    assert seen == runs[::-1]
    some = (await admin.get(f"{API}/runs", session="s1", state="pending", agent="guide")).json["items"]
    assert [run["id"] for run in some] == [runs[3], runs[1]]


async def test_an_ended_run_is_enqueued_again(hf: Holdfast, admin: Client) -> None:
    run = await guide(hf).enqueue("Hello", session="chat", metadata={"a": 1}, variables={"v": 2})
    refused = await admin.post(f"{API}/runs/{run.id}/retry")
    assert (refused.status, refused.json["error"]) == (422, "UsageError")
    assert (await admin.post(f"{API}/runs/{run.id}/cancel", {"reason": "no"})).json["state"] == "cancelled"
    again = await admin.post(f"{API}/runs/{run.id}/retry")
    assert again.status == 201, again.body
    old = await hf.runs.get(run.id)
    new = await hf.runs.get(again.json["id"])
    assert (new.retry_of, new.session, new.input) == (old.id, old.session, old.input)
    assert (new.metadata, new.variables) == ({"a": 1}, {"v": 2})


async def test_runs_are_changed_in_bulk_each_once(hf: Holdfast, admin: Client) -> None:
    agent = guide(hf)
    for n in range(3):
        await agent.enqueue(f"n{n}")
    counted = (await admin.post(f"{API}/runs/cancel", {"agent": "guide", "dry_run": True})).json
    assert (counted["matched"], counted["changed"]) == (3, 0)
    cancelled = (await admin.post(f"{API}/runs/cancel", {"agent": "guide"})).json
    assert (cancelled["changed"], cancelled["refused"]) == (3, {})
    for _ in range(2):
        again = (await admin.post(f"{API}/runs/retry", {"state": "cancelled"})).json
        assert again["matched"] == 3, again
    pending = await hf.runs.list(state="pending")
    assert len(pending) == 3


async def test_jobs_are_listed_explained_and_changed(hf: Holdfast, admin: Client) -> None:
    @hf.job(name="paint", queue="images")
    async def paint(color: str) -> str:
        return color

    jobs = [await paint.enqueue(f"c{n}") for n in range(3)]
    page = (await admin.get(f"{API}/jobs", queue="images", state="pending")).json
    assert [job["id"] for job in page["items"]] == [job.id for job in jobs[::-1]]
    keyed = await paint.options(key="K").enqueue("c9")
    for asked, total in (({"key": "K"}, 1), ({"kind": "pa*", "since": "1h", "limit": 1}, 4)):
        found = (await admin.get(f"{API}/jobs", **asked, count=1)).json
        assert ([job["id"] for job in found["items"]], found["total"]) == ([keyed.id], total)
    assert (await admin.get(f"{API}/jobs", kind="*a*b*c*")).status == 422
    assert (await admin.get(f"{API}/jobs", since="soon")).status == 422
    await keyed.cancel()
    assert (await admin.get(f"{API}/jobs/{jobs[0].id}")).json["payload"] == {"color": "c0"}
    (reason,) = (await admin.get(f"{API}/jobs/{jobs[0].id}/why")).json
    assert reason["gate"] == "no_worker"
    assert (await admin.get(f"{API}/scale/images")).json == {"queue": "images", "value": 3}
    assert (await admin.get(f"{API}/scale/nothing")).json["value"] == 0
    assert (await admin.post(f"{API}/jobs/{jobs[0].id}/cancel")).json["state"] == "cancelled"
    many = (await admin.post(f"{API}/jobs/cancel", {"queue": "images", "dry_run": True})).json
    assert many["matched"] == 2
    assert (await admin.post(f"{API}/jobs/cancel", {"queue": "images"})).json["changed"] == 2
    for changed in (4, 0):
        assert (await admin.post(f"{API}/jobs/retry", {"state": "cancelled"})).json["changed"] == changed
    again = await admin.post(f"{API}/jobs/{jobs[0].id}/retry")
    assert (again.status, again.json["retry_of"]) == (201, jobs[0].id)
    assert (await admin.get(f"{API}/jobs/{jobs[0].id}/attempts")).json == []


async def test_a_call_is_approved_by_who_asks(hf: Holdfast, admin: Client) -> None:
    @hf.tool(effect="once", approve=True)
    def refund(amount: int) -> str:
        """Refund an order."""
        return f"refunded {amount}"

    hf.script("clerk", Script(call("refund", amount=80), say("Done.")))
    agent = hf.agent("clerk", model="scripted:clerk", tools=[refund])
    await hf.ensure_worker()
    run = await agent.enqueue("Refund me")
    async for event in run.stream():
        if type(event).__name__ == "ApprovalRequested":
            break
    (asked,) = (await admin.get(f"{API}/inquiries")).json["items"]
    assert (await admin.get(f"{API}/runs/{run.id}/inquiries")).json["items"] == [asked]
    bad = await admin.post(f"{API}/inquiries/{asked['id']}/approve", {"digest": "other"})
    assert (bad.status, bad.json["error"]) == (409, "DigestMismatch")
    assert (await admin.post(f"{API}/inquiries/{asked['id']}/approve", {})).status == 422
    named = {"digest": asked["digest"], "by": "somebody else"}
    assert (await admin.post(f"{API}/inquiries/{asked['id']}/approve", named)).status == 422
    done = await admin.post(f"{API}/inquiries/{asked['id']}/approve", {"digest": asked["digest"]})
    assert (done.json["state"], done.json["decided_by"]) == ("approved", "ann")
    assert (await run.result()).text == "Done."
    (called,) = (await admin.get(f"{API}/runs/{run.id}/calls")).json["items"]
    assert (await admin.get(f"{API}/calls/{called['id']}")).json == called


async def test_sessions_are_made_changed_and_removed(hf: Holdfast, admin: Client) -> None:
    guide(hf)
    made = (await admin.post(f"{API}/sessions", {"key": "chat", "metadata": {"user": "bob"}})).json
    path = f"{API}/sessions/{made['id']}"
    assert (await admin.get(f"{API}/sessions/chat")).json == made
    assert (await admin.get(f"{API}/sessions", metadata='{"user":"bob"}')).json["items"] == [made]
    assert (await admin.get(f"{API}/sessions", metadata='{"user":"eve"}')).json["items"] == []
    values = (await admin.get(f"{API}/sessions/values", key="user")).json["items"]
    assert values == [{"value": "bob", "count": 1}]
    changed = await admin.call("PATCH", path, {"metadata": {"user": "eve"}, "during": "reject"})
    assert (changed.json["metadata"], changed.json["during"]) == ({"user": "eve"}, "reject")
    sent = await admin.post(f"{path}/send", {"agent": "guide", "prompt": "Hi"})
    assert (sent.status, sent.json["session"]) == (201, made["id"])
    assert [run["id"] for run in (await admin.get(f"{path}/runs")).json["items"]] == [sent.json["id"]]
    busy = await admin.post(f"{path}/send", {"agent": "guide", "prompt": "Hi again"})
    assert (busy.status, busy.json["error"], busy.json["retry"]) == (409, "SessionBusy", "later")
    assert (await admin.get(f"{path}/usage")).json["runs"] == 1
    assert (await admin.get(f"{path}/compactions")).json["items"] == []
    await admin.post(f"{API}/runs/{sent.json['id']}/cancel")
    assert (await admin.post(f"{path}/fork")).status == 201
    assert (await admin.call("DELETE", path)).status == 204
    assert (await admin.get(path)).status == 404


async def test_agents_are_written_from_plain_values(hf: Holdfast, admin: Client) -> None:
    new = {"name": "poet", "model": "scripted:guide", "fields": {"instructions": "Rhyme."}}
    made = await admin.post(f"{API}/agents", new)
    assert made.status == 201, made.body
    path = f"{API}/agents/{made.json['id']}"
    changed = await admin.call("PATCH", path, {"fields": {"instructions": "Rhyme well."}})
    assert changed.json["version"] == 2
    assert [each["version"] for each in (await admin.get(f"{path}/versions")).json["items"]] == [2, 1]
    bad = await admin.post(f"{API}/agents", {**new, "fields": {"nonsense": 1}})
    assert bad.status == 422
    assert (await admin.get(f"{API}/agents", name="poet")).json["items"][0]["id"] == made.json["id"]
    assert (await admin.call("DELETE", path)).status == 204


async def test_the_fleet_is_shown_and_steered(hf: Holdfast, admin: Client) -> None:
    @hf.schedule("0 3 * * *", name="nightly")
    async def nightly() -> None: ...

    await hf.ensure_worker()
    (worker,) = (await admin.get(f"{API}/workers")).json["items"]
    assert (await admin.get(f"{API}/workers/{worker['id']}")).json["status"] == "active"
    assert (await admin.get(f"{API}/workers/{worker['id']}/jobs")).json == []
    assert (await admin.get(f"{API}/workers/duties")).status == 200
    (schedule,) = (await admin.get(f"{API}/schedules")).json["items"]
    assert schedule["name"] == "nightly"
    assert (await admin.post(f"{API}/schedules/nightly/pause")).json["paused"] is True
    assert (await admin.post(f"{API}/schedules/nightly/resume")).json["paused"] is False
    assert (await admin.post(f"{API}/schedules/nightly/run")).status == 201
    assert (await admin.post(f"{API}/queues/default/pause", {"reason": "tea"})).json["pause_reason"] == "tea"
    assert (await admin.post(f"{API}/queues/default/resume")).json["paused_at"] is None
    assert "default" in [queue["name"] for queue in (await admin.get(f"{API}/queues")).json["items"]]
    assert (await admin.get(f"{API}/lanes")).status == (await admin.get(f"{API}/lanes/closed")).status == 200
    assert (await admin.post(f"{API}/lanes/nothing/open")).status == 404
    assert (await admin.get(f"{API}/batches")).json["items"] == []
    assert (await admin.call("DELETE", f"{API}/schedules/nightly")).status == 204
    assert (await admin.post(f"{API}/workers/{worker['id']}/drain")).json["id"] == worker["id"]


async def test_money_and_the_system_are_shown(hf: Holdfast, admin: Client) -> None:
    put = await admin.call("PUT", f"{API}/budgets", {"cost": "20.00", "tenant": "acme", "per": "1d"})
    assert (put.json["cost"], put.json["per"]) == ("20", "1d"), put.body
    assert [each["id"] for each in (await admin.get(f"{API}/budgets")).json["items"]] == [put.json["id"]]
    assert (await admin.call("DELETE", f"{API}/budgets/{put.json['id']}")).status == 204
    (total,) = (await admin.get(f"{API}/usage")).json or [{"turns": 0}]
    assert total["turns"] == 0
    assert (await admin.get(f"{API}/usage", by=["model", "day"])).status == 200
    assert (await admin.get(f"{API}/system")).json["you"] == {"name": "ann", "role": "admin", "tenant": None}
    assert {each["level"] for each in (await admin.get(f"{API}/system/doctor")).json} >= {"ok"}
    settings = {each["name"]: each["value"] for each in (await admin.get(f"{API}/system/settings")).json}
    assert settings["lease_ttl"] == "1m"
    assert (await admin.get(f"{API}/system/tokens")).json["items"][0]["name"] == "ann"
    assert (await admin.post(f"{API}/system/prune", {"dry_run": True})).json == {"prunable": {}}
    assert (await admin.post(f"{API}/system/prune")).json == {"removed": 0, "more": False}
    audit = (await admin.get(f"{API}/system/audit")).json["items"]
    assert [(row["phase"], row["action"], row["status"]) for row in audit[:2]] == [
        ("outcome", "POST /system/prune", 200),
        ("intent", "POST /system/prune", None),
    ]
    assert (await hf.access.audit.verify()).broken is None


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/runs/nothing", None, (404, "NotFound")),
        ("GET", "/nothing", None, (404, "NotFound")),
        ("DELETE", "/runs", None, (405, "MethodNotAllowed")),
        ("GET", "/runs?limit=100000", None, (422, "UsageError")),
        ("GET", "/runs?after=%F0%9F%A6%86", None, (422, "UsageError")),
        ("GET", "/runs?state=happy", None, (422, "UsageError")),
        ("GET", "/jobs/nothing", None, (422, "UsageError")),
        ("GET", "/sessions?metadata=%5B", None, (422, "UsageError")),
        ("POST", "/runs", {"agent": "x"}, (422, "UsageError")),
        ("POST", "/runs", {"agent": "x", "prompt": "y", "nonsense": 1}, (422, "UsageError")),
        ("POST", "/runs", {"agent": "\u202e\ud800", "prompt": "y"}, (422, "BadPayload")),
        ("POST", "/jobs/cancel", {}, (422, "UsageError")),
        ("PUT", "/budgets", {"cost": "much"}, (422, "BadSetting")),
    ],
)
async def test_bad_input_is_a_problem_with_a_remedy(
    admin: Client, method: str, path: str, body: Any, expected: tuple[int, str]
) -> None:
    where, _, query = path.partition("?")
    given = dict(part.split("=") for part in query.split("&") if part)
    answer = await admin.call(method, API + where, body, query={n: unquote(v) for n, v in given.items()})
    assert (answer.status, answer.json["error"]) == expected, answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    assert all(answer.json[name] for name in ("detail", "retry", "remedy"))


async def test_a_body_that_is_not_text_is_wrong_usage(admin: Client) -> None:
    answer = await admin.call("POST", f"{API}/sessions", raw=b"\xff\xfe\x00")
    assert (answer.status, answer.json["error"], answer.json["retry"]) == (422, "BadPayload", "never"), answer.body
