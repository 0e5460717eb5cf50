"""Every exception Holdfast raises, in three kinds that answer one question: should I call again?

    HoldfastError
      UsageError        you called it wrong; calling again changes nothing       retry = "never"
        BadUrl  MissingExtra  BadPayload  BadSetting  UnknownJob  NotFound
      StoreRefused      the store is well and says no                             retry = "never"
        LeaseLost  IdempotencyConflict  ParentCancelled  DuplicateWorker  RunFailed  SessionBusy  NothingToCompact
        AlreadyDecided  DigestMismatch  BudgetUsedUp
        SchemaTooOld  SchemaTooNew  MigrationRefused  StoreUnfit  StatementDrift
      Unavailable       the world failed; the same call may work in a moment      retry = "later"
        StoreUnavailable  StoreBusy  StoreFull  StoreCorrupt  ResultTimeout  NoWorker

A message says what happened, to which thing, and what to do about it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

RetryAdvice = Literal["never", "later", "now"]


class HoldfastError(Exception):
    """The root: catch this to catch everything Holdfast raises on purpose."""

    retry: ClassVar[RetryAdvice] = "never"


class UsageError(HoldfastError):
    """You called it wrong; the message says how to call it."""


class StoreRefused(HoldfastError):
    """The store is reachable and refuses; repeating the call gets the same answer."""


class Unavailable(HoldfastError):
    """Something outside failed; nothing was lost, and the same call may succeed later."""

    retry: ClassVar[RetryAdvice] = "later"


class BadUrl(UsageError):
    """The database URL cannot be used as it is written."""


class MissingExtra(UsageError):
    """An optional dependency is needed and not installed."""

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs an extra: pip install 'holdfast[{extra}]'.")


class BadPayload(UsageError):
    """A value is not JSON that both databases can store, or is over its size cap."""


class BadSetting(UsageError):
    """A setting, option or duration has a value that makes no sense."""


class UnknownJob(UsageError):
    """This process has no handler of that kind."""


class NotFound(UsageError):
    """Nothing has that id."""


class LeaseLost(StoreRefused):
    """The job moved on without us: stop the attempt and drop its result."""

    def __init__(self, job: str, token: object) -> None:
        super().__init__(
            f"job {job} is no longer leased under token {token}: expired, cancelled or re-claimed. "
            f"If this repeats, raise lease_ttl or look for what blocks the worker's event loop."
        )


class IdempotencyConflict(StoreRefused):
    """The key was used before with another payload."""

    def __init__(self, key: str, job: str) -> None:
        super().__init__(
            f"idempotency key {key!r} already belongs to job {job} with another payload or kind. "
            f"Use the same arguments to get that job back, or another key for other work."
        )
        self.job = job


class ParentCancelled(StoreRefused):
    """The parent was cancelled, so its family takes no new members."""

    def __init__(self, parent: str) -> None:
        super().__init__(f"job {parent} is cancelled or being cancelled; it cannot start children.")


class DuplicateWorker(StoreRefused):
    """A live worker already has that id."""

    def __init__(self, worker: str, hostname: str, pid: int) -> None:
        super().__init__(
            f"worker id {worker!r} is alive on {hostname} (pid {pid}). "
            f"Stop that one first, or leave worker_id unset to get a fresh id."
        )


class RunFailed(StoreRefused):
    """The job or run whose result was asked for ended as failed or cancelled, or without what was asked for."""

    def __init__(
        self, job: str, state: str, error: object, type: str = "", *, what: str = "job", session: str | None = None
    ) -> None:
        super().__init__(f"{what} {job} ended as {state}: {error}")
        self.job, self.state, self.error, self.type = job, state, error, type
        self.run = job if what == "run" else None  # its id, if it is one
        self.session = session  # of a run
        self.error_type = type  # what went wrong, in one word


class SessionBusy(StoreRefused):
    """The session has a run under way, and the message was not to wait for its end."""

    retry: ClassVar[RetryAdvice] = "later"


class AlreadyDecided(StoreRefused):
    """Somebody has decided this inquiry already, and otherwise."""

    def __init__(self, inquiry: str, state: str, by: str | None) -> None:
        super().__init__(f"inquiry {inquiry} is {state}{f', by {by}' if by else ''}: it is decided once.")
        self.inquiry, self.state = inquiry, state


class DigestMismatch(StoreRefused):
    """What is to be approved is not what was shown."""

    def __init__(self, inquiry: str) -> None:
        super().__init__(f"the arguments of inquiry {inquiry} are not those of this digest: look at it again.")
        self.inquiry = inquiry


class NothingToCompact(StoreRefused):
    """Every message of the session is protected, recent, preserved or a summary."""

    def __init__(self, session: str, kept: int) -> None:
        super().__init__(
            f"nothing in session {session} may be compacted: {kept} messages are protected or recent. "
            f"Lower protected_tokens or preserve_last to touch more."
        )


class BudgetUsedUp(StoreRefused):
    """A budget does not hold what the call may cost."""

    def __init__(self, what: str, budget: str, words: str) -> None:
        super().__init__(f"{what}: {words}. Raise the budget (hf.budgets.set), or wait for its next period.")
        self.budget = budget


class SchemaTooOld(StoreRefused):
    """The database needs a migration before this code can use it."""


class SchemaTooNew(StoreRefused):
    """The database was migrated by a newer release than this code understands."""


class MigrationRefused(StoreRefused):
    """Workers are alive whose code could not use the migrated tables."""


class StoreUnfit(StoreRefused):
    """The database, file or file system cannot give the guarantees Holdfast promises."""


class StatementDrift(StoreRefused):
    """SQL files and the Python that declares them disagree; this build is broken."""


class StoreUnavailable(Unavailable):
    """The database cannot be reached; waiting calls may be repeated."""


class StoreBusy(Unavailable):
    """Someone else held the database too long."""


class StoreFull(Unavailable):
    """The database has no space left; nothing was written."""


class StoreCorrupt(Unavailable):
    """The database file is damaged; restore it from a backup."""

    retry: ClassVar[RetryAdvice] = "never"


class ResultTimeout(Unavailable):
    """The job has not ended yet; it goes on, and may be asked again."""


class NoWorker(Unavailable):
    """Nobody alive can serve this, and the caller did not want it to wait."""
