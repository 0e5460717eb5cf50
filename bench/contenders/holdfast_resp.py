"""Holdfast's Redis-protocol gateway, as a server of its own."""

from __future__ import annotations

import asyncio

from bench.contenders.list_client import KEY
from bench.contenders.protocol import Order, main, say
from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.resp.client import shared
from holdfast.resp.options import RespOptions
from holdfast.resp.server import RespServer
from holdfast.settings import Settings

hf = Holdfast(embedded=False, settings=Settings())


async def prepare(order: Order) -> None:
    hf.settings = hf.settings.override({"url": order.url})
    await hf.migrate()


async def serve(order: Order) -> None:
    """Until this process is ended."""
    hf.settings = hf.settings.override({"url": order.url})
    options = RespOptions("127.0.0.1:0", shared=shared(KEY))
    async with hf, RespServer(core_of(hf), options) as server:
        say("ready", port=server.port)
        await asyncio.Event().wait()


if __name__ == "__main__":
    main({"prepare": prepare, "serve": serve})
