"""A nightly fan-out with SQLAlchemy: customers are marked as billed, and their jobs enqueued, in one transaction.

createdb shop && HOLDFAST_URL=postgresql://localhost/shop holdfast migrate
HOLDFAST_URL=postgresql://localhost/shop python nightly.py

If `nightly` fails or its worker is killed, no customer is marked and no job is there: the next attempt bills all.
"""

import asyncio
from decimal import Decimal

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from holdfast import Holdfast, JobContext, Retry

hf = Holdfast()


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customer"
    id: Mapped[int] = mapped_column(primary_key=True)
    owes: Mapped[Decimal]
    billed: Mapped[bool] = mapped_column(default=False)


def engine() -> AsyncEngine:
    return create_async_engine(hf.settings.url.replace("postgresql://", "postgresql+asyncpg://"))


async def prepare(owed: list[int]) -> None:
    """Make the table, with a customer for each amount."""
    shop = engine()
    async with shop.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with AsyncSession(shop) as db, db.begin():
        db.add_all([Customer(owes=Decimal(amount)) for amount in owed])
    await shop.dispose()


async def charge(amount: Decimal, key: str) -> str:
    """Ask a payment provider, who knows by the key that it is asked again."""
    return f"{amount} euros"


@hf.job(retry=Retry(attempts=5), timeout="1m")
async def bill(ctx: JobContext, customer: int, owes: Decimal) -> str:
    charged = await ctx.step("charge", charge, owes, ctx.idempotency_key)
    return f"customer {customer}: {charged}"


@hf.schedule("0 3 * * *", timezone="Europe/Athens")
async def nightly() -> list[str]:
    """Bill whoever has not been billed; returns the ids of the jobs."""
    shop = engine()
    try:
        async with AsyncSession(shop) as db, db.begin():
            chosen = select(Customer).where(Customer.billed.is_(False)).order_by(Customer.id).with_for_update()
            due = (await db.scalars(chosen)).all()
            for customer in due:
                customer.billed = True
            jobs = await bill.options(tx=db).enqueue_many((customer.id, customer.owes) for customer in due)
    finally:
        await shop.dispose()
    return [job.id for job in jobs]


async def main() -> None:
    await prepare([30, 12])
    async with hf:  # with a worker in this process
        for id in await nightly.run():
            print(await hf.jobs[id].result())
        print(len(await nightly.run()), "customers are left")


if __name__ == "__main__":
    asyncio.run(main())
