"""What a session has used is in a row beside its own: it is the sum of its runs and compactions, however they end."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.agents.doctor import examine_app
from holdfast.agents.queries import wrong_totals
from holdfast.app import core_of
from holdfast.models.script import Script, call, say
from tests.conftest import Place
from tests.support.past_kernel import query

pytestmark = pytest.mark.both

TOTAL = "select runs, turns, input_tokens, output_tokens, cost_nano from holdfast.session_total where session = '{}'"
SUMMED = """
select count(*), sum(turns), sum(input_tokens), sum(output_tokens), sum(cost_nano) from holdfast.run
where session = '{}' and finalized_at is not null
"""


async def used(hf: Holdfast, place: Place, session: str) -> tuple[int, ...]:
    (total,) = query(place, TOTAL.format(session))
    (summed,) = query(place, SUMMED.format(session))
    assert [int(each) for each in total] == [int(each) for each in summed]
    assert await core_of(hf).runtime().transact(wrong_totals) == []
    return tuple(int(each) for each in total)


async def test_totals_are_the_sum_of_what_ended(hf: Holdfast, place: Place) -> None:
    hf.script("clerk", Script(say("Found.")))
    hf.script("boss", Script(call("clerk", task="Look"), say("Done.")))
    clerk = hf.agent("clerk", model="scripted:clerk")
    boss, session = hf.agent("boss", model="scripted:boss", agents=[clerk]), hf.session("s")
    await boss.run("a", session=session)
    id = (await session.refresh()).id
    later = await boss.enqueue("b", session=session, delay="1h")
    assert {run.session for run in await hf.runs.list()} == {id}
    assert (await used(hf, place, id))[:2] == (2, 3)
    await later.cancel()
    assert (await used(hf, place, id))[:2] == (3, 3)
    usage = await session.usage()
    assert (usage.turns, usage.output_tokens > 0) == (3, True)


async def test_a_deleted_session_leaves_no_totals(hf: Holdfast, place: Place) -> None:
    hf.script("echo", Script(say("one")))
    session = hf.session("s")
    await hf.agent("echo", model="scripted:echo").run("a", session=session)
    assert len(query(place, "select session from holdfast.session_total")) == 1
    await session.delete()
    assert query(place, "select session from holdfast.session_total") == []


async def test_the_doctor_says_which_totals_are_wrong(hf: Holdfast, place: Place) -> None:
    hf.script("echo", Script(say("one")))
    session = hf.session("s")
    await hf.agent("echo", model="scripted:echo").run("a", session=session)
    query(place, "update holdfast.session_total set turns = turns + 1")
    (found,) = [each for each in await examine_app(core_of(hf)) if each.check == "sessions"]
    assert (await session.refresh()).id in found.sentence
