"""Sessions as a program sees them: conversations, whose runs come one after the other."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from holdfast import checking
from holdfast.agents import reading
from holdfast.agents.compaction import applying
from holdfast.agents.compaction.compacting import CompactionStats
from holdfast.agents.compaction.config import Compaction
from holdfast.agents.compaction.records import CompactionRow
from holdfast.agents.contents import Prompt
from holdfast.agents.creating import SessionWish, open_session
from holdfast.agents.forks.forking import fork_session
from holdfast.agents.inbox import During
from holdfast.agents.reaching import App, Reaching
from holdfast.agents.reading import MessageView
from holdfast.agents.records import RunRow, SessionRow
from holdfast.agents.results import usage_of
from holdfast.errors import UsageError
from holdfast.kernel import encoding
from holdfast.kernel.ids import is_id, new_id
from holdfast.results import Usage
from holdfast.transactions import Intake

if TYPE_CHECKING:
    from holdfast.agents.handles import Agent, Run

T = TypeVar("T")


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
        elif self.tenant is None or not is_id(self.id):
            self._found(await intake.transact(reading.find_session, self.id, self.tenant))
        self._tx, self._opened = None, True
        return self

    async def refresh(self) -> SessionRow:
        if not self._opened and self._wish is not None:
            await self
        return self._found(await self._transact(reading.find_session, self.id, self.tenant))

    def _found(self, row: SessionRow) -> SessionRow:
        self.id, self.key, self.tenant = row.id, row.key, row.tenant
        return row

    async def send(self, prompt: Prompt, agent: Agent[T], *, during: During | None = None, **options: Any) -> Run[T]:
        """A message for an agent in this session; returns the run that will answer it.

        While a run is under way, `during` says what becomes of it: it waits its turn ("queue"), is refused with
        `SessionBusy` ("reject"), ends the run under way, of which what was said is kept ("interrupt"), is told to it
        with its next turn ("steer"), or joins a run of the same agent that has not begun ("coalesce"). Without it, the
        session's own policy holds.
        """
        if not hasattr(agent, "enqueue"):
            raise UsageError(f"a message is for an agent, which is what hf.agent(…) made, not {checking.shown(agent)}.")
        return await agent.enqueue(prompt, session=self, during=during, **options)

    async def messages(self, *, after: int = 0, limit: int = 1_000, archived: bool = False) -> list[MessageView]:
        """The conversation so far, without what happened inside the agents that were called as tools.

        What a compaction took out is left out, unless `archived` asks for the originals too.
        """
        checking.whole(after, "after", least=0)
        checking.page(limit)
        await self.refresh()
        return await self._transact(reading.list_messages, self.id, after=after, limit=limit, archived=archived)

    async def runs(self, *, limit: int = 100) -> list[RunRow]:
        checking.page(limit)
        await self.refresh()
        return await self._transact(reading.list_runs, session=self.id, limit=limit)

    async def usage(self) -> Usage:
        await self.refresh()
        used = await self._transact(reading.session_usage, self.id)
        assert used is not None, "a count has one row"
        return usage_of(used)

    async def compact(self, config: Compaction | None = None) -> CompactionRow:
        """Make the history that is sent smaller, now; the originals are kept, and `restore` brings them back.

        Without a config, that of the session's last agent holds, or the defaults. `NothingToCompact` when nothing may
        be touched, `SessionBusy` while a run is under way, `ModelFailure` when the summariser did not answer.
        """
        checking.instance(config, "config", Compaction)
        await self.refresh()
        return await self._app.compactor.compact(self._app.runtime(), self.id, config)

    async def compact_if_needed(self, config: Compaction | None = None) -> CompactionRow | None:
        """`compact` when the history has reached its trigger and there is room to be won; None otherwise."""
        checking.instance(config, "config", Compaction)
        await self.refresh()
        return await self._app.compactor.compact_if_needed(self._app.runtime(), self.id, config)

    async def needs_compaction(self, config: Compaction | None = None) -> bool:
        """Whether the history has reached its trigger."""
        return (await self.compaction_stats(config)).needs_compaction

    async def compaction_stats(self, config: Compaction | None = None) -> CompactionStats:
        """How full the session is, and how much of it could be compacted."""
        checking.instance(config, "config", Compaction)
        await self.refresh()
        return await self._app.compactor.stats(self._app.runtime(), self.id, config)

    async def compaction_config(self) -> Compaction:
        """What holds here when no config is given."""
        await self.refresh()
        return await self._app.compactor.config_of(self._app.runtime(), self.id)

    async def compactions(self, *, limit: int = 100) -> list[CompactionRow]:
        """What was compacted here and what that cost, newest first."""
        checking.page(limit)
        await self.refresh()
        return await self._transact(reading.list_compactions, self.id, limit=limit)

    async def restore(self) -> CompactionRow:
        """Undo the latest compaction that stands: what it took out is sent again as it was. May be repeated."""
        await self.refresh()
        return await self._app.compactor.restore(self._app.runtime(), self.id)

    async def fork(self, at: int | None = None, *, key: str | None = None) -> Session:
        """A new session with a copy of what was said here, up to the message of number `at`, or all of it.

        Neither knows of the other: what is said in one, or deleted, is not in the other. With a key, doing it again
        gives the same fork; at another message it is an `IdempotencyConflict`.
        """
        if at is not None:
            checking.whole(at, "at")
        row = await self.refresh()
        if key is not None:
            encoding.check_text(key, what="a session's key")
        new = new_id(self._app.runtime().ports)
        made = await self._transact(fork_session, row.id, new, at=at, key=key, tenant=row.tenant)
        return Session(self._app, made, key=key, tenant=row.tenant)

    async def preserve(self, message: MessageView | str, preserved: bool = True) -> None:
        """Mark a message as one that no compaction touches; `preserved=False` takes the mark away."""
        await self.refresh()
        id = message.id if isinstance(message, MessageView) else message
        await self._transact(applying.preserve, self.id, id, preserved=preserved)

    async def update(self, *, metadata: Mapping[str, Any] | None = None, during: During | None = None) -> SessionRow:
        """Other metadata, or another policy for messages that come while a run is under way."""
        await self.refresh()
        check_during(during)
        cap = self._app.settings.metadata_cap
        given = checking.mapping(metadata, "metadata")
        text = None if metadata is None else encoding.encode(given, what="metadata", cap=cap)
        return await self._transact(reading.update_session, self.id, text, during)

    async def delete(self) -> None:
        """Remove the session with its messages and runs. Refused while one of them is under way."""
        await self.refresh()
        await self._transact(reading.delete_session, self.id)


def session_wish(  # noqa: PLR0917  what a session is made of
    app: App,
    id: str,
    key: str | None,
    parent: Session | str | None,
    metadata: Mapping[str, Any] | None,
    during: During | None,
) -> SessionWish:
    check_during(during)
    if key is not None:
        encoding.check_text(key, what="a session's key")
    given = checking.mapping(metadata, "metadata")
    text = encoding.encode(given, what="metadata", cap=app.settings.metadata_cap)
    above = parent.id if isinstance(parent, Session) else parent
    return SessionWish(id, key, parent=above, metadata=text, during=during or "queue")


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


def check_during(during: str | None) -> None:
    if during is not None and during not in get_args(During):
        raise UsageError(f"during is one of {', '.join(get_args(During))}, not {during!r}.")
