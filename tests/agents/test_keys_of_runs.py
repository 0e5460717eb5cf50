"""Keys of runs: a message that is sent again under its key is the same run, however the call is spelled."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.agents.runs.inbox import During
from holdfast.errors import IdempotencyConflict
from holdfast.models.script import say
from tests.support.agents import scripted


@pytest.mark.parametrize("during", ["queue", "coalesce"])
async def test_a_key_stands_for_its_session_however_it_is_named(hf: Holdfast, during: During) -> None:
    agent = hf.agent("a", model=scripted(hf, say("ok")))
    first = await agent.enqueue("Go", session="s", during=during, key="k")
    session = await hf.session("s")
    for spelling in ("s", session, session.id, session.id.upper()):
        assert (await agent.enqueue("Go", session=spelling, during=during, key="k")).id == first.id
    other = await agent.enqueue("Go", session=session.id, during=during, key="by id")
    assert (await agent.enqueue("Go", session="s", during=during, key="by id")).id == other.id
    with pytest.raises(IdempotencyConflict):
        await agent.enqueue("Go", session="t", during=during, key="k")


@pytest.mark.parametrize("during", ["queue", "coalesce"])
async def test_the_handle_of_a_run_that_was_there_already_claims_no_state(hf: Holdfast, during: During) -> None:
    """It has not looked: the run may have ended long ago."""
    agent = hf.agent("a", model=scripted(hf, say("ok")))
    first = await agent.enqueue("Go", session="s", during=during, key="k")
    assert first.state == "pending"
    await first.cancel()
    again = await agent.enqueue("Go", session="s", during=during, key="k")
    assert (again.id, again.fresh, again.state) == (first.id, False, None)
    await again.refresh()
    assert again.state == "cancelled"
