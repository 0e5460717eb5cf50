"""A job in the program's own transaction: the order and its confirmation are there together, or not at all.

Run it with `python transactions.py`. On PostgreSQL `tx` is an asyncpg, psycopg, SQLAlchemy or Django connection.
"""

import asyncio

import apsw

from holdfast import Holdfast

hf = Holdfast("sqlite:///shop.db")


class OutOfStock(Exception):
    pass


@hf.job
async def confirm(number: str) -> str:
    return f"{number} is confirmed"


async def order(shop: apsw.Connection, number: str, *, left: int) -> None:
    with shop:  # begins; commits at the end, or rolls back
        shop.execute("insert into orders values (?)", [number])
        job = await confirm.options(tx=shop).enqueue(number)
        if not left:
            raise OutOfStock
    print(await job.result())


async def main() -> None:
    async with hf:  # with a worker in this process
        shop = apsw.Connection("shop.db")
        shop.set_busy_timeout(5_000)  # the worker writes to the same file; one waits for the other
        shop.execute("create table if not exists orders (number text)")
        await order(shop, "A1", left=1)
        try:
            await order(shop, "A2", left=0)
        except OutOfStock:
            print("A2 is out of stock")
        print(shop.execute("select count(*) from orders").get, "order,", len(await hf.jobs.list()), "job")
        shop.close()


if __name__ == "__main__":
    asyncio.run(main())
