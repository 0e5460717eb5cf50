"""Databases of both kinds, gateways on them, and an HTTP server on loopback."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from bench.redis import find_redis
from holdfast import Holdfast
from holdfast.facades.universal_agent.gateway import ExternalGateway, Gateway, InProcessGateway
from holdfast.facades.universal_agent.runtime_db import AGENT, RuntimeDb, connect_runtime_db
from holdfast.http import web
from tests.facades.cutting import Cutting
from tests.http.conftest import Serve, serve
from tests.support.apps import MakeApp
from tests.testing.conftest import databases, labs
from tests.testing.conftest import emptied as server
from tests.workers.conftest import hf, live_database, make_app, place

__all__ = ["databases", "hf", "labs", "live_database", "make_app", "place", "serve", "server"]


class Doors(NamedTuple):
    """One of the two gateways, and what is behind it."""

    gateway: Gateway
    app: Holdfast
    inside: InProcessGateway
    served: Cutting | None


@pytest.fixture
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs that name files without a folder find them in the test's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", os.fspath(tmp_path))
    return tmp_path


@pytest.fixture
def answering(make_app: MakeApp) -> Holdfast:
    """An app whose agent says what it was told, after one call of its tool if it has one."""
    app = make_app(poll_interval="100ms")
    app.agent(AGENT, model="scripted:")
    return app


@pytest.fixture(params=["in_process", "external"])
async def doors(
    request: pytest.FixtureRequest, answering: Holdfast, tmp_path: Path, serve: Serve
) -> AsyncIterator[Doors]:
    inside = InProcessGateway(answering, workspace_base=tmp_path / "workspaces")
    if request.param == "in_process":
        yield Doors(inside, answering, inside, None)
    else:
        served = Cutting(web(answering, gateway=inside))
        token = await answering.access.tokens.create("a client", role="operator")
        base = f"http://127.0.0.1:{await serve(served)}/gateway"
        yield Doors(ExternalGateway(base, token.secret), answering, inside, served)
    await asyncio.to_thread(answering.sync.close)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis server of this test run, on loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("redis")
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    server = subprocess.Popen(["redis-server", *options], executable=find_redis(), stdout=subprocess.DEVNULL)
    client = Redis(port=port, retry=Retry(ConstantBackoff(0.05), 400), retry_on_error=[RedisConnectionError])
    client.ping()
    client.close()
    yield f"redis://127.0.0.1:{port}/0"
    server.terminate()
    server.wait()


@pytest.fixture
def redis_url(redis_server: str) -> str:
    """That server, empty."""
    with Redis.from_url(redis_server) as client:
        client.flushall()
    return redis_server


@pytest.fixture
def conn(url: str) -> Iterator[RuntimeDb]:
    with connect_runtime_db(url) as opened:
        yield opened
