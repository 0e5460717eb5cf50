"""Reasons: what keeps a job or a run, as typed values, and the sentences that are made of them.

`why` finds reasons. Code that decides something looks at the type, the gate and the parts of a reason, never at its
words. Words are made last, where somebody reads them: `sentence` is for operators, with the names of workers, queues,
lanes and batches; `sentence_for_tenant` is for those who see a single tenant. A gate that has nothing to tell them says
only that something holds the work back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import ClassVar


class Gate(StrEnum):
    """What can keep a job or a run from being worked on."""

    ENDED = "ended"
    RAISED = "raised"  # where its failure was raised
    REMEDY = "remedy"  # what one can do about it
    UNKNOWN = "unknown"  # a state that only a newer release knows
    NOT_DUE = "not_due"
    LEASED = "leased"
    LEASE_ENDED = "lease_ended"
    SIGNAL = "signal"
    CHILDREN = "children"
    PAUSED = "paused"
    NO_ROUTE = "no_route"
    NO_WORKER = "no_worker"
    LANE = "lane"
    BATCH = "batch"
    BUDGET = "budget"
    KEY = "key"
    MODEL = "model"
    PERSON = "person"
    SESSION = "session"
    TOOLS = "tools"


OWN = frozenset({Gate.CHILDREN, Gate.ENDED, Gate.MODEL, Gate.PERSON, Gate.REMEDY, Gate.SESSION, Gate.TOOLS})
"""The gates whose sentences name only what belongs to the job or run itself, and so to its tenant."""

FOR_TENANTS = {
    Gate.BATCH: "it waits for the answer of a batch",
    Gate.BUDGET: "a budget holds it back",
    Gate.KEY: "no live worker has a key for its model",
    Gate.LANE: "a limit on how much runs at once, or how often, holds it back",
    Gate.LEASE_ENDED: "its worker is gone: the next one that looks takes it over",
    Gate.LEASED: "a worker is running it",
    Gate.NO_ROUTE: "no worker knows it yet",
    Gate.NO_WORKER: "no live worker can run it",
    Gate.NOT_DUE: "it is put off",
    Gate.PAUSED: "its queue is paused",
    Gate.RAISED: "the log of its worker says where it was raised",
    Gate.SIGNAL: "it waits for a signal",
    Gate.UNKNOWN: "it is in a state that this release does not know",
}
"""What a tenant reads about every other gate."""

_ACCOUNT = "the provider refuses calls of the account that is used here"
_OF_THE_ACCOUNT = ("auth", "permission", "rate_limit", "spend_limit")  # kinds of failures whose words are about it
ACCOUNT_REFUSED = "account_refused"
"""The type of error of what failed because the provider refused its account."""

_FAILURES_FOR_TENANTS = {
    **dict.fromkeys(_OF_THE_ACCOUNT, _ACCOUNT),
    **dict.fromkeys(("authentication_error", "permission_error", "rate_limit_error", "billing_error"), _ACCOUNT),
    "connect": "the provider cannot be reached",
    Gate.LANE: FOR_TENANTS[Gate.LANE],
}
_ERRORS_FOR_TENANTS = {
    ACCOUNT_REFUSED: f"the model could not be called: {_ACCOUNT}",
    "over_budget": FOR_TENANTS[Gate.BUDGET],
    "provider_wait": "the provider failed, or refuses calls of the account that is used here",
    "store_trouble": "the database did not answer",
}

_FOR_NOBODY = "something that belongs to no tenant holds it back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason(ABC):
    """One thing that keeps a job or a run, and when that ends if it is known (microseconds)."""

    gate: ClassVar[Gate]

    until: int | None = None

    @property
    @abstractmethod
    def sentence(self) -> str:
        """For who may see the whole fleet."""

    @property
    def sentence_for_tenant(self) -> str:
        """For who sees one tenant: it names no worker, host, process or other tenant."""
        return self.sentence if self.gate in OWN else FOR_TENANTS.get(self.gate, _FOR_NOBODY)


def is_of_account(kind: str) -> bool:
    """Whether a failure of this kind is told in words about the account of a provider."""
    return kind in _OF_THE_ACCOUNT


def failure_for_tenant(kind: str, words: str) -> str:
    """What a tenant reads of a call of a model that failed, or was not made: words about the account are not its own.

    `kind` is that of the failure, as the provider or Holdfast names it, or the gate that held the call back.
    """
    return _FAILURES_FOR_TENANTS.get(kind, words)


def error_for_tenant(type: str | None, words: str) -> str:
    """What a tenant reads of an error of a job: what its handler said, unless Holdfast itself says it of the fleet."""
    return _ERRORS_FOR_TENANTS.get(type or "", words)


def time_text(us: int | None, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """A time as sentences name it."""
    if us is None:
        return "an unknown time"
    try:
        return datetime.fromtimestamp(us / 1e6, UTC).strftime(form)
    except (OverflowError, ValueError):
        return "a time after the year 9999"
