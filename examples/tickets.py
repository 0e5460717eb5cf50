"""A run in the program's own transaction, with SQLAlchemy: the ticket and its run are there together, or not at all.

createdb tickets && HOLDFAST_URL=postgresql://localhost/tickets holdfast migrate
HOLDFAST_URL=postgresql://localhost/tickets python tickets.py
"""

import asyncio

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from holdfast import Holdfast, Run

hf = Holdfast()
support = hf.agent("support", model="scripted:", instructions="You answer tickets.")


class Base(DeclarativeBase):
    pass


class Ticket(Base):
    __tablename__ = "ticket"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]


class Refused(Exception):
    pass


def take(db: Session, text: str) -> Run[str]:
    ticket = Ticket(text=text)
    db.add(ticket)
    db.flush()
    run = support.enqueue_sync(text, session=f"ticket-{ticket.id}", tx=db)  # gone if this rolls back
    if "spam" in text:
        raise Refused
    return run


async def answer(run: Run[str]) -> str:
    async with hf:
        print(f"{len(await hf.runs.list())} run, {len(await hf.sessions.list())} session")
        return await run.text()


if __name__ == "__main__":
    engine = create_engine(hf.settings.url.replace("postgresql://", "postgresql+psycopg://"))
    Base.metadata.create_all(engine)
    try:
        with Session(engine) as db, db.begin():
            take(db, "Buy spam!")
    except Refused:
        print("refused: no ticket, no run")
    with Session(engine) as db, db.begin():
        accepted = take(db, "My order never came.")
    print(asyncio.run(answer(accepted)))
