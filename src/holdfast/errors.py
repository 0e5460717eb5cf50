"""Every exception that Holdfast raises, in three kinds that answer one question: should I call again?

    HoldfastError
      UsageError        you called it wrong; calling again changes nothing       retry = "never"
        BadUrl  MissingExtra  BadPayload  BadSetting  UnknownJob  NotFound
      StoreRefused      the store works and refuses the call                      retry = "never"
        LeaseLost  IdempotencyConflict  RequestConflict  RequestUnderWay  SignalConflict  ParentCancelled
        ChildNotUnique  DuplicateWorker  PlaceLost  RunFailed  SessionBusy  NothingToCompact  AlreadyDecided
        DigestMismatch  BudgetUsedUp  CursorPruned  NotUnderstood  SchemaTooOld  SchemaTooNew  MigrationRefused
        StoreUnfit  StatementDrift
      Unavailable       something outside failed; the same call may work later    retry = "later"
        StoreUnavailable  StoreBusy  StoreFull  StoreCorrupt  QueryTooLong  ResultTimeout  NoWorker  GatewayUnavailable

A message says what happened, to which object, and what to do about it.
"""

from __future__ import annotations

import os
import sys
from typing import ClassVar, Literal

# What is installed: its name on a package index, its version, how to add an extra, and a namesake beside it.
#
# The name of the distribution is not that of the package. `holdfast` on the package index is another project, which
# writes into the same folder `holdfast`. No file of theirs is called as this one, so it can still name them.


NAME = "holdfast-agents"
VERSION = "0.1.0"


def how_to_install(extra: str) -> str:
    """The command that adds an extra. pip takes the extra from what is installed, also from a checkout."""
    return f"pip install '{NAME}[{extra}]', or '.[{extra}]' in a checkout"


def namesake() -> str:
    """Which other distribution brings a package `holdfast` to this environment, and what to do; empty: there is none.

    It lists two or three folders and reads no file, so that every import can afford it.
    """
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib costs 10 ms
    shared = [place for place in sys.path if place.endswith(("site-packages", "dist-packages"))]
    for place in dict.fromkeys([ours, *shared]):
        try:
            names = os.listdir(place)  # noqa: PTH208
        except OSError:
            continue  # a folder that does not exist, or a zip file
        for name in names:
            if name.startswith(("holdfast-", "holdfast.egg-info")) and name.endswith("-info"):
                return (
                    f"another project, the distribution 'holdfast' ({name} in {place}), is installed beside {NAME}. "
                    f"Both have a package named 'holdfast', so one hides or overwrites the other. "
                    f"Run `pip uninstall holdfast`, then install {NAME} again with --force-reinstall."
                )
    return ""


def warn_of_namesake() -> None:
    """Say it where `holdfast` is imported."""
    if said := namesake():
        import warnings

        warnings.warn(said, RuntimeWarning, stacklevel=3)


RetryAdvice = Literal["never", "later", "now"]


class HoldfastError(Exception):
    """The root: catch this to catch everything Holdfast raises on purpose."""

    retry: ClassVar[RetryAdvice] = "never"


class UsageError(HoldfastError):
    """You called it wrong; the message says how to call it."""


class StoreRefused(HoldfastError):
    """The store works and refuses the call; repeating it gives the same answer."""


class Unavailable(HoldfastError):
    """Something outside failed. Nothing was lost, and the same call may succeed later."""

    retry: ClassVar[RetryAdvice] = "later"


class BadUrl(UsageError):
    """The database URL cannot be used as it is written."""


class MissingExtra(UsageError):
    """The call needs an optional dependency that is not installed."""

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs an extra: {how_to_install(extra)}.")
        self.remedy = f"Install it: {how_to_install(extra)}."


class BadPayload(UsageError):
    """A value is not JSON that both databases can store, or is over its size cap."""


class BadSetting(UsageError):
    """A setting, option or duration has an invalid value."""


