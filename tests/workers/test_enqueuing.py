"""Accepting work: what may be passed, how it is marked, and what is refused with a reason."""

from __future__ import annotations

import asyncio
import math
import tracemalloc
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from holdfast import Holdfast, JobContext
from holdfast.agents.system_jobs import EXPIRE, system_job
from holdfast.app import core_of
from holdfast.errors import BadPayload, BadSetting, IdempotencyConflict, UsageError
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import derived_id
from tests.support.apps import MakeApp

LARGE, MANY_LARGE = 1_000_000, 50  # characters of a payload, and payloads


async def test_an_accepted_job_is_committed(hf: Holdfast, make_app: MakeApp) -> None:
    other = make_app(embedded=False)

    @hf.job(queue="images", priority=7, timeout="2m", deadline="1h")
    async def resize(url: str, width: int = 800) -> str:
        return url

    job = await resize.options(tenant="acme", metadata={"by": "Ann"}).enqueue("a.png", width=400)
    row = await other.jobs.get(job.id)
    assert (row.kind, row.queue, row.priority, row.tenant) == (resize.definition.kind, "images", 7, "acme")
    assert row.payload == {"url": "a.png", "width": 400}
    assert row.metadata == {"by": "Ann"}
    assert (row.state, row.attempts, row.max_attempts, row.max_rescues) == ("pending", 0, 3, 5)
    assert (row.timeout, row.deadline_at) == (timedelta(minutes=2), row.created_at + timedelta(hours=1))


async def test_an_accepted_job_stays_whatever_was_cancelled_before(hf: Holdfast, make_app: MakeApp) -> None:
    """A call that is cancelled half-way must not leave its transaction open around the calls that follow."""
    other = make_app(embedded=False)

    @hf.job
    async def work() -> None: ...

    doomed = await work.enqueue()
    accepted: list[str] = []
    for step in range(16):
        call = asyncio.create_task(doomed.cancel())
        await asyncio.sleep(step * 0.0003)  # to be cancelled in another place each time
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        accepted.append((await work.enqueue()).id)
    assert {row.id for row in await other.jobs.list()} == {doomed.id, *accepted}


async def test_a_decorated_function_is_still_a_function(hf: Holdfast) -> None:
    @hf.job
    async def greet(name: str) -> str:
        """Say hello."""
        return f"hello, {name}"

    @hf.job
    def shout(name: str) -> str:
        return name.upper()

    assert await greet("Oslo") == "hello, Oslo"
    assert shout("Oslo") == "OSLO"
    assert (greet.__name__, greet.__doc__) == ("greet", "Say hello.")


async def test_the_same_key_is_the_same_job(hf: Holdfast) -> None:
    @hf.job
    async def pay(order: str) -> None: ...

    @hf.job
    async def refund(order: str) -> None: ...

    keyed = pay.options(key="order-1")
    first = await keyed.enqueue("A1")
    assert (await keyed.enqueue("A1")).id == first.id
    assert (await keyed.options(tenant="acme").enqueue("A1")).id != first.id
    with pytest.raises(IdempotencyConflict, match=f"'order-1' already belongs to job {first.id}") as caught:
        await keyed.enqueue("A2")
    assert caught.value.job == first.id
    with pytest.raises(IdempotencyConflict):
        await refund.options(key="order-1").enqueue("A1")
    same = await asyncio.gather(*(pay.options(key="race").enqueue("B") for _ in range(10)))
    assert len({job.id for job in same}) == 1


