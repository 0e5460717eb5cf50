"""A run is played again from its record, and from a capsule of it, without its tools and without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.handles import Run
from holdfast.errors import UsageError
from holdfast.models.script import Script, call, calls, refuse, say, think, truncate
from holdfast.testing import Lab, Labs
from tests.support.agents import MODEL


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
    replayed = await works.hf.replay(run)
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
            replayed = await elsewhere.replay(id)
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
    replayed = await works.hf.replay(result.run_id)
    assert (replayed.differences, replayed.same_requests) == ((), 1)
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    assert (await works.hf.replay(result.run_id)).same


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
    assert (await works.hf.replay(run)).differences == ()


async def test_what_a_person_decided_about_the_run_is_decided_again(labs: Labs) -> None:
    works = Works(on_max_tokens="ask")

    def cut(messages: list[Any]) -> Any:
        return truncate("half") if len(messages) == 1 else say("whole")

    lab = await labs.use(works.hf, Script(cut))
    run = await works.agent.enqueue("Go")
    await lab.drain()
    await works.hf.answer(run.id, "Go on, please.")
    await lab.drain()
    replayed = await works.hf.replay(run.id)
    assert (run.state, replayed.differences) == ("completed", ())


async def test_a_refusal_and_a_fork_are_replayed(labs: Labs) -> None:
    works = Works()
    lab = await labs.use(works.hf, Script(call("look", what="a"), refuse("bio")))
    run = await played(lab, works)
    assert (await works.hf.replay(run)).differences == ()
    fork = await run.fork(2)
    await lab.drain()
    assert (await works.hf.replay(fork)).differences == ()


async def test_a_run_that_is_under_way_is_not_replayed(labs: Labs) -> None:
    works = Works()
    await labs.use(works.hf, Script(say("x")))
    run = await works.agent.enqueue("Go")
    with pytest.raises(UsageError, match="wait for its end"):
        await works.hf.replay(run)
