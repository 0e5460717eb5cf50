"""Who may do what through the web: every route for every role, other tenants, browsers, caps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from holdfast import Holdfast
from holdfast.access.principals import ROLES, Principal, Role
from holdfast.facades.universal_agent.gateway import InProcessGateway
from holdfast.http import web
from holdfast.http.api.routes import Endpoint
from holdfast.http.app import NOUNS
from holdfast.http.gateway import STREAM
from holdfast.http.security import checks
from holdfast.http.security.checks import is_forged
from holdfast.http.security.roles import TABLE
from tests.http.client import Answer, Client
from tests.http.conftest import Serve
from tests.http.test_api import API, guide
from tests.support.apps import settings_with

ENDPOINTS = [endpoint for noun in NOUNS for endpoint in noun.endpoints]
SESSIONS_AND_RUNS = [each for each in ENDPOINTS if each.noun in ("runs", "sessions") and "{id}" in each.path]


def as_principal(hf: Holdfast, principal: Principal | None, **options: Any) -> Client:
    return Client(web(hf, who=lambda _: principal, gateway="guide", **options))


def test_every_route_has_a_rule_and_every_rule_a_route() -> None:
    assert {endpoint.name for endpoint in [*ENDPOINTS, STREAM]} == set(TABLE)


async def test_every_route_asks_who_asks(hf: Holdfast) -> None:
    nobody = Client(web(hf, gateway="guide"))
    for number, endpoint in enumerate(ENDPOINTS):
        nobody.address = f"10.0.0.{number}"  # who asks too often without a token is sent away
        answer = await call(nobody, endpoint, "nothing")
        assert (answer.status, answer.json["error"]) == (401, "Unauthorized"), endpoint.name
    nobody.token = "hft_nonsense"
    assert (await nobody.get("/openapi.json")).status == 401
    nobody.token = ""
    assert (await nobody.get("/openapi.json")).status == (await nobody.get("/")).status == 401
    assert (await nobody.get("/healthz")).json == (await nobody.get("/readyz")).json == {"ok": True}


@asynccontextmanager
async def confined(hf: Holdfast, folder: Path) -> AsyncIterator[InProcessGateway]:
    gateway = InProcessGateway(hf, agent="guide", workspace_base=folder, confined=True)
    try:
        yield gateway
    finally:
        await gateway.close()


async def test_every_route_is_for_its_role(hf: Holdfast, tmp_path: Path) -> None:
    """A route that is allowed may find nothing or want a body: it is not forbidden."""
    asking = iter([Principal(f"{role} {n}", role) for role in ROLES for n in range(len(ENDPOINTS))])
    async with confined(hf, tmp_path) as gateway:
        client = Client(web(hf, who=lambda _: next(asking), gateway=gateway))
        for role, endpoint in product(ROLES, ENDPOINTS):
            if endpoint.path == "/events":
                continue  # a stream that does not end
            answer = await call(client, endpoint, "nothing")
            allowed = Principal("ann", role).may(TABLE[endpoint.name].role)
            assert (answer.status != 403) == allowed, (endpoint.name, role, answer.body)
            assert answer.status < 500, (endpoint.name, role, answer.body)


async def test_what_belongs_to_no_tenant_is_not_there_for_one(hf: Holdfast) -> None:
    client = as_principal(hf, Principal("ann", "admin", "acme"))
    for endpoint in ENDPOINTS:
        if TABLE[endpoint.name].fleet:
            assert (await call(client, endpoint, "default")).status == 404, endpoint.name


async def test_another_tenants_ids_are_not_there(hf: Holdfast) -> None:
    run = await guide(hf).enqueue("Secret of acme", tenant="acme", session="chat")
    session = (await hf.runs.get(run.id)).session
    for client in (
        as_principal(hf, Principal("eve", "admin", "evil")),
        as_principal(hf, Principal("eve", "admin"), tenant="evil"),
    ):
        for endpoint in SESSIONS_AND_RUNS:
            answer = await call(client, endpoint, run.id if endpoint.noun == "runs" else session)
            assert answer.status == 404, (endpoint.name, answer.body)
            assert b"Secret" not in answer.body
        for path in (f"/jobs/{run.id}", f"/jobs/{run.id}/why", f"/jobs/{run.id}/attempts"):
            assert (await client.get(API + path)).status == 404
        assert (await client.post(f"{API}/jobs/{run.id}/cancel")).status == 404
        for path in ("/runs", "/sessions", "/jobs", "/inquiries", "/agents"):
            assert (await client.get(API + path)).json["items"] == []
            assert (await client.get(API + path, tenant="acme")).status == 404
        assert (await client.get(f"{API}/runs", session=session)).status == 404
        assert (await client.get(f"{API}/runs/compare", a=run.id, b=run.id)).status == 404
    own = as_principal(hf, Principal("ann", "viewer", "acme"))
    assert (await own.get(f"{API}/runs")).json["items"][0]["id"] == run.id
    assert (await as_principal(hf, Principal("eve", "admin", "evil"), tenant="acme").get(f"{API}/runs")).status == 404


async def test_pinned_metadata_bind_every_session(hf: Holdfast) -> None:
    agent = guide(hf)
    await hf.session("bobs", metadata={"user": "bob"})
    await hf.session("eves", metadata={"user": "eve"})
    bobs, eves = await agent.enqueue("Hi", session="bobs"), await agent.enqueue("Secret", session="eves")
    bob = as_principal(hf, Principal("bob", "operator"), metadata={"user": "bob"})
    assert [run["id"] for run in (await bob.get(f"{API}/runs")).json["items"]] == [bobs.id]
    assert [each["key"] for each in (await bob.get(f"{API}/sessions")).json["items"]] == ["bobs"]
    assert (await bob.get(f"{API}/runs/{bobs.id}")).status == 200
    for endpoint in SESSIONS_AND_RUNS:
        answer = await call(bob, endpoint, eves.id if endpoint.noun == "runs" else "eves")
        assert answer.status == 404, (endpoint.name, answer.body)
    assert (await bob.post(f"{API}/runs", {"agent": "guide", "prompt": "x", "session": "eves"})).status == 404
    assert (await bob.call("PATCH", f"{API}/sessions/bobs", {"metadata": {"user": "eve"}})).status == 422
    made = await bob.post(f"{API}/sessions", {"metadata": {"topic": "cats"}})
    assert made.json["metadata"] == {"topic": "cats", "user": "bob"}
    started = await bob.post(f"{API}/runs", {"agent": "guide", "prompt": "x"})
    assert (await hf.sessions.get(started.json["session"])).metadata == {"user": "bob"}
    assert (await bob.post(f"{API}/runs/cancel", {})).status == 404
    assert (await bob.get(f"{API}/sessions/values", key="user")).status == 422
    for endpoint in ENDPOINTS:
        if TABLE[endpoint.name].fleet or not TABLE[endpoint.name].sessions:
            assert (await call(bob, endpoint, bobs.id)).status in (403, 404), endpoint.name


async def test_a_tenant_uses_the_agents_of_nobody(hf: Holdfast) -> None:
    guide(hf)
    ann = as_principal(hf, Principal("ann", "operator", "acme"))
    started = await ann.post(f"{API}/runs", {"agent": "guide", "prompt": "x"})
    assert (started.status, started.json["tenant"]) == (201, "acme"), started.body


async def test_read_only_refuses_every_change(hf: Holdfast) -> None:
    client = as_principal(hf, Principal("ann", "admin"), read_only=True)
    for endpoint in ENDPOINTS:
        if endpoint.method != "GET":
            assert (await call(client, endpoint, "nothing")).status == 403, endpoint.name
    assert (await client.get(f"{API}/runs")).status == 200
    assert await hf.access.audit.list() == []


async def test_viewers_see_no_secrets_in_arguments(hf: Holdfast) -> None:
    @hf.job(name="send")
    async def send(to: str, password: str) -> None: ...

    job = await send.enqueue("bob", password="hunter2")
    seen = {}
    for role in ROLES:
        seen[role] = (await as_principal(hf, Principal("ann", role)).get(f"{API}/jobs/{job.id}")).json["payload"]
    assert seen["viewer"]["to"] == "bob"
    assert "hunter2" not in str(seen["viewer"])
    assert seen["operator"] == seen["admin"] == {"to": "bob", "password": "hunter2"}


@pytest.mark.parametrize(
    ("headers", "bearer", "forged"),
    [
        ({}, False, False),
        ({"cookie": "a=b"}, False, True),
        ({"cookie": "a=b"}, True, True),
        ({"sec-fetch-site": "same-origin", "cookie": "a=b"}, False, False),
        ({"sec-fetch-site": "cross-site"}, False, True),
        ({"sec-fetch-site": "cross-site"}, True, False),
        ({"sec-fetch-site": "same-site"}, False, True),
        ({"sec-fetch-site": "none"}, False, True),
        ({"origin": "http://ops.example:8000", "host": "ops.example:8000"}, False, False),
        ({"origin": "http://evil.example", "host": "ops.example"}, False, True),
        ({"origin": "null", "host": "ops.example"}, False, True),
    ],
)
def test_what_another_site_may_have_sent_is_known(headers: dict[str, str], bearer: bool, forged: bool) -> None:
    assert is_forged(headers, bearer=bearer) == forged


async def test_a_browser_logs_in_with_a_token_or_a_link(hf: Holdfast) -> None:
    made = await hf.access.tokens.create("ann", role="operator")
    app = web(hf)
    same = {"sec-fetch-site": "same-origin"}
    browser = Client(app, root="/ops")
    assert (await browser.call("POST", "/login", {"token": "hft_wrong"})).status == 401
    forged = await browser.call("POST", "/login", {"token": made.secret}, headers={"origin": "http://evil"})
    assert forged.status == 403
    logged_in = await browser.call("POST", "/login", {"token": made.secret}, headers=same)
    cookie = logged_in.headers["set-cookie"]
    assert cookie.startswith("__Host-holdfast-")
    assert all(part in cookie for part in ("HttpOnly", "Secure", "Path=/", "SameSite=lax"))
    browser.headers = {"cookie": cookie.partition(";")[0]}
    assert (await browser.get(f"{API}/system")).json["you"]["name"] == "ann"
    assert (await Client(app, root="/other", headers=browser.headers).get(f"{API}/system")).status == 401
    assert (await browser.post(f"{API}/sessions", {})).status == 403
    assert (await browser.call("POST", f"{API}/sessions", {}, headers=same)).status == 201
    await hf.access.tokens.revoke(made.id)
    assert (await browser.get(f"{API}/system")).status == 401

    link = await hf.access.logins.link(Principal("bob", "admin"))
    followed = await Client(app, root="/ops").get("/login", link=link)
    assert (followed.status, followed.headers["location"]) == (303, "/ops/")
    browser.headers = {"cookie": followed.headers["set-cookie"].partition(";")[0]}
    assert (await browser.get("/")).json["you"] == "bob"
    assert (await Client(app).get("/login", link=link)).status == 401
    assert (await browser.call("POST", "/logout", headers=same)).status == 204
    assert (await browser.get("/")).status == 401


async def test_a_right_token_or_link_comes_in_however_many_wrong_ones_its_address_has_shown(hf: Holdfast) -> None:
    """A proxy is one address for everybody behind it."""
    made, link = await hf.access.tokens.create("ann"), await hf.access.logins.link(Principal("bob", "admin"))
    client, same = Client(web(hf)), {"sec-fetch-site": "same-origin"}
    for _ in range(12):
        await client.get(f"{API}/runs")
    wrong = [
        await client.get(f"{API}/runs"),
        await client.get("/login", link="wrong"),
        await client.call("POST", "/login", {"token": "hft_wrong"}, headers=same),
    ]
    assert {answer.status for answer in wrong} == {429}
    assert (await client.call("POST", "/login", {"token": made.secret}, headers=same)).status == 204
    assert (await client.get("/login", link=link)).status == 303
    shown = {"authorization": f"Bearer {made.secret}"}
    assert (await client.call("GET", f"{API}/system", headers=shown)).status == 200


async def test_it_is_mounted_under_any_path_and_needs_no_lifespan(hf: Holdfast) -> None:
    made = await hf.access.tokens.create("ann")
    host = Starlette(routes=[Mount("/a/b", web(hf))])
    client = Client(host, made.secret)
    assert (await client.get(f"/a/b{API}/runs")).json["items"] == []
    described = (await client.get("/a/b/openapi.json")).json
    assert f"{API}/runs/{{id}}" in described["paths"]
    assert (await client.get(f"{API}/runs")).status == 404


async def test_two_apps_of_a_process_know_other_people(hf: Holdfast) -> None:
    """They share the objects that FastAPI makes of their routes."""
    await guide(hf).enqueue("Hello")
    inner = web(hf, who=lambda _: Principal("bob", "viewer"), read_only=True)
    host = Starlette(routes=[Mount("/bobs", inner), Mount("/", web(hf, who=lambda _: Principal("ann", "admin")))])
    client = Client(host)
    for path, name, status in (("", "ann", 200), ("/bobs", "bob", 403), ("", "ann", 200)):
        assert (await client.get(f"{path}{API}/system")).json["you"]["name"] == name
        assert (await client.post(f"{path}{API}/queues/default/pause", {"reason": "lunch"})).status == status
        page = await client.call("GET", f"{path}/queues", headers={"accept": "text/html"})
        assert f">{name} · " in page.body.decode()


async def test_only_named_hosts_are_answered(hf: Holdfast) -> None:
    client = as_principal(hf, Principal("ann"), hosts=["ops.example"])
    assert (await client.get(f"{API}/runs")).status == 421
    client.headers = {"host": "OPS.example:8000"}
    assert (await client.get(f"{API}/runs")).status == 200


async def test_every_answer_tells_browsers_what_not_to_do(hf: Holdfast) -> None:
    client = as_principal(hf, None)
    for path in ("/", "/healthz", f"{API}/runs", "/nothing"):
        headers = (await client.get(path)).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; base-uri 'none'")
        assert headers["x-content-type-options"] == "nosniff"


async def test_bodies_headers_and_rates_have_caps(hf: Holdfast) -> None:
    client = as_principal(hf, Principal("ann", "admin"))
    large = b'"' + b"x" * checks.BODY + b'"'
    assert (await client.call("POST", f"{API}/runs", raw=large)).status == 413
    small = {"content-length": "10"}
    assert (await client.call("POST", f"{API}/runs", raw=large, headers=small)).status == 413
    assert (await client.call("GET", f"{API}/runs", headers={"x-long": "x" * checks.HEADERS})).status == 431
    answers = [await client.get(f"{API}/system") for _ in range(300)]
    limited = [answer for answer in answers if answer.status == 429]
    assert limited
    assert limited[0].headers["retry-after"] == "1"
    nobody = as_principal(hf, None)
    assert [(await nobody.get(f"{API}/system")).status for _ in range(12)][-1] == 429


async def test_a_body_that_drips_is_not_waited_for(hf: Holdfast, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "BODY_SECONDS", 0.2)
    port = await serve(web(hf, who=lambda _: Principal("ann", "admin")))
    head = b"POST /api/v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"
    dripping = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
    for _, writer in dripping:
        writer.write(head)
    for reader, writer in dripping:
        assert b" 408 " in await reader.readline()
        writer.close()
    assert await hf.sessions.list() == []


async def test_the_host_app_may_say_who_asks_asynchronously(hf: Holdfast) -> None:
    async def who(request: Request) -> Principal | None:
        name = request.headers.get("x-user")
        return None if name is None else Principal(name, "viewer")

    client = Client(web(hf, who=who))
    assert (await client.get(f"{API}/system")).status == 401
    client.headers = {"x-user": "bob"}
    assert (await client.get(f"{API}/system")).json["you"]["name"] == "bob"


@pytest.mark.parametrize("role", ROLES)
async def test_scopes_are_held(hf: Holdfast, role: Role) -> None:
    metrics = as_principal(hf, Principal("prometheus", role, scopes=frozenset({"metrics"})))
    assert (await metrics.get(f"{API}/runs")).status == 403
    scale = as_principal(hf, Principal("keda", role, scopes=frozenset({"scale"})))
    assert (await scale.get(f"{API}/scale/default")).status == 200
    assert (await scale.get(f"{API}/queues")).status == 403


async def test_a_database_that_is_not_there_is_503() -> None:
    settings = settings_with(store_patience="10ms")
    gone = Holdfast("postgresql://127.0.0.1:1/nothing", settings=settings, embedded=False)
    client = as_principal(gone, Principal("ann", "admin"))
    answer = await client.get(f"{API}/runs")
    assert (answer.status, answer.json["retry"], answer.headers["retry-after"]) == (503, "later", "5"), answer.body
    assert (await client.get("/readyz")).status == 503
    await gone.close()


async def call(client: Client, endpoint: Endpoint, id: str) -> Answer:
    path = endpoint.place
    for name in ("{id}", "{name}", "{queue}"):
        path = path.replace(name, id)
    body = None if endpoint.method == "GET" else body_of(endpoint)
    return await client.call(endpoint.method, path, body, query=QUERIES.get(endpoint.path))


QUERIES = {"/runs/compare": {"a": "x", "b": "y"}, "/sessions/values": {"key": "k"}}


def body_of(endpoint: Endpoint) -> Any:
    """What each route needs at least."""
    last = endpoint.path.rpartition("/")[2]
    if endpoint.noun == "gateway":
        return {"user_id": "ann"} if last == "sessions" else {"input_id": "i"}
    needs: dict[str, Any] = {
        "runs": {"agent": "guide", "prompt": "x"},
        "send": {"agent": "guide", "prompt": "x"},
        "steer": {"prompt": "x"},
        "preserve": {"message": "m"},
        "approve": {"digest": "d"},
        "deny": {"digest": "d"},
        "answer": {"digest": "d", "answer": 1},
        "agents": {"name": "poet", "model": "scripted:guide"},
        "budgets": {"cost": "1.00"},
        "executions": {"machine": "nothing"},
        "plans": {"plan_id": "p", "tasks": [{"task_number": 1, "command": "true"}]},
        "actions": {"plan": "nothing", "inputs": [1]},
        "sessions": {},
        "retry": {"dry_run": True} if endpoint.path in ("/runs/retry", "/jobs/retry") else None,
    }
    if endpoint.path in ("/runs/cancel", "/jobs/cancel"):
        return {"dry_run": True, "agent": "guide"} if endpoint.noun == "runs" else {"dry_run": True, "queue": "q"}
    return {} if endpoint.method == "PATCH" else needs.get(last)


def names() -> Iterator[str]:
    return (endpoint.function.__name__ for endpoint in ENDPOINTS)


def test_routes_have_names_and_say_what_they_do() -> None:
    assert len(set(names())) == len(ENDPOINTS)
    assert [endpoint.name for endpoint in ENDPOINTS if not endpoint.function.__doc__] == []
