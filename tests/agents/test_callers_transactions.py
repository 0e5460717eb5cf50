"""Sessions, runs and messages in a transaction of the caller's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.errors import UsageError
from holdfast.models.script import Script, say
from holdfast.testing import Labs
from tests.conftest import Place
from tests.support.agents import scripted
from tests.support.apps import MakeApp, working


async def test_a_callers_open_transaction_stops_nobody(make_app: MakeApp, place: Place) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("busy", model="scripted:")
    first = await agent.enqueue("One", session="shared")
    if not place.url.startswith("postgres"):
        async with working(hf):  # a file has one writer: an open transaction of the caller's stops everybody
            assert await first.text() == "One"
        return
    with psycopg.connect(place.url) as mine:
        for session in ("shared", "other"):
            agent.enqueue_sync("Two", session=session, tx=mine)
        with psycopg.connect(place.url) as theirs:
            agent.enqueue_sync("Three", session="third", tx=theirs)
            async with working(hf):
                assert await first.text() == "One"
            theirs.rollback()
        mine.rollback()


async def test_a_session_that_was_rolled_back_is_made_at_its_next_use(make_app: MakeApp, place: Place) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    await core_of(hf).runtime().open()
    for commit in (False, True):
        async with transaction(place, commit=commit) as tx:
            session = await hf.session(f"s {commit}", tx=tx)
        run = await agent.enqueue("Go", session=session)
        assert run.session_id == session.id == (await hf.sessions.get(f"s {commit}")).id
        assert (await session.send("Go on", agent)).session_id == session.id
        assert len(await session.runs()) == 2


@asynccontextmanager
async def transaction(place: Place, *, commit: bool) -> AsyncIterator[Any]:
    if place.url.startswith("sqlite"):
        file = apsw.Connection(place.url.removeprefix("sqlite:///"))
        file.execute("begin immediate")
        yield file
        file.execute("commit" if commit else "rollback")
        file.close()
        return
    connection = await psycopg.AsyncConnection.connect(place.direct)
    yield connection
    await (connection.commit() if commit else connection.rollback())
    await connection.close()


NOWHERE = "sqlite:////nowhere/at-all.db"


async def test_steering_in_a_callers_transaction_is_refused(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = hf.agent("guide", model="scripted:")
    await labs.use(hf, Script(say("hello")))
    with pytest.raises(UsageError, match="leave tx out"):
        await agent.enqueue("Hi", session="s", during="steer", tx=object())
