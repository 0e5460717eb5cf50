"""Row security on PostgreSQL: with a WHERE forgotten, a tenant's request still sees nothing of another's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.app import core_of
from holdfast.errors import StoreUnfit, UsageError
from holdfast.http.api.seen import RequestScope
from holdfast.kernel import row_security
from holdfast.kernel.database import Bounds, bound
from holdfast.kernel.drivers import connect
from tests.http.client import Client
from tests.http.planted import ask, count_runs, plant
from tests.http.test_api import API, guide
from tests.http.test_security import ENDPOINTS, as_principal, call
from tests.support import next_release
from tests.support.apps import settings_with
from tests.support.commands import environment, holdfast
from tests.support.next_release import ADDS

ACME, EVIL = Bounds(reads=True, tenant="acme"), Bounds(reads=True, tenant="evil")
LOGIN = "holdfast_test_app"


async def turn(url: str, switch: row_security.Switch) -> None:
    hf = Holdfast(url, embedded=False)
    database = connect(url, hf.settings, core_of(hf).ports)
    await row_security.turn(switch, database, "holdfast")


@pytest.fixture
def login(postgres_url: str) -> Iterator[str]:
    """The URL of one who may use the tables and does not own them, as a worker may be set up."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"drop role if exists {LOGIN}")
        connection.execute(f"create role {LOGIN} login")
        connection.execute(f"grant usage on schema holdfast to {LOGIN}")
        connection.execute(f"grant all on all tables in schema holdfast to {LOGIN}")
        connection.execute(f"grant all on all sequences in schema holdfast to {LOGIN}")
        yield urlsplit(postgres_url)._replace(netloc=f"{LOGIN}@{urlsplit(postgres_url).netloc.split('@')[1]}").geturl()
        connection.execute(f"drop owned by {LOGIN}")
        connection.execute(f"drop role {LOGIN}")


@pytest.fixture
async def hf(postgres_url: str, login: str) -> AsyncIterator[Holdfast]:
    await turn(postgres_url, "on")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"grant holdfast_web to {LOGIN}")
    async with Holdfast(login, settings=settings_with(drain_grace="5s")) as app:
        yield app
    await turn(postgres_url, "off")


