"""What a program reads when it is refused: the right status, and a remedy that it can follow."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.http import web
from tests.http.client import Client
from tests.http.test_api import API, guide
from tests.http.test_bad_input import is_problem, many
from tests.http.test_security import as_principal


@pytest.fixture
def ann(hf: Holdfast) -> Client:
    return many(hf)


async def test_who_is_not_known_reads_how_to_say_who_they_are(hf: Holdfast) -> None:
    answer = await Client(web(hf)).get(f"{API}/runs")
    assert (answer.status, "redacted" in answer.json["remedy"]) == (401, False)
    assert "Authorization" in answer.json["remedy"]
    assert "Bearer" in answer.json["remedy"]


async def test_a_wrong_method_is_told_all_right_ones(ann: Client) -> None:
    allowed = {
        f"{API}/runs": "GET, POST",
        f"{API}/sessions/x": "DELETE, GET, PATCH",
        f"{API}/runs/x/cancel": "POST",
        "/runs/x": "GET",
        "/healthz": "GET, HEAD",
    }
    for path, methods in allowed.items():
        answer = await ann.call("TRACE", path)
        assert (answer.status, answer.headers["allow"]) == (405, methods), path


@pytest.mark.parametrize("since", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"])
async def test_times_at_the_ends_of_the_calendar_are_times(ann: Client, since: str) -> None:
    for path in ("jobs", "runs", "calls", "usage", "system/stats", "system/failures"):
        answer = await ann.get(f"{API}/{path}", since=since)
        assert answer.status == 200 or is_problem(answer, 422), (path, answer.body)


async def test_a_key_that_brought_another_request_is_never_free_for_this_one(hf: Holdfast, ann: Client) -> None:
    guide(hf)
    wish = {"agent": "guide", "prompt": "x"}
    assert (await ann.post(f"{API}/runs", wish, idempotency_key="k")).status == 201
    answer = await ann.post(f"{API}/runs", {**wish, "prompt": "y"}, idempotency_key="k")
    assert (answer.status, answer.json["retry"]) == (409, "never")
    assert answer.json["remedy"] == "Use another key for other work."


async def test_wrong_limits_are_a_mistake_of_the_caller(hf: Holdfast, ann: Client) -> None:
    guide(hf)
    for limits in ({"turns": -5}, {"nonsense": 1}, {"turns": "many"}):
        answer = await ann.post(f"{API}/runs", {"agent": "guide", "prompt": "x", "limits": limits})
        assert is_problem(answer, 422), answer.body
        assert "release" not in answer.json["detail"]
    session = await hf.session("s")
    answer = await ann.post(f"{API}/sessions/{session.id}/compact", {"config": {"nonsense": 1}})
    assert is_problem(answer, 422), answer.body


async def test_a_broken_cursor_does_not_begin_a_stream(ann: Client) -> None:
    for wish in ({"after": "zzz"}, {"after": "1.2"}):
        assert is_problem(await ann.get(f"{API}/events", **wish), 422)
    answer = await ann.call("GET", f"{API}/events", headers={"last-event-id": "1e9"})
    assert is_problem(answer, 422)


async def test_all_jobs_are_cancelled_only_if_that_is_said(hf: Holdfast) -> None:
    for tenant in ("acme", "acme", "evil"):
        await hf.enqueue("paint", {}, tenant=tenant)
    ann = as_principal(hf, Principal("ann", "operator"))
    refused = await ann.post(f"{API}/jobs/cancel", {})
    assert is_problem(refused, 422)
    acme = as_principal(hf, Principal("bob", "operator", "acme"))
    assert (await acme.post(f"{API}/jobs/cancel", {"all": True, "dry_run": True})).json["matched"] == 2
    assert (await ann.post(f"{API}/jobs/cancel", {"all": True})).json["changed"] == 3


async def test_a_remedy_is_a_sentence(hf: Holdfast) -> None:
    guide(hf)
    ann = Client(web(hf, who=lambda _: Principal("ann", "admin"), gateway="guide"))
    cases = {
        "/gateway/api/v1/sessions/nope": "create_session makes one",
        f"{API}/system/stats?since=999999999d": "Correct the call",
        f"{API}/runs?since=2026-01-01T00:00:00": "Correct the call",
    }
    for path, remedy in cases.items():
        place, _, query = path.partition("?")
        answer = await ann.get(place, **dict([query.split("=")] if query else []))
        assert remedy in answer.json["remedy"], answer.body
        assert "Nope" not in answer.json["remedy"]


# What is done twice is as if it was done once, or says what it did by a digest or a cursor.
REPEATABLE = {"cancel", "retry", "interrupt", "restore", "preserve", "approve", "deny", "answer", "pause", "resume"} | {
    *("open", "drain", "prune"),
}


async def test_every_request_that_creates_something_takes_a_key(ann: Client) -> None:
    paths = (await ann.get("/openapi.json")).json["paths"]
    keyed = {
        path
        for path, methods in paths.items()
        if "Idempotency-Key" in [each["name"] for each in methods.get("post", {}).get("parameters", [])]
    }
    posted = {path for path, methods in paths.items() if "post" in methods}
    assert {path for path in posted - keyed if path.rpartition("/")[2] not in REPEATABLE} == set()
    assert keyed >= {f"{API}/runs", f"{API}/runs/{{id}}/retry", f"{API}/runs/{{id}}/steer", f"{API}/jobs/{{id}}/retry"}
    for path in ("events", "runs/{id}/stream", "sessions/{id}/stream"):
        assert "Last-Event-ID" in [each["name"] for each in paths[f"{API}/{path}"]["get"]["parameters"]]


async def test_a_message_that_is_sent_again_is_said_once(hf: Holdfast, ann: Client) -> None:
    run = await guide(hf).enqueue("Hello")
    sent = [await ann.post(f"{API}/runs/{run.id}/steer", {"prompt": "Faster"}, idempotency_key="k") for _ in range(2)]
    assert [each.status for each in sent] == [200, 200], sent[0].body
    assert sent[1].headers["idempotency-replayed"] == "true"