class UnknownJob(UsageError):
    """This process has no handler for that kind of job."""


class NotFound(UsageError):
    """Nothing has that id."""


class LeaseLost(StoreRefused):
    """Another worker may have the job now: stop the attempt and drop its result."""

    def __init__(self, job: str, token: object) -> None:
        super().__init__(
            f"job {job} is no longer leased under token {token}: it expired, was cancelled or was claimed again. "
            f"If this repeats, raise lease_ttl or find out what blocks the worker's event loop."
        )


class IdempotencyConflict(StoreRefused):
    """The key already belongs to a job with another payload."""

    def __init__(self, key: str, job: str) -> None:
        super().__init__(
            f"idempotency key {key!r} already belongs to job {job} with another payload or kind. "
            f"Use the same arguments to get that job back, or another key for other work."
        )
        self.job = job


class RequestConflict(StoreRefused):
    """The key of this request belongs to another request."""

    def __init__(
        self, key: str, why: str = "was sent with another request before. Use another key for other work."
    ) -> None:
        super().__init__(f"key {key!r} {why}")


class RequestUnderWay(RequestConflict):
    """The request that brought this key is under way."""

    retry: ClassVar[RetryAdvice] = "later"

    def __init__(self, key: str) -> None:
        super().__init__(key, "belongs to a request that is not answered yet. Ask again in a moment.")


class SignalConflict(StoreRefused):
    """The key already belongs to a signal with another payload."""

    def __init__(self, channel: str) -> None:
        super().__init__(
            f"this key already belongs to a signal on channel {channel!r} that says something else. "
            f"That signal stands. Send the same payload to repeat it, or use another key for another signal."
        )


class ParentCancelled(StoreRefused):
    """The parent was cancelled, so it cannot start children."""

    def __init__(self, parent: str) -> None:
        super().__init__(f"job {parent} is cancelled or being cancelled; it cannot start children.")


class ChildNotUnique(StoreRefused):
    """Another job has the unique key of a child, so the child was not started."""

    retry: ClassVar[RetryAdvice] = "later"

    def __init__(self, parent: str, kind: str, holder: str) -> None:
        super().__init__(
            f"job {parent} cannot start {kind} as its child now: job {holder} has its unique key. Try again when that "
            f"job has let go of the key, or enqueue {kind} without making it a child."
        )


class DuplicateWorker(StoreRefused):
    """A live worker already has that id."""

    def __init__(self, worker: str, hostname: str, pid: int) -> None:
        super().__init__(
            f"worker id {worker!r} is already in use on {hostname} (pid {pid}). "
            f"Stop that worker first, or leave worker_id unset to get a new id."
        )


class PlaceLost(StoreRefused):
    """The pool has given this worker's place up: it took too long to start, or was stopped. Its process leaves."""

    def __init__(self, worker: str, pool: str) -> None:
        super().__init__(
            f"worker {worker} has no place in pool {pool!r} any more: it started too late, or the pool was stopped. "
            f"If this repeats, give the pool more time with boot=."
        )


class RunFailed(StoreRefused):
    """The job or run failed or was cancelled, or ended without the requested result."""

    def __init__(  # noqa: PLR0913  the parts of what went wrong
        self,
        job: str,
        state: str,
        error: object,
        type: str = "",
        *,
        what: str = "job",
        session: str | None = None,
        ended: bool = True,
        shown: str | None = None,
    ) -> None:
        """`ended`: the end is what went wrong; else `error` says all of it. `shown` is the error for the message, where
        it must not have secrets or control characters."""
        words = error if shown is None else shown
        super().__init__(f"{what} {job} ended as {state}: {words}" if ended else f"{what} {job} {words}")
        self.job, self.state, self.error, self.type = job, state, error, type
        self.run = job if what == "run" else None  # its id, if it is one
        self.session = session  # of a run
        self.error_type = type  # what went wrong, in one word


