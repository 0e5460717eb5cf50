"""Sessions as a program sees them: conversations, whose runs come one after the other."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from holdfast.agents import reading
from holdfast.agents.contents import Prompt
from holdfast.agents.creating import SessionWish, open_session
from holdfast.agents.reaching import App, Reaching
from holdfast.agents.reading import MessageView
from holdfast.agents.records import RunRow, SessionRow
from holdfast.agents.results import usage_of
from holdfast.errors import UsageError
from holdfast.kernel import encoding
from holdfast.results import Usage
from holdfast.transactions import Intake

if TYPE_CHECKING:
    from holdfast.agents.handles import Agent, Run

T = TypeVar("T")

During = Literal["queue", "reject"]


class Session(Reaching):
    """A conversation: its runs come one after the other.

    `hf.session(key)` is a handle; `await` it to have the session made and its id known, or just use it.
    """

    def __init__(
        self,
        app: App,
        id: str,
        *,
        key: str | None = None,
        tenant: str | None = "",
        wish: SessionWish | None = None,
        tx: object | None = None,
    ) -> None:
        self._app = app
        self.id = id
        self.key = key
        self.tenant = tenant  # None: any
        self._wish = wish  # to be made, or found by its key, at first use
        self._tx = tx  # for the first use
        self._opened = False

    def __repr__(self) -> str:
        return f"Session({self.key or self.id!r})"

    def __await__(self) -> Generator[Any, None, Session]:
        return self.open(self._app.intake(self._tx), lasting=self._tx is None).__await__()

    async def open(self, intake: Intake, *, lasting: bool) -> Session:
        """See that the session is there, as part of what is taken in.

        What does not last, being part of a transaction that may be rolled back, is done again for who enqueues next.
        """
        if self._wish is not None:
            row = await intake.transact(open_session, self._wish, self.tenant or "")
            self.id, self.key = row.id, row.key
            self._wish = None if lasting else self._wish._replace(id=row.id)
        elif self.tenant is None:
            self.tenant = (await intake.transact(reading.find_session, self.id)).tenant
        self._tx, self._opened = None, True
        return self

    async def refresh(self) -> SessionRow:
        if not self._opened and self._wish is not None:
            await self
        return await self._transact(reading.find_session, self.id, self.tenant)

    async def check(self) -> None:
        """`NotFound` when the session is another tenant's."""
        if self.tenant is not None:
            await self.refresh()

    async def send(self, prompt: Prompt, agent: Agent[T], *, during: During = "queue", **options: Any) -> Run[T]:
        """A message for an agent in this session. While a run is under way: "queue" it, or "reject" it."""
        check_during(during)
        return await agent.enqueue(prompt, session=self, during=during, **options)

    async def messages(self, *, after: int = 0, limit: int = 1_000) -> list[MessageView]:
        """The conversation so far, without what happened inside the agents that were called as tools."""
        await self.check()
        return await self._transact(reading.list_messages, self.id, after=after, limit=limit)

    async def runs(self, *, limit: int = 100) -> list[RunRow]:
        await self.check()
        return await self._transact(reading.list_runs, session=self.id, limit=limit)

    async def usage(self) -> Usage:
        await self.check()
        used = await self._transact(reading.session_usage, self.id)
        assert used is not None, "a count has one row"
        return usage_of(used)

    async def update(self, *, metadata: Mapping[str, Any]) -> SessionRow:
        await self.check()
        text = encoding.encode(dict(metadata), what="metadata", cap=self._app.settings.metadata_cap)
        return await self._transact(reading.update_session, self.id, text)

    async def delete(self) -> None:
        """Remove the session with its messages and runs. Refused while one of them is under way."""
        await self.check()
        await self._transact(reading.delete_session, self.id)


def session_wish(
    app: App, id: str, key: str | None, parent: Session | str | None, metadata: Mapping[str, Any] | None
) -> SessionWish:
    text = encoding.encode(dict(metadata or {}), what="metadata", cap=app.settings.metadata_cap)
    return SessionWish(id, key, parent=parent.id if isinstance(parent, Session) else parent, metadata=text)


def wish_for(session: object, fresh: str) -> SessionWish:
    """What an option `session` asks for; `fresh` is the id of one that is to be made."""
    match session:
        case None:
            return SessionWish(fresh)
        case Session():
            return SessionWish(session.id, known=True)
        case str():
            return SessionWish(fresh, encoding.check_text(session, what="a session's key"))
        case _:
            raise UsageError(f"session is a key or a Session, not {type(session).__name__}.")


def check_during(during: str) -> None:
    if during not in ("queue", "reject"):
        raise UsageError(f'during is "queue" or "reject", not {during!r}.')
