"""Agents that are called by agents."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import UsageError
from holdfast.models.script import Script, call, say
from tests.support.apps import eventually


async def test_a_delegate_keeps_its_model_and_what_it_requires(hf: Holdfast) -> None:
    hf.script("inner", Script(say("inner")))
    hf.script("outer", Script(call("gpu", task="think"), say("outer")))
    hf.script("other", Script(call("gpu", task="think"), say("other")))
    inner = hf.agent("gpu", model="scripted:inner", requires=["tag:gpu=yes"], priority=7)
    outer = hf.agent("lead", model="scripted:outer", agents=[inner])
    await hf.ensure_worker()
    run = await outer.enqueue("Go", model="scripted:other")
    child = (await eventually(lambda: _children(hf, run.id)))[0]
    assert (await hf.jobs.get(child.id)).priority == 7
    assert "tag:gpu=yes" in str(await hf.why(child.id))
    await run.cancel()


async def _children(hf: Holdfast, run: str) -> list[Any]:
    return list(await hf.runs[run].children())


@pytest.mark.parametrize("name", ["research agent", "gpu!", "ü", "a" * 129])
async def test_an_agent_that_is_called_has_a_name_for_a_tool(hf: Holdfast, name: str) -> None:
    called = hf.agent(name, model="scripted:")
    with pytest.raises(UsageError, match="cannot be called by agent 'lead' under its name"):
        hf.agent("lead", model="scripted:", agents=[called])
    with pytest.raises(UsageError, match="cannot be called by agent 'lead' under its name"):
        await hf.agents.create("lead", model="scripted:", agents=[called])
    with pytest.raises(UsageError, match=r"must come from hf\.agent; got 'called'"):
        hf.agent("lead", model="scripted:", agents=["called"])  # type: ignore[list-item]
