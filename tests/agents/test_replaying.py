"""A run is played again from its record, and from a capsule of it, without its tools and without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Holdfast, Limits
from holdfast.agents.api.run import Run
from holdfast.errors import UsageError
from holdfast.models.script import Script, call, calls, refuse, say, think, truncate
from holdfast.testing import Lab, Labs
from tests.support.agents import MODEL, settle


class Works:
    """An agent with all that a run can do, and what its tools did."""

    def __init__(self, **options: Any) -> None:
        self.hf = Holdfast("sqlite:////nowhere/at-all.db")
        self.did: list[str] = []

        @self.hf.tool(effect="read")
        def look(what: str) -> str:
            """Look."""
            self.did.append(what)
            return f"saw {what} {len(self.did)}"

        @self.hf.tool(effect="once", approve=True)
        def pay(amount: int) -> str:
            """Pay."""
            self.did.append(f"paid {amount}")
            if amount > 5:
                raise ValueError("too much")
            return "paid"

        below = self.hf.agent("below", model="scripted:", tools=[look])
        self.agent = self.hf.agent("works", model="scripted:", tools=[look, pay], agents=[below], **options)


async def played(lab: Lab, works: Works, prompt: str = "Go", **options: Any) -> Run[str]:
    run = await works.agent.enqueue(prompt, **options)
    for _ in range(10):
        await lab.drain()
        for inquiry in await works.hf.inquiries.list():
            await works.hf.approve(inquiry.id)
    assert run.state in ("completed", "failed")
    return run


class _Below(Script):
    """The agent below just answers."""

    def __init__(self, *steps: Any) -> None:
        super().__init__(*steps)
        self._below = Script(call("look", what="below"), say("from below"))

    def turn(self, body: Any) -> Any:
        return super().turn(body) if len(body.get("tools") or []) > 1 else self._below.turn(body)


STEPS = (
    think("hm"),
    calls(call("look", what="a"), call("look", what="a")),
    call("pay", amount=3),
    think("well"),
    call("pay", amount=9),
    call("below", task="Look"),
    call("fly", to="moon"),
    think("so"),
    say("All done."),
)


async def test_a_run_comes_to_the_same_end_and_asks_for_the_same(labs: Labs) -> None:
    works = Works()
    lab = await labs.use(works.hf, _Below(*STEPS))
    session = await works.hf.session("s")
    await played(lab, works, "Before", session=session)
    run = await played(lab, works, session=session)
    did = list(works.did)
    replayed = await works.hf.runs.replay(run)
    assert replayed.differences == ()
    assert (replayed.same, replayed.turns) == (True, 6)
    assert (replayed.same_requests, replayed.known_requests) == (6, 6)
    assert replayed.comparison.same_answer
    assert works.did == did
    assert len(await works.hf.runs.list()) == 4  # two, each with one below it: the replay was elsewhere


async def test_a_capsule_is_replayed_where_nothing_of_the_program_is(labs: Labs, tmp_path: Path) -> None:
    works = Works()
    lab = await labs.use(works.hf, _Below(*STEPS))
    run = await played(lab, works)
    await run.export(tmp_path / "plain.db")
    secret = await played(lab, works, "Use sk-abcdefghijkl")
    await secret.export(tmp_path / "secret.db")
    for file, known in (("plain.db", 6), ("secret.db", 0)):
        id = run.id if file == "plain.db" else secret.id
        before = (tmp_path / file).read_bytes()
        async with Holdfast(f"sqlite:///{tmp_path / file}", embedded=False) as elsewhere:
            replayed = await elsewhere.runs.replay(id)
            assert replayed.differences == ()
            assert (replayed.same_requests, replayed.known_requests) == (known, known)
            assert len(await elsewhere.runs.list()) == 2  # the run and the one below it; the replay was elsewhere
        assert len((tmp_path / file).read_bytes()) == len(before)


async def test_who_pays_does_not_matter(labs: Labs, monkeypatch: pytest.MonkeyPatch) -> None:
    works = Works()
    thinker = works.hf.agent("thinker", model=MODEL)
    await labs.use(works.hf, Script(think("hm"), say("said")))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "one")
    await thinker.run("One", session="s")
    result = await thinker.run("Two", session="s")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "another")
    replayed = await works.hf.runs.replay(result.run_id)
    assert (replayed.differences, replayed.same_requests) == ((), 1)
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    assert (await works.hf.runs.replay(result.run_id)).same


async def test_a_run_that_was_steered_is_steered_again(labs: Labs) -> None:
    works = Works()

    def steered(messages: list[Any]) -> Any:
        texts = [block.get("text") for message in messages for block in message["content"]]
        return say("stopped") if "Stop" in texts else call("pay", amount=1)

    lab = await labs.use(works.hf, Script(steered, steered))
    run = await works.agent.enqueue("Go")
    await lab.drain()
    await run.steer("Stop")
    await works.hf.approve(run.id)
    await lab.drain()
    assert (await run.result()).text == "stopped"
    assert (await works.hf.runs.replay(run)).differences == ()


async def test_what_a_person_decided_about_the_run_is_decided_again(labs: Labs) -> None:
    works = Works(on_max_tokens="ask")

    def cut(messages: list[Any]) -> Any:
        return truncate("half") if len(messages) == 1 else say("whole")

    lab = await labs.use(works.hf, Script(cut))
    run = await works.agent.enqueue("Go")
    await lab.drain()
    await works.hf.answer(run.id, "Go on, please.")
    await lab.drain()
    replayed = await works.hf.runs.replay(run.id)
    assert (run.state, replayed.differences) == ("completed", ())


async def test_a_refusal_and_a_fork_are_replayed(labs: Labs) -> None:
    works = Works()
    lab = await labs.use(works.hf, Script(call("look", what="a"), refuse("bio")))
    run = await played(lab, works)
    assert (await works.hf.runs.replay(run)).differences == ()
    fork = await run.fork(2)
    await lab.drain()
    assert (await works.hf.runs.replay(fork)).differences == ()


async def ended(lab: Lab, run: Run[str]) -> tuple[str, str | None, str | None]:
    (row,) = await settle(lab, run)
    return row.state, row.outcome, row.error_type


async def same_again(works: Works, run: Run[str], tmp_path: Path) -> None:
    """Replayed here and from a capsule, it comes to the end it came to."""
    before = await run.refresh()
    await run.export(tmp_path / f"{run.id}.db")
    async with Holdfast(f"sqlite:///{tmp_path / run.id}.db", embedded=False) as elsewhere:
        for app in (works.hf, elsewhere):
            replayed = await app.runs.replay(run.id)
            assert replayed.differences == ()
            after = replayed.comparison.b.run
            assert (after.state, after.outcome, after.limited) == (before.state, before.outcome, before.limited)
            assert (after.error_type, after.turns) == (before.error_type, before.turns)


async def test_a_run_that_failed_fails_again(labs: Labs, tmp_path: Path) -> None:
    works = Works()

    def broken(_messages: list[Any]) -> Any:
        raise UsageError("not today")

    lab = await labs.use(works.hf, Script(call("look", what="a"), broken))
    run = await works.agent.enqueue("Go")
    state, _, kind = await ended(lab, run)
    assert (state, kind) == ("failed", "streaming_error")
    await same_again(works, run, tmp_path)


@pytest.mark.parametrize("when", ["before", "waiting"])
async def test_a_run_that_was_cancelled_is_cancelled_again(labs: Labs, tmp_path: Path, when: str) -> None:
    works = Works()
    lab = await labs.use(works.hf, Script(calls(call("look", what="a"), call("pay", amount=3)), say("done")))
    run = await works.agent.enqueue("Go")
    if when == "waiting":
        await lab.drain()
        assert run.state == "awaiting_input"
    await run.cancel("no more")
    assert (await ended(lab, run))[0] == "cancelled"
    if when == "waiting":
        await same_again(works, run, tmp_path)
    else:
        with pytest.raises(UsageError, match="has not begun: there is nothing to replay"):
            await works.hf.runs.replay(run)


@pytest.mark.long
async def test_a_run_that_ran_out_of_time_or_money_ends_there_again(labs: Labs, tmp_path: Path) -> None:
    works = Works()
    lab = await labs.use(works.hf, Script(call("pay", amount=3), say("done")))
    late = await works.agent.enqueue("Go", limits=Limits(time="1m"))
    await lab.drain()
    await lab.clock.advance("2m")
    await lab.approve(late)
    assert await ended(lab, late) == ("completed", "limited", None)
    await same_again(works, late, tmp_path)
    await lab.budget("0.05")
    lab.price("0.04")
    dear = await works.agent.enqueue("Go")
    await lab.drain()
    await lab.approve(dear)
    assert await ended(lab, dear) == ("completed", "limited", None)
    await same_again(works, dear, tmp_path)


async def test_a_run_that_was_interrupted_between_its_turns_ends_there_again(labs: Labs, tmp_path: Path) -> None:
    works = Works()
    lab = await labs.use(works.hf, Script(call("pay", amount=3), say("done")))
    run = await works.agent.enqueue("Go")
    await lab.drain()
    await run.interrupt()
    assert await ended(lab, run) == ("completed", "truncated", None)
    await same_again(works, run, tmp_path)


async def test_a_run_that_goes_on_where_it_had_ended_is_told_of(labs: Labs, tmp_path: Path) -> None:
    works = Works()
    lab = await labs.use(works.hf, Script(say("done")))
    run = await works.agent.enqueue("Go")
    await lab.drain()
    await run.export(tmp_path / "run.db")
    file = apsw.Connection(str(tmp_path / "run.db"))
    file.execute("update turn set stop_reason = 'pause_turn'")
    file.close()
    async with Holdfast(f"sqlite:///{tmp_path / 'run.db'}", embedded=False) as elsewhere:
        replayed = await elsewhere.runs.replay(run.id)
        (difference,) = replayed.differences
        assert "the record has no turn 2" in difference
        assert difference.endswith(", not answered")


async def test_what_there_is_of_a_run_under_way_is_replayed(labs: Labs, tmp_path: Path) -> None:
    works = Works()
    lab = await labs.use(works.hf, Script(call("pay", amount=3), say("done")))
    run = await works.agent.enqueue("Go")
    with pytest.raises(UsageError, match="has not begun: there is nothing to export"):
        await run.export(tmp_path / "nothing.db", partial=True)
    await lab.drain()
    await run.export(tmp_path / "run.db", partial=True)
    async with Holdfast(f"sqlite:///{tmp_path / 'run.db'}", embedded=False) as elsewhere:
        assert (await elsewhere.runs.replay(run.id)).differences == ()


async def test_a_run_that_is_under_way_is_not_replayed(labs: Labs) -> None:
    works = Works()
    await labs.use(works.hf, Script(say("x")))
    run = await works.agent.enqueue("Go")
    with pytest.raises(UsageError, match="wait for its end"):
        await works.hf.runs.replay(run)
