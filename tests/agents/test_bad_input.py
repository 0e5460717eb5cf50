"""What callers give wrongly: the same plain error on both databases, before anything is stored."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from holdfast import Document, Holdfast, Limits, ServerTool
from holdfast.agents.api.agent import Agent
from holdfast.agents.runs import decision
from holdfast.errors import BadPayload, BadSetting, IdempotencyConflict, UsageError
from holdfast.models.script import Script, call, say
from holdfast.testing import Labs
from tests.support.agents import settle


@pytest.fixture
def desk(hf: Holdfast) -> Agent[str]:
    return hf.agent("desk", model="scripted:")


async def test_a_key_may_be_as_long_as_a_document(hf: Holdfast, desk: Agent[str]) -> None:
    """`key=str` makes a key of everything that is in the prompt."""
    papers: list[list[str | Document]] = [[f"p{n}", Document(bytes(range(256)) * 400, title=str(n))] for n in range(2)]
    first = await desk.enqueue_many(papers, key=str)
    again = await desk.enqueue_many(papers, key=str)
    assert [run.id for run in first] == [run.id for run in again]
    assert len({run.id for run in first}) == 2
    with pytest.raises(IdempotencyConflict):
        await desk.enqueue("something else", key=str(papers[0]))


async def test_a_key_of_a_job_may_be_long_too(hf: Holdfast) -> None:
    @hf.job(name="work")
    async def work(number: int) -> None: ...

    key = "".join(chr(0x4E00 + n) for n in range(9_000))
    first = await work.options(key=key, tenant="é" * 512).enqueue(1)
    assert (await work.options(key=key, tenant="é" * 512).enqueue(1)).id == first.id
    assert (await work.options(key=key + "!", tenant="é" * 512).enqueue(1)).id != first.id


@pytest.mark.parametrize("key", [42, "", "a\0b", "a\ud800", b"a"])
async def test_a_key_is_text_that_both_databases_hold(hf: Holdfast, desk: Agent[str], key: Any) -> None:
    @hf.job(name="work")
    async def work() -> None: ...

    with pytest.raises(BadPayload, match="an idempotency key"):
        await desk.enqueue("hi", key=key)
    with pytest.raises(BadPayload, match="an idempotency key"):
        await work.options(key=key).enqueue()


@pytest.mark.parametrize("tenant", [5, "a\0b", "t" * 513])
async def test_a_tenant_is_short_text(hf: Holdfast, desk: Agent[str], tenant: Any) -> None:
    @hf.job(name="work")
    async def work() -> None: ...

    with pytest.raises(BadPayload, match="a tenant"):
        await desk.enqueue("hi", tenant=tenant)
    with pytest.raises(BadPayload, match="a tenant"):
        await work.options(tenant=tenant).enqueue()
    with pytest.raises(BadPayload, match="a tenant"):
        hf.agent("other", model="scripted:", tenant=tenant)
    with pytest.raises(BadPayload, match="a tenant"):
        hf.session("ann", tenant=tenant)
    with pytest.raises(BadPayload, match="a tenant"):
        hf.tenant(tenant)


async def test_many_runs_are_accepted_or_none(hf: Holdfast, desk: Agent[str]) -> None:
    with pytest.raises(BadPayload, match="the prompt is empty"):
        await desk.enqueue_many(["a", "b", ""])
    with pytest.raises(IdempotencyConflict):
        await desk.enqueue_many(["a", "b"], key=lambda _prompt: "one key")
    assert await hf.runs.list() == []
    assert await hf.sessions.list() == []


@pytest.mark.long
async def test_many_runs_are_enqueued_in_their_order(hf: Holdfast, desk: Agent[str]) -> None:
    """Also when they are more than one transaction takes in."""
    runs = await desk.enqueue_many((str(n) for n in range(1_005)), key=lambda prompt: f"k{prompt}", priority=5)
    assert len({run.id for run in runs}) == 1_005
    rows = [await runs[place].refresh() for place in (0, 999, 1_000, 1_004)]
    assert [row.input for row in rows] == [[{"text": str(n), "type": "text"}] for n in (0, 999, 1_000, 1_004)]
    again = await desk.enqueue_many(["1004", "1005"], key=lambda prompt: f"k{prompt}")
    assert (again[0].id, again[1].state) == (runs[-1].id, "pending")


async def test_many_prompts_are_a_list_and_their_keys_a_function(desk: Agent[str]) -> None:
    with pytest.raises(UsageError, match=r"a list of prompts"):
        await desk.enqueue_many("abc")
    with pytest.raises(UsageError, match=r"key is a function"):
        await desk.enqueue_many(["abc"], key="k")  # type: ignore[arg-type]
    assert await desk.enqueue_many([]) == []


async def test_agents_may_call_agents_as_deep_as_they_like(labs: Labs) -> None:
    hf = Holdfast("sqlite:///never.db")
    sub = hf.agent("sub", model="scripted:sub")
    lead = hf.agent("lead", model="scripted:lead", agents=[sub], limits=Limits(depth=None))
    lab = await labs.use(
        hf, Script.by_agent({"lead": Script(call("sub", task="x"), say("done")), "sub": Script(say("ok"))})
    )
    run = await lead.enqueue("hi")
    await lab.drain()
    assert (await run.text(), len(lab.asked)) == ("done", 3)


async def test_a_fault_after_a_whole_answer_does_not_buy_another(labs: Labs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be decided the first time cannot the second: the answer is kept and paid for, and the run fails."""
    hf = Holdfast("sqlite:///never.db")

    @hf.tool(approve=True)
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    def faulty(*_about: object) -> str:
        raise ZeroDivisionError("a fault")

    agent = hf.agent("till", model="scripted:", tools=[pay])
    lab = await labs.use(hf, Script(call("pay", amount=1), say("done")))
    monkeypatch.setattr(decision, "digest_of_input", faulty)
    run = await agent.enqueue("hi")
    (row,) = await settle(lab, run)
    assert (row.state, row.turns, len(lab.asked)) == ("failed", 1, 1)
    assert "ZeroDivisionError: a fault" in str(row.error)
    assert [one.state for one in await run.calls()] == ["failed"]


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        ("inf", "not an amount"),
        ("nan", "not an amount"),
        ("abc", "not an amount"),
        ("", "not an amount"),
        ("99999999999", "more than"),
        ("1e400", "more than"),
        ("-1", "cannot be negative"),
        ("0.0000000001", "billionth"),
    ],
)
async def test_an_amount_of_money_is_one(hf: Holdfast, amount: str, words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        Limits(cost=amount)
    with pytest.raises(BadSetting, match=words):
        await hf.budgets.set(amount)
    with pytest.raises(BadSetting, match=words):
        await hf.budgets.set(Decimal(amount) if amount not in ("abc", "") else amount)


async def test_a_limit_of_no_money_and_a_period_of_no_time_are_refused(hf: Holdfast) -> None:
    with pytest.raises(BadSetting, match="more than 0"):
        Limits(cost="0")
    with pytest.raises(BadSetting, match="per"):
        await hf.budgets.set("1", per="0s")
    assert await hf.budgets.list() == []
    assert (await hf.budgets.set("0")).left == 0
    assert (await hf.budgets.set("9000000000.999999999", per="1d")).cost == Decimal("9000000000.999999999")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"variables": [1]}, "variables must be a dict"),
        ({"variables": "abc"}, "variables must be a dict"),
        ({"metadata": [1]}, "metadata must be a dict"),
        ({"at": "tomorrow"}, "at= must be a datetime"),
        ({"priority": "high"}, "priority must be a whole number"),
        ({"priority": 10**12}, "priority must be a whole number"),
        ({"limits": {"turns": 3}}, r"limits must be Limits\(…\)"),
        ({"session": 5}, "session must be a Session or a key"),
        ({"mode": "bogus"}, "mode"),
        ({"delay": "999999999w"}, "duration is too long"),
        ({"answer_within": "999999999w"}, "duration is too long"),
    ],
)
async def test_options_of_a_run_are_checked(
    hf: Holdfast, desk: Agent[str], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        await desk.enqueue("hi", **options)
    assert await hf.runs.list() == []


@pytest.mark.parametrize("prompt", [5, None, 1.5, object(), [5], {"text": "no type"}, b"bytes"])
async def test_a_prompt_is_text_or_what_can_be_shown(hf: Holdfast, desk: Agent[str], prompt: Any) -> None:
    with pytest.raises(UsageError):
        await desk.enqueue(prompt)
    run = await desk.enqueue("hi", delay="1h")
    with pytest.raises(UsageError):
        await run.steer(prompt)


async def test_what_sessions_and_runs_are_asked_is_checked(hf: Holdfast, desk: Agent[str]) -> None:
    run = await desk.enqueue("hi", session="ann")
    ann = hf.session("ann")
    given: Any
    for given in ("desk", None, 5):
        with pytest.raises(UsageError, match=r"agent that hf\.agent\(…\) returned"):
            await ann.send("hi", given)
    for given in ({"target_tokens": 5}, "hybrid", True):
        for asked in (ann.compact, ann.compact_if_needed, ann.needs_compaction, ann.compaction_stats):
            with pytest.raises(UsageError, match=r"config must be Compaction\(…\)"):
                await asked(given)
    for given in ("x", -1, 0, 1.5, True, 2**70):
        for listing in (hf.runs.list, hf.sessions.list, hf.agents.list, hf.batches.list, hf.inquiries.list):
            with pytest.raises(UsageError, match="limit must be a whole number"):
                await listing(limit=given)
        for listed in (ann.messages, ann.runs, ann.compactions):
            with pytest.raises(UsageError, match="limit must be a whole number"):
                await listed(limit=given)
    for listing in (hf.runs.list, hf.batches.list, hf.inquiries.list):
        with pytest.raises(UsageError, match="state must be one of"):
            await listing(state="bogus")
    for given in ("x", None, 1.5):
        with pytest.raises(UsageError, match=r"after must be (a whole number|what a page of the same list has)"):
            await run.events(given)
        with pytest.raises(UsageError, match="after must be a whole number"):
            await anext(run.stream(given))
    for given in ("x", "1.5"):
        with pytest.raises(UsageError, match="after must be what a page of the same list has"):
            await ann.messages(after=given)
    with pytest.raises(UsageError, match="redact must be a list"):
        await run.export("run.db", redact="abc", partial=True)
    with pytest.raises(UsageError, match="metadata must be a dict"):
        await ann.update(metadata=[1])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a session's key"):
        hf.session(5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="metadata must be a dict"):
        hf.session("bob", metadata=[1])  # type: ignore[arg-type]


async def test_what_is_asked_about_money_is_checked(hf: Holdfast) -> None:
    with pytest.raises(UsageError, match="session must be a Session, a session id or a key"):
        await hf.budgets.set("1", session=5)
    for when in ("2020-01-01", 5):
        with pytest.raises(UsageError, match="a date or a datetime"):
            await hf.budgets.used(since=when)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="a date or a datetime"):
            await hf.budgets.used(until=when)  # type: ignore[arg-type]


