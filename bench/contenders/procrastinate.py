"""Procrastinate: psycopg 3, its own worker."""

from __future__ import annotations

from procrastinate import App, PsycopgConnector

from bench.contenders.protocol import Order, Ran, async_gate, main, recorder, send

ran: Ran = int


def make_app(url: str) -> App:
    app = App(connector=PsycopgConnector(conninfo=url))

    @app.task(name="noop")
    async def noop(n: int) -> None:
        ran(n)

    return app


async def prepare(order: Order) -> None:
    async with make_app(order.url).open_async() as app:
        await app.schema_manager.apply_schema_async()


async def enqueue(order: Order) -> None:
    async with make_app(order.url).open_async() as app:
        task = app.configure_task("noop")

        async def insert(numbers: list[int]) -> None:
            if order.chunk == 1:
                await task.defer_async(n=numbers[0])
            else:
                await task.batch_defer_async(*({"n": n} for n in numbers))

        await send(order, insert)


async def work(order: Order) -> None:
    global ran  # noqa: PLW0603  one task, one worker, one process
    ran = recorder(order)
    async with make_app(order.url).open_async() as app:
        await async_gate()
        await app.run_worker_async(concurrency=order.settings["concurrency"], install_signal_handlers=False)


if __name__ == "__main__":
    main({"prepare": prepare, "enqueue": enqueue, "fill": enqueue, "work": work})
