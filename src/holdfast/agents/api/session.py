"""Sessions as a program sees them: conversations, whose runs come one after the other."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import datetime
from typing import Any, Protocol, TypedDict, TypeVar, Unpack, get_args

from holdfast import validation
from holdfast.agents import queries
from holdfast.agents.api.results import usage_of
from holdfast.agents.compaction import commit
from holdfast.agents.compaction.compactor import CompactionStats
from holdfast.agents.compaction.config import Compaction
from holdfast.agents.content import Prompt
from holdfast.agents.core import AgentsCore, AppPart
from holdfast.agents.definition import Limits, Mode
from holdfast.agents.events.log import Changes
from holdfast.agents.forks.fork import fork_session
from holdfast.agents.forks.past import OUTDATED
from holdfast.agents.listings import latest_messages, list_runs, message_page
from holdfast.agents.queries import AFTER_ALL, LAST
from holdfast.agents.rows import SessionRow
from holdfast.agents.runs.create import SessionWish, open_session
from holdfast.agents.runs.inbox import During
from holdfast.agents.statements import ContentSql, SessionsSql
from holdfast.agents.values import (
    CompactionRecord,
    Message,
    RunRecord,
    SessionRecord,
    compaction_of,
    run_of,
    session_of,
)
from holdfast.client.intake import Intake
from holdfast.client.results import Usage
from holdfast.durations import Duration
from holdfast.errors import NotFound, SessionBusy, UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction
from holdfast.kernel.ids import is_id, new_id
from holdfast.observe import changing
from holdfast.values import Page, cursor, page_of, place

# Exchanges: what one run was asked and what it answered. Somebody may take one out of what models are sent.
#
# It is taken out whole, so that no call is parted from its results, nor an answer from what it answers. It is kept,
# and
# marked, for those who read the session. Runs that came before it was taken out have seen it: their forks and replays
# see it too.


async def retire(tx: Transaction, session: str, message: str, prefix: str) -> None:
    """Take the exchange that a message is part of out of what is sent. A second time does nothing."""
    if await tx.one(SessionsSql.lock_session, id=session) is None:  # a transaction that adds a run waits for this
        raise NotFound(f"there is no session {session} in this database.")
    found = await tx.one(ContentSql.find_message, id=message, session=session)
    if found is None:
        raise NotFound(f"there is no message {message} in session {session}.")
    if found.branch:
        raise UsageError(
            f"message {message} belongs to an agent that was called as a tool: retire the result that its caller got."
        )
    if found.kind == "summary":
        raise UsageError(f"message {message} is a summary of others: undo the compaction (restore), then retire those.")
    if (run := await tx.one(ContentSql.open_run, session=session)) is not None:
        raise SessionBusy(f"session {session} has a run that has not ended ({run.id}): wait for its end, or cancel it.")
    gone = await tx.many(ContentSql.retire_exchange, session=session, run=found.run)
    if not gone:
        return
    first = min(each.ordinal for each in gone)
    await tx.run(ContentSql.outdate_thinking, session=session, after=first, mark=OUTDATED)
    changes = Changes(prefix)
    ids = [each.id for each in sorted(gone, key=lambda each: each.ordinal) if each.made_by is None]
    changes.tell(found.run, "messages_retired", {"messages": ids, "reason": "taken out of the session"})
    await changes.write(tx)


RunT = TypeVar("RunT")
RunT_co = TypeVar("RunT_co", covariant=True)


class Answering(Protocol[RunT_co]):
    """An agent, as far as a session needs to know it: it takes a message, and returns the run that will answer."""

    async def enqueue(self, *args: Any, **options: Any) -> RunT_co: ...


class Session(AppPart):
    """A conversation: its runs execute one after the other.

    `hf.session(key)` is a handle; `await` it to have the session made and its id known, or just use it.
    """

    def __init__(
        self,
        app: AgentsCore,
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
        """Make the session if it does not exist, as part of an intake.

        A transaction of a caller may be rolled back, so the next call that enqueues does this again.
        """
        if self._wish is not None:
            row = await intake.transact(open_session, self._wish, self.tenant or "")
            self.id, self.key = row.id, row.key
            self._wish = None if lasting else self._wish._replace(id=row.id)
        elif self.tenant is None or not is_id(self.id):
            self._found(await intake.transact(queries.find_session, self.id, self.tenant))
        self._tx, self._opened = None, True
        return self

    async def refresh(self) -> SessionRecord:
        """The current state of the session in the store."""
        return session_of(await self._row())

    async def _row(self) -> SessionRow:
        if not self._opened and self._wish is not None:
            await self
        return self._found(await self._transact(queries.find_session, self.id, self.tenant))

    def _found(self, row: SessionRow) -> SessionRow:
        self.id, self.key, self.tenant = row.id, row.key, row.tenant
        return row

    async def send(
        self, prompt: Prompt, agent: Answering[RunT], *, during: During | None = None, **options: Unpack[SendOptions]
    ) -> RunT:
        """Send a message to an agent in this session; returns the run that will answer it.

        While a run is under way, `during` says what happens to the message: it waits its turn ("queue"), is refused
        with `SessionBusy` ("reject"), ends the run under way and keeps what it said ("interrupt"), reaches it with
        its next turn ("steer"), or joins a run of the same agent that has not begun ("coalesce"). Without it, the
        session's own policy holds. The other options are those of `agent.enqueue`.
        """
        if not hasattr(agent, "enqueue"):
            raise UsageError(f"send needs an agent that hf.agent(…) returned; got {validation.shown(agent)}.")
        return await agent.enqueue(prompt, session=self, during=during, **options)

    async def messages(
        self, *, after: int | str | None = None, limit: int = 1_000, archived: bool = False
    ) -> Page[Message]:
        """The conversation so far, without the messages of agents that were called as tools.

        `after` is the `next` of a page, or the number of a message. What a compaction took out is left out, unless
        `archived` asks for the originals too.
        """
        (last,) = place(after, int) if isinstance(after, str) else (after or 0,)
        validation.whole(last, "after", least=0)
        validation.page(limit)
        await self._row()
        found = await self._transact(message_page, self.id, after=last, limit=limit, archived=archived)
        return Page(found.messages, next=None if found.place is None else cursor(found.place))

    async def latest(
        self, *, before: int | str | None = None, limit: int = 100, archived: bool = False
    ) -> Page[Message]:
        """The end of the conversation, in its order. `next` is what to give as `before` for what was said earlier."""
        (last,) = place(before, int) if isinstance(before, str) else (LAST if before is None else before,)
        validation.whole(last, "before", least=0, most=LAST)
        validation.page(limit)
        await self._row()
        found = await self._transact(latest_messages, self.id, before=last, limit=limit, archived=archived)
        return Page(found.messages, next=None if found.place is None else cursor(found.place))

    async def runs(self, *, after: str | None = None, limit: int = 100) -> Page[RunRecord]:
        """The runs of the session, the newest first."""
        validation.page(limit)
        before = (LAST, AFTER_ALL) if after is None else place(after, int, str)
        await self._row()
        found = await self._transact(list_runs, session=self.id, before=before, limit=limit)
        return page_of(found, limit, run_of, lambda row: (row.created_at, row.id))

    async def run_after(self, ordinal: int) -> RunRecord | None:
        """The run that comes next in this session after the one in that place; not those that tool calls started."""
        found: RunRecord | None = None
        page = await self.runs()
        while True:
            for run in page:
                if run.parent is None and run.ordinal > ordinal:
                    found = run
            if page.next is None or any(run.parent is None and run.ordinal <= ordinal for run in page):
                return found
            page = await self.runs(after=page.next)

    async def usage(self) -> Usage:
        await self._row()
        used = await self._transact(queries.session_usage, self.id)
        assert used is not None, "a count has one row"
        return usage_of(used)

    async def compact(self, config: Compaction | None = None) -> CompactionRecord:
        """Compact the history that is sent to models now. Holdfast keeps the originals, and `restore` brings them back.

        Without a config, that of the session's last agent holds, or the defaults. `NothingToCompact` when nothing may
        be touched, `SessionBusy` while a run is under way, `ModelFailure` when the summariser did not answer.
        """
        validation.instance(config, "config", Compaction)
        await self._row()
        return compaction_of(await self._app.compactor.compact(self._app.runtime(), self.id, config))

    async def compact_if_needed(self, config: Compaction | None = None) -> CompactionRecord | None:
        """`compact` when the history has reached its trigger and compacting would make it smaller; None otherwise."""
        validation.instance(config, "config", Compaction)
        await self._row()
        row = await self._app.compactor.compact_if_needed(self._app.runtime(), self.id, config)
        return None if row is None else compaction_of(row)

    async def needs_compaction(self, config: Compaction | None = None) -> bool:
        """Whether the history has reached its trigger."""
        return (await self.compaction_stats(config)).needs_compaction

    async def compaction_stats(self, config: Compaction | None = None) -> CompactionStats:
        """How full the session is, and how much of it could be compacted."""
        validation.instance(config, "config", Compaction)
        await self._row()
        return await self._app.compactor.stats(self._app.runtime(), self.id, config)

    async def compaction_config(self) -> Compaction:
        """The config that applies when you give none."""
        await self._row()
        return await self._app.compactor.config_of(self._app.runtime(), self.id)

    async def compactions(self, *, after: str | None = None, limit: int = 100) -> Page[CompactionRecord]:
        """The compactions of this session and their costs, newest first."""
        before = (LAST, AFTER_ALL) if after is None else place(after, int, str)
        validation.page(limit)
        await self._row()
        found = await self._transact(queries.list_compactions, self.id, before=before, limit=limit)
        return page_of(found, limit, compaction_of, lambda row: (row.started_at, row.id))

    async def restore(self) -> CompactionRecord:
        """Undo the latest active compaction: its original messages are sent again. You can call it again."""
        await self._row()
        return compaction_of(await self._app.compactor.restore(self._app.runtime(), self.id))

    async def fork(self, at: int | None = None, *, key: str | None = None) -> Session:
        """Create a session with a copy of this conversation, up to the message with number `at`, or all of it.

        Neither knows of the other: what is said in one, or deleted, is not in the other. With a key, doing it again
        gives the same fork; at another message it is an `IdempotencyConflict`.
        """
        if at is not None:
            validation.whole(at, "at")
        row = await self._row()
        if key is not None and is_id(codec.check_text(key, what="a session's key")):
            raise UsageError(f"{key!r} has the form of an id, so it cannot be a session's key: choose another key.")
        new = new_id(self._app.runtime().ports)
        made = await self._transact(fork_session, row.id, new, at=at, key=key, tenant=row.tenant)
        return Session(self._app, made, key=key, tenant=row.tenant)

    async def preserve(self, message: Message | str, preserved: bool = True) -> None:
        """Mark a message so that no compaction touches it; `preserved=False` removes the mark."""
        await self._row()
        id = message.id if isinstance(message, Message) else message
        await self._transact(commit.preserve, self.id, id, preserved=preserved)

    @changing("sessions retire")
    async def retire(self, message: Message | str) -> None:
        """Retire all messages of the run that this message belongs to: models no longer see them.

        It is kept, and `messages()` shows it as `retired`. Doing it again does nothing. `SessionBusy` while a run of
        the session has not ended, because what the run has sent must not change.
        """
        await self._row()
        id = message.id if isinstance(message, Message) else message
        await self._transact(retire, self.id, id, self._app.settings.announced)

    async def update(self, *, metadata: Mapping[str, Any] | None = None, during: During | None = None) -> SessionRecord:
        """Change the metadata, or the policy for messages that arrive while a run is active."""
        await self._row()
        check_during(during)
        cap = self._app.settings.metadata_cap
        given = validation.mapping(metadata, "metadata")
        text = None if metadata is None else codec.encode(given, what="metadata", cap=cap)
        return session_of(await self._transact(queries.update_session, self.id, text, during))

    @changing("sessions delete")
    async def delete(self) -> None:
        """Remove the session with its messages and runs. Refused while one of its runs is active."""
        await self._row()
        await self._transact(queries.delete_session, self.id)


class OwnRunOptions(TypedDict, total=False):
    """The options of a run that every call which enqueues one takes.

    `answer_within` decides how the model is asked, and ends nothing. `mode` is by that, or "streaming".
    """

    variables: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None
    priority: int | None
    delay: Duration | None
    at: datetime | None
    limits: Limits | None
    model: str | None
    mode: Mode | None
    answer_within: Duration | None
    require_worker: bool
    notify: bool
    tx: object | None


class SendOptions(OwnRunOptions, total=False):
    """The options of `session.send`, beside `during`."""

    key: str | None
    tenant: str | None


class TenantSessionOptions(TypedDict, total=False):
    """The options of `hf.tenant(id).session`."""

    parent: Session | str | None
    metadata: Mapping[str, Any] | None
    during: During | None


class SessionOptions(TenantSessionOptions, total=False):
    """The options of `hf.session`."""

    tenant: str


def new_session(
    app: AgentsCore, key: str | None, *, tx: object | None = None, **options: Unpack[SessionOptions]
) -> Session:
    """A handle on the session with this key, made when it is first used or awaited; without a key, on a new one."""
    validation.option_names(options, SessionOptions, "session")
    check_during(options.get("during"))
    if key is not None:
        codec.check_text(key, what="a session's key")
    given = validation.mapping(options.get("metadata"), "metadata")
    text = codec.encode(given, what="metadata", cap=app.settings.metadata_cap)
    parent = options.get("parent")
    above = parent.id if isinstance(parent, Session) else parent
    wish = SessionWish(new_id(app.ports), key, parent=above, metadata=text, during=options.get("during") or "queue")
    return Session(app, wish.id, key=key, tenant=codec.check_tenant(options.get("tenant", "")), wish=wish, tx=tx)


def wish_for(session: object, fresh: str) -> SessionWish:
    """What an option `session` asks for; `fresh` is the id of one that is to be made."""
    match session:
        case None:
            return SessionWish(fresh)
        case Session():
            return SessionWish(session.id, known=True)
        case str():
            return SessionWish(fresh, codec.check_text(session, what="a session's key"))
        case _:
            raise UsageError(f"session must be a Session or a key; got {type(session).__name__}.")


def check_during(during: str | None) -> None:
    if during is not None and during not in get_args(During):
        raise UsageError(f"during must be one of {', '.join(get_args(During))}; got {during!r}.")