async def test_later_is_a_delay_or_a_moment(hf: Holdfast) -> None:
    @hf.job
    async def work() -> None: ...

    delayed = await (await work.options(delay="5m").enqueue()).refresh()
    assert (delayed.state, delayed.due_at) == ("scheduled", delayed.created_at + timedelta(minutes=5))
    moment = datetime(2100, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    row = await (await work.options(at=moment).enqueue()).refresh()
    assert (row.state, row.due_at) == ("scheduled", datetime(2100, 1, 1, tzinfo=UTC))
    past = await (await work.options(at=datetime(2000, 1, 1, tzinfo=UTC)).enqueue()).refresh()
    assert (past.state, past.due_at) == ("pending", None)
    with pytest.raises(UsageError, match="has no time zone"):
        await work.options(at=datetime(2100, 1, 1)).enqueue()
    with pytest.raises(BadSetting, match="not a duration"):
        await work.options(delay="soon").enqueue()
    with pytest.raises(BadSetting, match="cannot be negative"):
        await work.options(delay=timedelta(seconds=-1)).enqueue()


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {}, "a: Field required"),
    (("one",), {}, "a: Input should be a valid integer"),
    ((1, 2, 3), {}, "takes 2 positional arguments; got 3"),
    ((1,), {"a": 2}, "got 'a' twice"),
    ((1,), {"c": 2}, "c: Extra inputs are not permitted"),
]


@pytest.mark.parametrize(("args", "kwargs", "reason"), WRONG)
async def test_arguments_are_checked_before_anything_is_stored(
    hf: Holdfast, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str
) -> None:
    @hf.job
    async def add(a: int, b: int = 1) -> int:
        return a + b

    with pytest.raises(BadPayload, match=reason):
        await add.enqueue(*args, **kwargs)
    assert await hf.jobs.list() == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("a\x00b", "NUL"),
        ("a\ud800b", "surrogate|utf-8"),
        (math.nan, "JSON"),
        (object(), "JSON|serialize"),
        ("x" * 200, "cap"),
    ],
    ids=["nul", "surrogate", "nan", "object", "cap"],
)
async def test_a_payload_that_cannot_be_stored_is_refused(make_app: MakeApp, value: object, reason: str) -> None:
    hf = make_app(payload_cap=100)

    @hf.job
    async def work(value: Any) -> None: ...

    with pytest.raises(BadPayload, match=reason):
        await work.enqueue(value)


async def test_an_argument_may_have_any_name(hf: Holdfast) -> None:
    @hf.job
    async def work(json: str, schema: int, copy: bool, model_config: str, _hidden: int = 5) -> list[Any]:
        return [json, schema, copy, model_config, _hidden]

    job = await work.enqueue("{}", schema=1, copy=True, model_config="x")
    assert set((await job.refresh()).payload) == {"json", "schema", "copy", "model_config", "_hidden"}
    async with hf:
        assert await job.result() == ["{}", 1, True, "x", 5]


async def test_metadata_tenant_and_key_are_checked(make_app: MakeApp) -> None:
    hf = make_app(metadata_cap=20)

    @hf.job
    async def work() -> None: ...

    with pytest.raises(BadPayload, match=r"metadata is .* over the cap of 20"):
        await work.options(metadata={"note": "x" * 50}).enqueue()
    with pytest.raises(BadPayload, match="a tenant contains a NUL"):
        await work.options(tenant="a\x00").enqueue()
    with pytest.raises(BadPayload, match="an idempotency key must have 1 to 512 characters"):
        await work.options(key="").enqueue()
    with pytest.raises(UsageError, match="'color' is not an option; there are"):
        work.options(color="red")  # type: ignore[call-arg]


async def test_an_option_may_stand_among_the_arguments(hf: Holdfast) -> None:
    """Unless the function has a parameter of that name: then it is the argument."""

    @hf.job
    async def plain(number: int) -> None: ...

    @hf.job
    async def lookup(key: str) -> None: ...

    loose: Any = plain
    first = await loose.enqueue(1, key="k")
    assert (await loose.enqueue(number=1, key="k")).id == first.id
    row = await (await lookup.enqueue(key="k")).refresh()
    assert row.payload == {"key": "k"}


