"""A program: what a client does, and what goes wrong meanwhile. It is drawn from a seed, and is data alone."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

from holdfast.agents.definition import Limits, Mode
from holdfast.agents.forks.past import Tools
from holdfast.agents.runs.inbox import During
from holdfast.testing.crashes import When

T = TypeVar("T")

APPS: Final = ("north", "south")
AGENTS: Final = {"north": ("clerk", "lead", "cashier"), "south": ("clerk", "lead", "writer")}
POLICIES: Final[Sequence[During | None]] = (None, "queue", "reject", "interrupt", "steer", "coalesce")
SESSIONS: Final = 3
TENANTS: Final = ("", "", "poor")
PAYING: Final = "please pay"  # what an agent is told that is to pay
POOR: Final = "0.20"  # what tenant "poor" may spend, in USD: a few calls at their most, many as they are

FAULTS: Final[Sequence[dict[str, Any]]] = (
    {"overloaded": True},
    {"status": 429},
    {"status": 429, "retry_after": 20},
    {"status": 500},
    {"cut": {"headers": True}},
    {"cut": {"events": 2}},
    {"cut": {"events": 5}},
    {"cut": {"bytes": 700}},
    {"error_event": {"after": 3}},
    {"malformed": {"after": 3}},
    {"duplicate_ids": True},
    {"unknown_event": {"after": 2}},
    {"status": 400, "message": "refused by rule: a bad request"},
    {"status": 401, "message": "refused by rule: who are you"},
)
BATCH_FAULTS: Final[Sequence[dict[str, Any]]] = (
    {"lost_answer": True},
    {"error": {"share": 0.3, "message": "failed by rule"}},
    {"expire": {"share": 0.3}},
    {"reorder": True},
)


class Doom(NamedTuple):
    """Where one worker dies: around its n-th commit, or before the first one after this tool has begun."""

    when: When
    nth: int
    inside: str | None = None


class Send(NamedTuple):
    app: str
    agent: str
    text: str
    session: str | None
    tenant: str = ""
    during: During | None = None
    key: str | None = None
    limits: Limits | None = None
    mode: Mode = "streaming"
    delay: str | None = None


class Steer(NamedTuple):
    run: int
    text: str


class Interrupt(NamedTuple):
    run: int


class Cancel(NamedTuple):
    run: int


class Decide(NamedTuple):
    """Decide what people are asked now, or leave some of it to time."""

    draw: int


class ForkRun(NamedTuple):
    run: int
    at: int | None
    tools: Tools


class ForkSession(NamedTuple):
    session: str


class Compact(NamedTuple):
    session: str
    rested: bool  # when nothing is under way, or whenever it comes


class DecideLate(NamedTuple):
    """Decide everything that waits, when the time for it is over and a worker may not have noticed."""

    draw: int


class Pass(NamedTuple):
    """Let time pass while workers work."""

    by: str


class Rest(NamedTuple):
    """Wait until nothing can be done at this time."""


Act = Send | Steer | Interrupt | Cancel | Decide | DecideLate | ForkRun | ForkSession | Compact | Pass | Rest


class Program(NamedTuple):
    seed: int
    acts: tuple[Act, ...]
    rules: tuple[dict[str, Any], ...]
    dooms: dict[str, tuple[Doom, ...]]  # of one app's workers, one after the other

    def __str__(self) -> str:
        lines = [f"  {act}" for act in self.acts]
        return "\n".join([*lines, f"  provider: {list(self.rules)}", f"  deaths: {self.dooms}"])


def draw(seed: int, size: int = 14) -> Program:
    """The program of a seed, of about so many messages."""
    chance = Random(f"program {seed}")
    acts = list(_acts(chance, size))
    dooms = {app: tuple(_doom(chance) for _ in range(chance.choice((0, 1, 1, 2)))) for app in APPS}
    if chance.random() < 0.6:  # its outcome is unknown: a person is asked
        dooms["north"] = (Doom("before", 0, "pay"), *dooms["north"])
        acts += _payments(chance)
    return Program(seed, tuple(acts), tuple(_rules(chance)), dooms)


def _payments(chance: Random) -> list[Act]:
    """Two runs that pay, and people who decide about that once or twice, perhaps too late."""
    acts: list[Act] = [Send("north", "cashier", f"{PAYING} {number}", None) for number in range(2)]
    for _ in range(3):
        late = chance.random() < 0.2
        acts += [Rest(), (DecideLate if late else Decide)(chance.randrange(1_000))]
    return acts


def _doom(chance: Random) -> Doom:
    return Doom(chance.choice(("before", "after")), chance.randint(2, 40))


def _rules(chance: Random) -> list[dict[str, Any]]:
    """Each program has its own few faults, and how often they come."""
    if chance.random() < 0.15:
        return []
    rules = [
        {"match": {"probability": round(chance.uniform(0.02, 0.12), 3)}, "do": do}
        for do in chance.sample(FAULTS, k=chance.randint(1, 4))
    ]
    where = {"path": "/v1/messages/batches", "method": "POST", "probability": 0.4}
    return [*rules, {"match": where, "do": chance.choice(BATCH_FAULTS)}]


def _acts(chance: Random, size: int) -> Sequence[Act]:
    acts: list[Act] = []
    keyed: list[Send] = []
    for number in range(size):
        send = chance.choice(keyed) if keyed and chance.random() < 0.15 else _send(chance, number)
        if send.key is not None and chance.random() < 0.2:
            send = send._replace(text=f"{send.text} or not")
        keyed += [send] if send.key is not None else []
        acts.append(send)
        if send.session is not None and chance.random() < 0.4:
            acts.append(_joining(chance, send, number))
        if chance.random() < 0.55:
            acts.append(_between(chance, number))
    return acts


def _send(chance: Random, number: int) -> Send:
    app = chance.choice(APPS)
    session = f"session {chance.randrange(SESSIONS)}" if chance.random() < 0.7 else None
    key = f"key {number}" if chance.random() < 0.25 else None
    during = chance.choice(POLICIES)
    return Send(
        app=app,
        agent=chance.choice(AGENTS[app]),
        text=f"question {number}",
        session=session,
        tenant="" if session is not None else chance.choice(TENANTS),
        during=during if session is not None else None,
        key=key,
        limits=_limits(chance),
        mode="batch" if chance.random() < 0.2 else "streaming",
        delay="5s" if chance.random() < 0.1 else None,
    )


def _joining(chance: Random, send: Send, number: int) -> Act:
    """What comes while the run of this message is under way, or before it has begun."""
    during: During = chance.choice(("steer", "steer", "coalesce", "interrupt", "reject"))
    if during == "steer" and chance.random() < 0.5:
        return Steer(0, f"remark {number}")
    return send._replace(text=f"more {number}", during=during, key=None, delay=None)


def _limits(chance: Random) -> Limits | None:
    if chance.random() < 0.75:
        return None
    return chance.choice((Limits(turns=1), Limits(turns=2), Limits(tokens=900), Limits(time="40s")))


def _between(chance: Random, number: int) -> Act:
    tools: Tools = chance.choice(("recorded", "ask", "live"))
    acts: Sequence[tuple[int, Act]] = (
        (6, Rest()),
        (3, Pass(chance.choice(("1s", "30s", "11m")))),
        (5, Decide(chance.randrange(1_000))),
        (2, DecideLate(chance.randrange(1_000))),
        (4, Steer(chance.randrange(3), f"aside {number}")),
        (3, Interrupt(chance.randrange(3))),
        (3, Cancel(chance.randrange(3))),
        (2, ForkRun(chance.randrange(5), chance.choice((None, 1, 2)), tools)),
        (1, ForkSession(f"session {chance.randrange(SESSIONS)}")),
        (4, Compact(f"session {chance.randrange(SESSIONS)}", chance.random() < 0.7)),
    )
    return chance.choices([act for _, act in acts], [weight for weight, _ in acts])[0]