async def test_a_forgotten_condition_shows_no_foreign_row(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    async def count_all(seen: RequestScope) -> dict[str, int]:
        """It forgets whose runs it counts."""
        return {"runs": await ask(seen.hf, count_runs), "sessions": len(await seen.hf.sessions.list())}

    plant(monkeypatch, "/planted", count_all)
    agent = guide(hf)
    for tenant in ("acme", "acme", "evil"):
        await agent.run("Hello", tenant=tenant)  # by a worker that does not own the tables
    assert await ask(hf, count_runs) == 3
    seen = {}
    for whose in ("acme", "evil", "nobody", None):
        client = as_principal(hf, Principal("ann", "admin", whose))
        seen[whose] = (await client.get(f"{API}/planted")).json
    assert [each["runs"] for each in seen.values()] == [2, 1, 0, 3]
    assert [each["sessions"] for each in seen.values()] == [2, 1, 0, 3]


async def test_what_follows_a_run_or_a_session_is_hidden_with_it(hf: Holdfast) -> None:
    run = await guide(hf).enqueue("Secret of acme", tenant="acme", session="chat")
    await hf.ensure_worker()
    await run.result(timeout="60s")
    shown = {}
    for bounds in (None, ACME, EVIL):
        with bound(bounds):
            shown[bounds] = await everything(hf, run.id)
    assert shown[None] == shown[ACME]
    assert shown[None]
    assert shown[EVIL] == {}


async def everything(hf: Holdfast, run: str) -> dict[str, int]:
    """How many rows of a run each list has, asked without a tenant."""
    handle = hf.runs[run]
    try:
        now = await handle.refresh()
    except UsageError:
        return {}
    session = hf.sessions[now.session]
    return {
        "messages": len(await session.messages()),
        "events": len(await handle.events()),
        "turns": len(await handle.turns()),
        "calls": len(await handle.calls()),
        "jobs": len(await hf.jobs.list()),
    }


async def test_a_tenant_is_answered_as_without_row_security(hf: Holdfast, postgres_url: str) -> None:
    """Every list and every change of one tenant: nothing of its own is hidden, and nothing is refused."""
    agent = guide(hf)
    run = await agent.enqueue("Hello", tenant="acme", session="chat")
    await agent.run("Hello", tenant="evil", session="chat")
    await run.result()
    ann = as_principal(hf, Principal("ann", "admin", "acme"))
    secured = await answers(ann, run.id)
    await turn(postgres_url, "off")
    open_to_all = Holdfast(postgres_url, embedded=False)
    try:
        assert secured == await answers(as_principal(open_to_all, Principal("ann", "admin", "acme")), run.id)
    finally:
        await open_to_all.close()
        await turn(postgres_url, "on")


async def answers(client: Client, run: str) -> dict[str, Any]:
    found = {}
    for endpoint in ENDPOINTS:
        if endpoint.method == "GET" and endpoint.noun in ("runs", "sessions", "jobs", "agents", "inquiries", "usage"):
            if endpoint.path.endswith(("/stream", "/export", "/compare", "/values")):
                continue
            answer = await call(client, endpoint, "chat" if endpoint.noun == "sessions" else run)
            found[endpoint.name] = (answer.status, answer.body)
    return found


@pytest.mark.long
async def test_a_tenants_changes_pass(hf: Holdfast) -> None:
    guide(hf)
    await hf.ensure_worker()
    ann = as_principal(hf, Principal("ann", "admin", "acme"))
    made = await ann.post(f"{API}/sessions", {"key": "chat"})
    assert made.status == 201, made.body
    body = {"agent": "guide", "prompt": "Hello", "session": "chat"}
    started = await ann.post(f"{API}/runs", body)
    assert started.status == 201, started.body
    result = await ann.get(f"{API}/runs/{started.json['id']}/result", wait="60s")
    assert result.json["text"] == "A cat.", result.body
    for path, sent in (
        (f"/runs/{started.json['id']}/fork", {}),
        (f"/runs/{started.json['id']}/retry", None),
        ("/sessions/chat/fork", {}),
        ("/runs/cancel", {"agent": "guide"}),
    ):
        answer = await ann.post(f"{API}{path}", sent)
        assert answer.status in (200, 201, 409), (path, answer.body)
    assert (await ann.call("PATCH", f"{API}/sessions/chat", {"metadata": {"a": 1}})).status == 200
    cancelled = await ann.post(f"{API}/runs", {"agent": "guide", "prompt": "x", "session": "chat"})
    assert (await ann.post(f"{API}/runs/{cancelled.json['id']}/cancel")).status == 200


async def test_a_login_that_may_not_take_the_role_is_told_so(hf: Holdfast, postgres_url: str, login: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"revoke holdfast_web from {LOGIN}")
    with bound(ACME), pytest.raises(StoreUnfit, match="grant holdfast_web to"):
        await hf.runs.list()
    assert await hf.runs.list() == []


@pytest.mark.long
def test_it_is_turned_on_and_off_by_a_command(postgres_url: str, tmp_path: Path) -> None:
    def policies() -> set[str]:
        with psycopg.connect(postgres_url) as connection:
            return {
                row[0] for row in connection.execute("select tablename from pg_policies where policyname = 'tenants'")
            }

    on = holdfast("migrate", "--row-security", "--url", postgres_url)
    assert (on.code, "row security is on" in on.out) == (0, True), on
    assert {"run", "session", "message", "run_event", "job"} <= policies()
    later = environment(PYTHONPATH=str(next_release.build(tmp_path, version=ADDS)))
    assert "row security is on" in holdfast("migrate", "--url", postgres_url, env=later).out
    assert holdfast("migrate", "--to", str(ADDS - 1), "--url", postgres_url, env=later).code == 0
    off = holdfast("migrate", "--no-row-security", "--url", postgres_url)
    assert (off.code, policies()) == (0, set()), off
    assert "create policy" in holdfast("migrate", "--row-security", "--dump-sql", "--url", postgres_url).out


def test_it_is_for_postgresql_alone(tmp_path: Path) -> None:
    said = holdfast("migrate", "--row-security", "--url", f"sqlite:///{tmp_path}/store.db")
    assert said.code != 0
    assert "Give each tenant its own file" in said.err