async def test_a_fork_of_a_session_is_at_one_message_and_its_key_names_one_fork(labs: Labs) -> None:
    hf = Holdfast("sqlite:///never.db")
    desk = hf.agent("desk", model="scripted:")
    lab = await labs.use(hf, Script(say("hi"), say("again")))
    session = await hf.session("ann")
    for text in ("One", "Two"):
        await session.send(text, desk)
        await lab.drain()
    fork = await session.fork(2, key="fk")
    assert (await session.fork(2, key="fk")).id == fork.id
    for other in (4, None):
        with pytest.raises(IdempotencyConflict, match="fk"):
            await session.fork(other, key="fk")
    with pytest.raises(UsageError, match=r"has no message 99: its last is 4"):
        await session.fork(99)
    given: Any
    for given in ("x", 1.5, True):
        with pytest.raises(UsageError, match="at must be a whole number"):
            await session.fork(given)
    with pytest.raises(UsageError, match="a session's key"):
        await session.fork(2, key=5)  # type: ignore[arg-type]


def test_two_agents_of_one_name_are_refused(hf: Holdfast) -> None:
    """A definition that is read twice is the same agent; a tenant may have an agent of its own."""

    def define(**changed: Any) -> Any:
        given = {"model": "scripted:", "tools": [ServerTool("web_search_20260318")], "limits": Limits(turns=3)}
        return hf.agent("guide", **{**given, **changed})

    first = define()
    assert define() is first
    assert define(tenant="acme") is not first
    changes: list[dict[str, Any]] = [
        {"instructions": "Be brief."},
        {"model": "scripted:other"},
        {"output": int},
        {"tools": []},
    ]
    for changed in changes:
        with pytest.raises(UsageError, match="two agents are declared as 'guide'; give one of them another name"):
            define(**changed)
