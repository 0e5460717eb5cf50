"""What serves and starts before its store does: it waits, and says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.cli.introduction import ProcessNumber
from holdfast.cli.worker import serve
from holdfast.errors import StoreUnavailable
from holdfast.resp.client import shared
from holdfast.resp.options import RespOptions
from holdfast.resp.server import RespServer
from holdfast.workers.role import Role
from tests.support.apps import eventually, settings_with
from tests.support.proxy import Proxy

AWAY, BACK = "the store is away", "the store is back"


@pytest.fixture
async def late(postgres_url: str) -> AsyncIterator[Proxy]:
    """A server that refuses every connection until it is told otherwise."""
    async with Proxy(postgres_url) as proxy:
        proxy.refusing = True
        yield proxy


def app_at(proxy: Proxy, patience: str, *, embedded: bool) -> Holdfast:
    app = Holdfast(proxy.url, settings=settings_with(store_patience=patience), embedded=embedded)

    @app.job(name="work")
    async def work() -> None: ...

    return app


async def works(app: Holdfast) -> None:
    await serve(app, Role(until="empty"), ProcessNumber(), None)


async def embeds(app: Holdfast) -> None:
    async with app:
        pass


async def speaks_redis(app: Holdfast) -> None:
    async with AsyncExitStack() as stack:
        stack.push_async_callback(app.close)
        await stack.enter_async_context(
            RespServer(core_of(app), RespOptions(bind="127.0.0.1:0", shared=shared("a key of all workers")))
        )


Starting = Callable[[Holdfast], Awaitable[None]]
STARTS = pytest.mark.parametrize("start", [works, embeds, speaks_redis], ids=lambda start: start.__name__)


@pytest.mark.long
@STARTS
async def test_who_starts_before_the_store_waits_and_says_so_once(
    late: Proxy, start: Starting, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_at(late, "100s", embedded=start is embeds)
    with caplog.at_level(logging.WARNING, "holdfast"):
        starting = asyncio.ensure_future(start(app))

        async def has_said_so() -> bool:
            return starting.done() or AWAY in caplog.text

        await eventually(has_said_so)
        assert not starting.done()
        late.refusing = False
        await starting
    assert caplog.text.count(AWAY) == 1
    assert caplog.text.count(BACK) == 1


@STARTS
async def test_a_store_that_does_not_come_is_an_error(late: Proxy, start: Starting) -> None:
    app = app_at(late, "200ms", embedded=start is embeds)
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await start(app)
    await app.close()
