"""Bad input at every route: a problem with a remedy, never a fault of ours."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.app import core_of
from holdfast.http import web
from holdfast.http.api.routes import Endpoint
from holdfast.kernel.database import Database
from tests.http.browsing import HTML
from tests.http.client import Answer, Client
from tests.http.test_api import API, guide
from tests.http.test_security import ENDPOINTS, as_principal, call
from tests.http.test_server import serving
from tests.support.apps import PATIENCE, MakeApp, settings_with

READS = [each for each in ENDPOINTS if each.method == "GET" and not each.path.endswith(("/stream", "/events"))]


_SMUGGLED = (
    b"POST /api/v1/sessions HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n"
    b"content-type: application/json\r\n\r\n2\r\n{}\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"
)


def cursor(*place: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


CURSORS = (
    "",
    "nonsense",
    "=" * 100,
    "-1",
    cursor(),
    cursor({}, []),
    cursor(2**70),
    cursor(2**62, "x" * 2_000),
    cursor(True, None),
    cursor("\ud800"),
    base64.urlsafe_b64encode(b"[" * 3_000).decode(),
    "x" * 9_000,
)


def pages_of(endpoints: list[Endpoint]) -> Iterator[Endpoint]:
    """Those that are asked for page by page."""
    for endpoint in endpoints:
        if "page" in endpoint.function.__annotations__:
            yield endpoint


def many(hf: Holdfast) -> Client:
    """Somebody who may do everything, and ask as often as they like."""
    names = iter(range(1_000_000))
    return Client(web(hf, who=lambda _: Principal(f"ann {next(names)}", "admin"), gateway="guide"))


def is_problem(answer: Answer, *statuses: int) -> bool:
    said = answer.json if answer.headers["content-type"] == "application/problem+json" else {}
    return answer.status in statuses and all(said.get(name) for name in ("detail", "retry", "remedy"))


async def test_broken_cursors_and_huge_pages_are_wrong_usage(hf: Holdfast) -> None:
    run = await guide(hf).enqueue("Hello", session="chat")
    record = await run.refresh()
    ids = {"runs": run.id, "sessions": "chat", "agents": record.agent}
    ann = many(hf)
    tried = 0
    for endpoint in pages_of(READS):
        path = endpoint.place.replace("{id}", ids.get(endpoint.noun, "nothing"))
        for after in CURSORS:
            answer = await ann.get(path, after=after)
            assert answer.status == 200 or is_problem(answer, 404, 422), (path, after, answer.body)
        for limit in ("0", "-1", "1001", "100000000000000000000", "1e9", "NaN", "", "ten"):
            assert is_problem(await ann.get(path, limit=limit), 404, 422), (path, limit)
        tried += 1
    assert tried > 20


@pytest.mark.long
async def test_odd_methods_are_not_allowed(hf: Holdfast) -> None:
    ann = many(hf)
    places = sorted({each.place for each in ENDPOINTS} | {"/", "/login", "/readyz", "/hooks/{name}", "/openapi.json"})
    for place in places:
        path = place.replace("{id}", "x").replace("{name}", "x").replace("{queue}", "x")
        for method in ("TRACE", "PROPFIND", "get", "X" * 1_000):
            answer = await ann.call(method, path)
            assert is_problem(answer, 405), (method, path, answer.status, answer.body)
            assert answer.headers["allow"]


async def test_without_a_database_every_route_says_when_to_ask_again() -> None:
    settings = settings_with(store_patience="1ms")
    gone = Holdfast("postgresql://127.0.0.1:1/nothing", settings=settings, embedded=False)
    ann = many(gone)
    for endpoint in ENDPOINTS:
        answer = await call(ann, endpoint, "019a0000-0000-7000-8000-000000000001")
        known = {"GET /machines", "GET /system", "GET /system/settings", "GET /system/doctor"}  # which need none
        fits = answer.status == 200 if endpoint.name in known else is_problem(answer, 404, 422, 503)
        assert fits, (endpoint.name, answer.status, answer.body)
        assert answer.status != 503 or answer.headers["retry-after"], endpoint.name
    page = await Client(ann.app, headers=HTML).get("/runs")
    assert (page.status, "Service Unavailable" in page.body.decode()) == (503, True)
    assert (await ann.get("/readyz")).status == 503
    await gone.close()


async def test_a_schema_that_is_too_new_is_told_with_what_to_do(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    await guide(hf).enqueue("Hello")
    database = await core_of(hf).opened()
    stored = await database.stored_schema()
    assert stored is not None
    await _set_schema(database, stored.version, (stored.version + 100, stored.version + 100))
    try:
        ann = as_principal(make_app(embedded=False), Principal("ann", "admin"))
        for path in (f"{API}/runs", f"{API}/runs/x/stream", f"{API}/events"):
            answer = await ann.get(path)
            assert is_problem(answer, 503), (path, answer.body)
            assert answer.json["error"] == "SchemaTooNew"
            assert "pgrade" in answer.json["remedy"] + answer.json["detail"]
    finally:
        await _set_schema(database, stored.version + 100, (stored.version, stored.oldest_code))


async def _set_schema(database: Database, at: int, wanted: tuple[int, int]) -> None:
    version, oldest = wanted
    table = "holdfast.schema" if database.dialect == "postgres" else "schema"
    assert await database.script([f"update {table} set version = {version}, oldest_code = {oldest}"], at=at)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 1_000_000 + b"\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"x: yyyyyyyyyyyy\r\n" * 10_000 + b"\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500 + b"\r\n\r\n", b"400"),
        (b"\x00" * 1_000 + b"\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello", b"400"),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n", b"4"),
        (_SMUGGLED, b"400"),
        (_SMUGGLED.replace(b"content-length: 4", b"Content-Length:4"), b"400"),
        (_SMUGGLED.replace(b"chunked", b"identity"), b""),
        (_SMUGGLED.replace(b"chunked", b"gzip, chunked"), b""),
        (_SMUGGLED.replace(b"transfer-encoding:", b"transfer-encoding :"), b"400"),
    ],
    ids=[
        *("a line of 1 MB", "a header of 1 MB", "many headers", "TLS", "NULs", "two lengths", "no chunk"),
        *("both", "both again", "identity", "two codings", "a space"),
    ],
)
async def test_what_is_not_http_is_refused(hf: Holdfast, sent: bytes, status: bytes) -> None:
    async with serving(web(hf, who=lambda _: Principal("ann", "admin"))) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        try:
            async with asyncio.timeout(PATIENCE):
                heard = await reader.read()
        except ConnectionError:  # it was closed before all of it was sent
            return
        finally:
            writer.close()
        head, _, body = heard.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 " + status), heard[:500]
        assert json.loads(body)["remedy"], heard[:500]
