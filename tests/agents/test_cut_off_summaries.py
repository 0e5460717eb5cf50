"""A summary that is not whole."""

from __future__ import annotations

import pytest

from holdfast import Compaction, Holdfast
from holdfast.models.script import Script, truncate
from tests.support.compaction import SUMMARY, talk, talker


async def test_a_summary_that_was_cut_off_replaces_nothing(hf: Holdfast) -> None:
    from holdfast.models import ModelFailure
    from holdfast.models.scripted import ScriptedModel

    agent, _ = talker(hf, {"scripted:cut": ScriptedModel(Script(truncate(SUMMARY[:10])))})
    session = await hf.session("s")
    await talk(session, agent, 4)
    before = [message.id for message in await session.messages()]
    config = Compaction(strategy="summarize", protected_tokens=50, preserve_last=2, summarizer="scripted:cut")
    with pytest.raises(ModelFailure):
        await session.compact(config)
    assert [message.id for message in await session.messages()] == before