async def test_many_are_accepted_together_or_not_at_all(hf: Holdfast) -> None:
    @hf.job
    async def work(number: int) -> None: ...

    jobs = await work.enqueue_many([(1,), {"number": 2}])
    assert [(await job.refresh()).payload for job in jobs] == [{"number": 1}, {"number": 2}]
    with pytest.raises(BadPayload):
        await work.enqueue_many([(3,), ("four",)])
    assert len(await hf.jobs.list()) == 2
    assert await work.enqueue_many([]) == []
    assert len(await work.enqueue_many((n,) for n in range(2_500))) == 2_500
    assert len(await hf.jobs.list(limit=10_000)) == 2_502
    with pytest.raises(UsageError, match="a key names one job"):
        await work.options(key="k").enqueue_many([(1,)])


async def test_jobs_are_listed_newest_first_by_page(hf: Holdfast) -> None:
    @hf.job(name="a", queue="left")
    async def a(number: int) -> None: ...

    @hf.job(name="b", queue="right")
    async def b(number: int) -> None: ...

    ids = [(await function.enqueue(number)).id for number in range(3) for function in (a, b)]
    assert [row.id for row in await hf.jobs.list()] == ids[::-1]
    assert [row.id for row in await hf.jobs.list(kind="a")] == ids[::-1][1::2]
    assert [row.id for row in await hf.jobs.list(queue="right", state="pending")] == ids[::-1][::2]
    page = await hf.jobs.list(limit=2)
    assert [row.id for row in await hf.jobs.list(limit=2, after=page.next)] == ids[::-1][2:4]
    assert await hf.jobs.list(tenant="nobody") == []


KINDS = ("mail.send", "mail.send_all", "Mail.send", "mail%send", "shop.mail.send", "a*b", "a_b", "mail.")


PATTERNS: dict[str, set[str]] = {
    "mail.*": {"mail.send", "mail.send_all", "mail."},
    "*.send": {"mail.send", "Mail.send", "shop.mail.send"},
    "*mail.s*": {"mail.send", "mail.send_all", "shop.mail.send"},
    "mail*send": {"mail.send", "mail%send"},
    "mail.*.*": set(),
    "mail.send*send": set(),
    "mail%*": {"mail%send"},
    "a_*": {"a_b"},
    "*": set(KINDS),
    "**": set(KINDS),
    "mail.send": {"mail.send"},
    "[m]ail.*": set(),
    "mail.sen?": set(),
}


async def test_a_kind_may_be_a_pattern(hf: Holdfast) -> None:
    async def work() -> None: ...

    for name in KINDS:
        job = hf.job(name=name)(work)
        await (await job.enqueue()).cancel()
        await job.options(delay="1h").enqueue()
        await job.enqueue()
    for pattern, fits in PATTERNS.items():
        for state in (None, "pending", "scheduled", "cancelled"):
            assert {row.kind for row in await hf.jobs.list(kind=pattern, state=state)} == fits, (pattern, state)
            assert await hf.jobs.count(kind=pattern, state=state) == len(fits) * (1 if state else 3), (pattern, state)
        assert await hf.jobs.list(kind=pattern, state="running") == []


async def test_a_pattern_has_two_stars_at_most_and_cancels_nothing(hf: Holdfast) -> None:
    for ask in (hf.jobs.list, hf.jobs.count):
        with pytest.raises(UsageError, match=r"kind 'a\*b\*c\*' has more than two \*"):
            await ask(kind="a*b*c*")
    with pytest.raises(UsageError, match="by one kind at a time"):
        await hf.jobs.cancel_some(kind="mail.*")


