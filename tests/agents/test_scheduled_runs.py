"""Agents on a schedule: each tick makes one run, whoever fires it and whatever dies, and the run knows its tick."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.durations import next_tick
from holdfast.errors import BadSetting, UsageError
from holdfast.kernel.schedules import due_schedules, fire
from holdfast.models.script import say
from holdfast.testing import Labs
from tests.support.agents import scripted

SEVEN = datetime(2030, 1, 7, 7, tzinfo=UTC)  # a Monday


def hf_without_a_database() -> Holdfast:
    return Holdfast("sqlite:////nowhere/at-all.db")


async def test_each_tick_makes_one_run_that_knows_it(labs: Labs) -> None:
    hf = hf_without_a_database()
    guide = hf.agent("guide", model=scripted(hf, say("all quiet")))
    hf.schedule("0 7 * * 1-5", agent=guide, prompt="Sum up.", session="briefing", metadata={"of": "clock"})
    lab = await labs.use(hf, now=SEVEN.replace(hour=6))
    (schedule,) = await hf.schedules.list()
    assert (schedule.name, schedule.kind, schedule.next_at) == ("guide", "system:start:guide", SEVEN)
    for day in (7, 8):
        await lab.clock.advance("1h" if day == 7 else "24h")
        await lab.drain()
    runs = await hf.runs.list()
    assert [(run.state, run.metadata) for run in runs] == [
        ("completed", {"of": "clock", "scheduled_for": f"2030-01-0{day}T07:00:00+00:00"}) for day in (8, 7)
    ]
    assert len({run.session for run in runs}) == 1


async def test_whoever_races_for_a_tick_and_whatever_dies_there_is_one_run(labs: Labs) -> None:
    hf = hf_without_a_database()
    hf.agent("guide", model=scripted(hf, say("all quiet")))
    hf.schedule("0 7 * * *", agent="guide", prompt="Sum up.", name="briefing", catch_up="all")
    lab = await labs.use(hf, now=SEVEN.replace(hour=6))
    await lab.clock.advance("25h")
    database = await core_of(hf).opened()
    (due,) = await database.transact(due_schedules, limit=10)
    fired = await asyncio.gather(*(database.transact(fire, due, next_tick) for _ in range(4)))
    assert sorted(map(len, fired)) == [0, 0, 0, 2]
    lab.crash(before="complete_and_settle")
    await lab.drain()
    assert len(lab.crashes) == 1, "the worker died before it could say what it had done"
    await lab.clock.advance("1m")  # a job whose connection died with the worker is tried again
    await lab.drain()
    assert {job.state for job in await hf.jobs.list(kind="system:start:briefing")} == {"succeeded"}
    ticks = [run.metadata["scheduled_for"] for run in await hf.runs.list()]
    assert sorted(ticks) == ["2030-01-07T07:00:00+00:00", "2030-01-08T07:00:00+00:00"]


async def test_it_is_run_by_hand_and_for_an_agent_in_the_store(labs: Labs) -> None:
    hf = hf_without_a_database()
    model = scripted(hf, say("all quiet"))
    hf.schedule("@daily", agent="stored", prompt=["Sum", "up."])
    lab = await labs.use(hf, now=SEVEN)
    await hf.agents.create("stored", model=model)
    job = await hf.schedules.run("stored")
    await lab.drain()
    (run,) = await hf.runs.list()
    assert (await job.result())["run"] == run.id
    assert run.metadata == {"scheduled_for": SEVEN.isoformat()}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"agent": "guide"}, "needs agent= and prompt="),
        ({"prompt": "Go"}, "needs agent= and prompt="),
        ({"agent": "guide", "prompt": "Go", "args": {}}, "takes no args="),
        ({"agent": 7, "prompt": "Go"}, "an agent or its name"),
        ({"agent": "guide", "prompt": ""}, "the prompt is empty"),
        ({"agent": "guide", "prompt": "Go", "session": 7}, "the key of a session"),
        ({"agent": "guide", "prompt": "Go", "session": ""}, "a session's key must have 1 to 512"),
        ({"agent": "guide", "prompt": "Go", "during": "never"}, "during"),
        ({"agent": "guide", "prompt": "Go", "answer_within": "nonsense"}, "'nonsense' is not a duration"),
        ({"agent": "guide", "prompt": "Go", "mode": "nope"}, 'mode must be "streaming" or "batch"'),
        ({"agent": "guide", "prompt": "Go", "model": ""}, "the name of a model, but it is empty"),
        ({"agent": "guide", "prompt": "Go", "variables": {"a": b"x"}}, "variables"),
        ({"agent": "guide", "prompt": "Go", "metadata": {"a": {1}}}, "metadata"),
    ],
    ids=str,
)
def test_what_cannot_be_scheduled_is_refused_where_it_is_declared(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        hf_without_a_database().schedule("@daily", **given)
    with pytest.raises(TypeError, match=r"schedule\(\) got an unexpected keyword argument 'key'"):
        hf_without_a_database().schedule("@daily", agent="guide", prompt="Go", key="k")  # type: ignore[call-overload]
    with pytest.raises(BadSetting, match="not a cron expression"):
        hf_without_a_database().schedule("at dawn", agent="guide", prompt="Go")


def test_a_second_schedule_of_an_agent_needs_a_name(caplog: pytest.LogCaptureFixture) -> None:
    hf = hf_without_a_database()
    guide = hf.agent("guide", model="scripted:")
    hf.schedule("0 7 * * *", agent=guide, prompt="Good morning.")
    with pytest.raises(UsageError, match="there is already a schedule 'guide'; give this one name="):
        hf.schedule("0 19 * * *", agent=guide, prompt="Good night.")
    hf.schedule("0 19 * * *", agent=guide, prompt="Good night.", name="guide at night")
    assert [each.name for each in core_of(hf).registry.schedules] == ["guide", "guide at night"]
    assert not caplog.records, "the agent has a model, so nothing is said of one"


def test_the_metadata_of_a_scheduled_run_leave_room_for_its_tick() -> None:
    hf = hf_without_a_database()
    with pytest.raises(UsageError, match="metadata"):
        hf.schedule("@daily", agent="guide", prompt="Go", metadata={"a": "x" * (hf.settings.metadata_cap - 40)})