class SessionBusy(StoreRefused):
    """The session has an active run, and the call does not wait for its end."""

    retry: ClassVar[RetryAdvice] = "later"


class AlreadyDecided(StoreRefused):
    """Somebody has already decided this inquiry differently, or its time limit passed (`state` is "expired")."""

    def __init__(self, inquiry: str, state: str, by: str | None, why: str = "an inquiry is decided only once.") -> None:
        super().__init__(f"inquiry {inquiry} is {state}{f', by {by}' if by else ''}: {why}")
        self.inquiry, self.state = inquiry, state


class DigestMismatch(StoreRefused):
    """The arguments to approve are not the ones that were shown."""

    def __init__(self, inquiry: str) -> None:
        super().__init__(f"the arguments of inquiry {inquiry} do not match this digest: look at the inquiry again.")
        self.inquiry = inquiry


class NothingToCompact(StoreRefused):
    """Every message of the session is protected, recent, preserved or a summary."""

    def __init__(self, session: str, kept: int) -> None:
        super().__init__(
            f"nothing in session {session} can be compacted: its messages ({kept}) are protected or recent. "
            f"Lower protected_tokens or preserve_last to compact more."
        )


class BudgetUsedUp(StoreRefused):
    """A budget has less left than the call may cost."""

    def __init__(self, what: str, budget: str, words: str) -> None:
        super().__init__(f"{what}: {words}. Raise the budget (hf.budgets.set), or wait for its next period.")
        self.budget = budget


class CursorPruned(StoreRefused):
    """Retention removed events after this cursor; `upto` is the cursor to continue with."""

    def __init__(self, cursor: str, upto: str) -> None:
        super().__init__(
            f"retention removed events after cursor {cursor}. Read the runs themselves (hf.runs.list), and continue "
            f"with hf.events(after={upto!r}). The setting event_retention sets how long events are kept."
        )
        self.upto = upto


class NotUnderstood(StoreRefused):
    """This release does not understand something in the store; a newer release wrote it."""

    retry: ClassVar[RetryAdvice] = "later"

    def __init__(self, what: str, problem: str) -> None:
        self.problem = problem
        super().__init__(
            f"this release of holdfast does not understand {what}: {problem}. A newer release may have written it: "
            f"upgrade this process, or let a process of that release do it."
        )


class SchemaTooOld(StoreRefused):
    """The database needs a migration before this code can use it, or a development version made it and none helps."""


class SchemaTooNew(StoreRefused):
    """A newer release migrated the database, and this code does not understand it."""


class MigrationRefused(StoreRefused):
    """Live workers could not use the migrated tables."""


class StoreUnfit(StoreRefused):
    """The database, file or file system cannot give the guarantees that Holdfast promises."""


class StatementDrift(StoreRefused):
    """SQL files and the Python that declares them disagree; this build is broken."""


class StoreUnavailable(Unavailable):
    """The database cannot be reached; try again later."""


class StoreBusy(Unavailable):
    """Another program locked the database for too long."""


class StoreFull(Unavailable):
    """The database has no space left; nothing was written."""


class StoreCorrupt(Unavailable):
    """The database file is damaged; restore it from a backup."""

    retry: ClassVar[RetryAdvice] = "never"


# The store itself is in trouble, whatever it was asked. No job is charged for it.
STORE_TROUBLE = (StoreUnavailable, StoreBusy, StoreFull, StoreCorrupt)


class QueryTooLong(Unavailable):
    """A read for the web or for an operator took longer than the setting `web_patience` allows, and was ended."""


class ResultTimeout(Unavailable):
    """The job has not ended yet. It continues, and you can ask again."""


class NoWorker(Unavailable):
    """No live worker can serve this, and the caller did not want to wait."""


class GatewayUnavailable(Unavailable):
    """A gateway cannot be reached, or its stream ended before the turn had; ask again with the same turn id."""
