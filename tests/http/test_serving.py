"""`holdfast serve`, as a person and a program meet it."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.serve import listen_on
from holdfast.errors import UsageError
from holdfast.facades.universal_agent.gateway import ExternalGateway, GatewayRequest, GatewayResult
from holdfast.http.security.binds import check_bind, read_bind
from tests.conftest import Place
from tests.support.apps import PATIENCE
from tests.support.commands import holdfast, start


@contextmanager
def serving(url: str, *options: str, cwd: Path | None = None) -> Iterator[str]:
    """A server in a process of its own; the first line that it prints."""
    command = ("-m", "holdfast", "serve", "--url", url, "--bind", "127.0.0.1:0", *options)
    process = start(*command, stdout=subprocess.PIPE, text=True, cwd=cwd)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()


def ask(url: str, **headers: str) -> tuple[int, Any, dict[str, str]]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer), dict(answer.headers)
    except urllib.error.HTTPError as problem:
        return problem.code, json.load(problem), dict(problem.headers)


def test_connections_send_at_once() -> None:
    """An answer in two pieces would wait for the first one to be acknowledged, which takes a client 40 ms."""
    with (
        listen_on(read_bind("127.0.0.1:0"), socket.AF_INET) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_server_prints_a_link_and_takes_tokens(place: Place) -> None:
    secret = holdfast("tokens", "create", "ci", "--role", "operator", "--url", place.url).lines[0]
    with serving(place.url) as line:
        base, _, link = line.partition("/login?link=")
        assert len(link) == 43
        assert ask(f"{base}/api/v1/runs")[0] == 401
        status, said, headers = ask(f"{base}/api/v1/system", Authorization=f"Bearer {secret}")
        assert (status, said["you"]["name"]) == (200, "ci")
        assert "server" not in {name.lower() for name in headers}
        assert ask(f"{base}/healthz", Host="evil.example")[0] == 421
        assert ask(f"{base}/readyz")[:2] == (200, {"ok": True})
    listed = holdfast("audit", "ls", "--url", place.url, "--json").json
    assert [(row["action"], row["phase"]) for row in listed] == [
        ("tokens create", "outcome"),
        ("tokens create", "intent"),
    ]
    assert holdfast("audit", "verify", "--url", place.url).lines == ["2 rows are as they were written"]
    (token,) = holdfast("tokens", "ls", "--url", place.url, "--json").json
    assert holdfast("tokens", "revoke", token["id"], "--url", place.url).lines == [f"token {token['id']} is revoked"]


def test_without_a_login_everybody_on_loopback_is_in_and_there_is_no_gateway(place: Place) -> None:
    with serving(place.url, "--no-login", "--read-only") as line:
        assert ask(f"{line.split()[0]}api/v1/system")[1]["you"]["name"] == "local"
        assert ask(f"{line.split()[0]}gateway/api/v1/health")[0] == 404


@pytest.mark.long
def test_streams_end_when_the_server_stops(place: Place) -> None:
    """A cut stream would raise `IncompleteRead` here."""
    with serving(place.url, "--no-login") as printed:
        stream = urllib.request.urlopen(f"{printed.split()[0]}api/v1/events", timeout=60)
        assert stream.readline() == b"retry: 1000\n"
    with stream:
        assert stream.read().endswith(b": the server stops\nretry: 1000\n\n")


def test_a_server_has_a_gateway_if_it_is_told_who_answers(place: Place) -> None:
    with serving(place.url, "--no-login", "--gateway", "support") as line:
        base = f"{line.split()[0]}gateway/api/v1"
        assert ask(f"{base}/health")[:2] == (200, {"status": "healthy"})
        assert ask(f"{base}/sessions")[:2] == (200, {"sessions": []})
        assert ask(f"{base}/sessions/nobody")[0] == 404


APP = """
from holdfast import Holdfast

hf = Holdfast("sqlite:///elsewhere.db")
hf.agent("universal_agent", model="scripted:")
"""


def test_the_documented_commands_make_a_gateway_that_plays_turns(tmp_path: Path) -> None:
    """In a new folder: a token for a database that is not there yet, and one server with its worker."""
    url = f"sqlite:///{tmp_path}/new.db"
    (tmp_path / "shop.py").write_text(APP)
    secret = holdfast("tokens", "create", "worker", "--role", "operator", "--url", url, cwd=tmp_path).lines[0]

    async def said(base: str) -> GatewayResult:
        gateway = ExternalGateway(base_url=f"{base}/gateway", token=secret)
        session = await gateway.create_session(user_id="ann")
        return await gateway.run_query(session, GatewayRequest(user_input="Hello"))

    with serving(url, "shop:hf", "--gateway", "universal_agent", cwd=tmp_path) as line:
        result = asyncio.run(said(line.partition("/login?link=")[0]))
    assert result.success
    assert "Hello" in result.response_text


def test_a_gateway_without_a_worker_says_at_once_that_nobody_serves_its_agent(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    (tmp_path / "shop.py").write_text(APP)
    secret = holdfast("tokens", "create", "worker", "--role", "operator", "--url", url, cwd=tmp_path).lines[0]

    async def status(base: str) -> dict[str, Any]:
        gateway = ExternalGateway(base_url=f"{base}/gateway", token=secret)
        session = await gateway.create_session(user_id="ann")
        async with asyncio.timeout(PATIENCE):
            async for event in gateway.execute(session, GatewayRequest(user_input="Hello")):
                if event.data.get("status") == "unserved":
                    return event.data
        raise AssertionError("the stream has ended")

    with serving(url, "shop:hf", "--gateway", "universal_agent", "--no-worker", cwd=tmp_path) as line:
        assert "no worker that lives" in asyncio.run(status(line.partition("/login?link=")[0]))["message"]


@pytest.mark.parametrize(
    ("bind", "given", "reason"),
    [
        ("0.0.0.0:80", {"login": False}, "--no-login is for loopback alone"),
        ("127.0.0.1:80", {"login": False, "protected": True}, "lets everybody in"),
        ("0.0.0.0:80", {"tokens": False, "protected": True}, "there is no token"),
        ("[2001:db8::1]:80", {}, "in the clear"),
        ("ops.example:80", {}, "in the clear"),
    ],
)
def test_a_server_that_strangers_could_reach_is_refused(bind: str, given: dict[str, bool], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        check_bind(read_bind(bind), **{"login": True, "protected": False, "tokens": True, **given})


@pytest.mark.parametrize("bind", ["127.0.0.1:80", "[::1]:80", "localhost:0", "127.9.9.9:80"])
def test_loopback_needs_a_login_only(bind: str) -> None:
    check_bind(read_bind(bind), login=True, protected=False, tokens=False)
    check_bind(read_bind(bind), login=False, protected=False, tokens=False)


@pytest.mark.parametrize("text", ["", "8000", "localhost", ":80", "localhost:http", "localhost:70000"])
def test_what_is_not_a_place_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        read_bind(text)
