"""Automatic compaction that a worker claims which cannot ask the model: it is left to a worker that can."""

from __future__ import annotations

import pytest

from holdfast.agents.compaction.automatic import COMPACT
from holdfast.agents.compaction.config import Compaction
from holdfast.app import core_of
from holdfast.models.script import Script, say
from tests.support.agents import MODEL
from tests.support.apps import MakeApp, eventually, working

SOON = Compaction(
    window=20_000, trigger=0.1, target_tokens=500, preserve_last=0, protected_tokens=0, count_tokens=False
)


@pytest.mark.usefixtures("keyless")
async def test_a_worker_without_a_key_leaves_a_compaction_to_another(make_app: MakeApp) -> None:
    able, keyless = make_app(embedded=False), make_app(embedded=False)
    able.script(MODEL, Script(say("word " * 3_000)))
    agent = able.agent("a", model=MODEL, compaction=SOON)
    keyless.script("other", Script(say("x")))
    keyless.agent("a", model=MODEL, compaction=SOON)
    keyless.agent("b", model="scripted:other")  # which it can play: so it compacts for its agents
    run = await agent.enqueue("Hi. " * 2_000, session="s")
    core_of(able).registry.definitions.pop(COMPACT, None)
    async with working(able):
        await run.result()
    (job,) = await able.jobs.list(kind=COMPACT)

    async def tried() -> bool:
        return bool(await able.jobs.attempts(job.id))

    async with working(keyless):
        await eventually(tried)
    assert [attempt.outcome for attempt in await able.jobs.attempts(job.id)] == ["snoozed"]
    assert (await able.jobs.get(job.id)).state == "scheduled"