async def test_jobs_are_listed_by_key_and_by_time(hf: Holdfast) -> None:
    @hf.job(name="work")
    async def work() -> None: ...

    mine = await work.options(key="K").enqueue()
    theirs = await work.options(key="K", tenant="acme").enqueue()
    other = await work.enqueue()
    everything: list[tuple[dict[str, Any], list[str]]] = [
        ({"key": "K"}, [mine.id]),
        ({"key": "K", "tenant": "acme"}, [theirs.id]),
        ({"key": "K", "kind": "w*", "state": "pending", "since": "1h"}, [mine.id]),
        ({"key": "K", "state": "failed"}, []),
        ({"key": "K", "kind": "x*"}, []),
        ({"key": "L"}, []),
        ({"since": "1h"}, [other.id, theirs.id, mine.id]),
        ({"since": datetime(2200, 1, 1, tzinfo=UTC)}, []),
    ]
    for filters, ids in everything:
        assert [row.id for row in await hf.jobs.list(**filters)] == ids, filters
        assert await hf.jobs.count(**filters) == len(ids), filters
    with pytest.raises(UsageError):
        await hf.jobs.list(since="soon")
    with pytest.raises(TypeError, match="unexpected keyword argument 'kinds'"):
        await hf.jobs.list(kinds="x")  # type: ignore[call-arg]


async def test_the_runtimes_own_jobs_are_listed_if_they_are_asked_for(hf: Holdfast) -> None:
    @hf.job(name="work", queue="system")
    async def work() -> None: ...

    async def put(tx: Transaction) -> None:
        own = [system_job(EXPIRE, derived_id("own", str(number)), {}) for number in range(1_000)]
        await enqueue(tx, [job for job, _ in own], [own[0][1]])

    first = (await work.enqueue()).id
    await core_of(hf).runtime().transact(put)
    last = (await work.enqueue()).id
    mine = [last, first]
    assert [row.id for row in await hf.jobs.list(limit=2)] == mine, "a page looks further than what is hidden"
    assert [row.id for row in await hf.jobs.list(state="pending", limit=2)] == mine
    assert (await hf.jobs.count(), await hf.jobs.count(state="pending")) == (2, 2)
    for asked in ({"system": True}, {"queue": "system"}, {"kind": EXPIRE}, {"kind": "system:*"}):
        assert EXPIRE in {row.kind for row in await hf.jobs.list(**asked)}, asked
    assert await hf.jobs.count(system=True) == 1_002
    page = await hf.jobs.list(limit=1)
    assert [row.id for row in await hf.jobs.list(limit=1, after=page.next)] == [first]


def test_a_name_belongs_to_one_function(hf: Holdfast) -> None:
    @hf.job(name="work")
    async def first() -> None: ...

    with pytest.raises(UsageError, match="two functions are declared as job 'work'"):

        @hf.job(name="work")
        async def second() -> None: ...


def test_a_job_names_each_of_its_arguments(hf: Holdfast) -> None:
    with pytest.raises(UsageError, match=r"takes \*rest; a job must name each of its arguments"):

        @hf.job
        async def work(ctx: JobContext, *rest: int) -> None: ...


def test_declaring_and_making_an_app_reaches_for_nothing() -> None:
    hf = Holdfast("postgresql://nobody@203.0.113.1:1/nothing")

    @hf.job
    async def work() -> None: ...

    assert hf.jobs["01890000-0000-7000-8000-000000000000"].state is None


@pytest.mark.long
async def test_many_large_jobs_take_little_more_memory_than_their_payloads(make_app: MakeApp) -> None:
    """The payloads are kept until all of them are committed, for the call may have to be repeated."""
    hf = make_app(embedded=False)

    @hf.job
    async def work(text: str) -> None: ...

    await work.enqueue("what a process does once")
    tracemalloc.start()
    try:
        jobs = await work.enqueue_many((f"{number} {'x' * LARGE}",) for number in range(MANY_LARGE))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < LARGE * MANY_LARGE + 6 * 8_388_608
    assert len(await hf.jobs.list(limit=100)) == 1 + len(jobs)


@pytest.mark.long
async def test_many_large_jobs_are_accepted_in_their_order(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)

    @hf.job
    async def work(text: str) -> None: ...

    texts = [f"{number} {'x' * LARGE}" for number in range(20)]
    jobs = await work.enqueue_many((text,) for text in texts)
    rows = sorted(await hf.jobs.list(limit=100), key=lambda row: row.seq)
    assert [row.id for row in rows] == [job.id for job in jobs]
    assert [row.payload["text"] for row in rows] == texts
