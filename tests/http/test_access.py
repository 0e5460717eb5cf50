"""Tokens, logins, the audit and answered requests, as Python has them."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.app import core_of
from holdfast.errors import NotFound, RequestConflict, UsageError
from tests.support.apps import MakeApp

ANN = Principal("ann", "admin")


async def test_a_token_is_shown_once_and_says_who_shows_it(hf: Holdfast) -> None:
    made = await hf.access.tokens.create("ci", role="operator", tenant="acme", lasts="1h", by="ann")
    assert len(made.secret) == len("hft_") + 43
    assert await hf.access.tokens.principal(made.secret) == Principal("ci", "operator", "acme", token=made.id)
    assert await hf.access.tokens.principal(made.secret[:-1]) is None
    (listed,) = await hf.access.tokens.list()
    assert (listed.state, listed.created_by) == ("live", "ann")
    assert not hasattr(listed, "secret")


async def test_a_revoked_token_ends_its_logins(hf: Holdfast) -> None:
    made = await hf.access.tokens.create("ci")
    principal = await hf.access.tokens.principal(made.secret)
    assert principal is not None
    login = await hf.access.logins.begin(principal)
    other = await hf.access.logins.begin(ANN)
    assert await hf.access.logins.principal(login) == principal
    assert (await hf.access.tokens.revoke(made.id)).state == "revoked"
    assert (await hf.access.tokens.revoke(made.id)).state == "revoked"
    assert await hf.access.tokens.principal(made.secret) is None
    assert await hf.access.logins.principal(login) is None
    assert await hf.access.logins.live([login, other]) == {other}
    assert await hf.access.tokens.live([made.id]) == frozenset()
    assert not await hf.access.tokens.any_live()


async def test_rotation_keeps_two_live_for_a_time(hf: Holdfast) -> None:
    made = await hf.access.tokens.create("ci", scopes=["metrics"])
    new = await hf.access.tokens.rotate(made.id, overlap="1h")
    assert new.scopes == ["metrics"]
    assert await hf.access.tokens.principal(made.secret) is not None
    newest = await hf.access.tokens.rotate(new.id, overlap="0s")
    assert await hf.access.tokens.principal(new.secret) is None
    assert await hf.access.tokens.principal(newest.secret) is not None
    with pytest.raises(UsageError, match="is expired: create a new one"):
        await hf.access.tokens.rotate(new.id)
    with pytest.raises(NotFound, match="there is no token"):
        await hf.access.tokens.revoke("nothing")


async def test_a_link_logs_in_once(hf: Holdfast) -> None:
    link = await hf.access.logins.link(ANN)
    sessions = await asyncio.gather(*(hf.access.logins.use(link) for _ in range(5)))
    (session,) = [each for each in sessions if each is not None]
    assert await hf.access.logins.principal(session) == ANN
    assert await hf.access.logins.principal(link) is None
    await hf.access.logins.end(session)
    assert await hf.access.logins.principal(session) is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("update holdfast.audit set actor = 'bob' where seq = 2", "row 2 was changed"),
        ("delete from holdfast.audit where seq = 2", "row 2 is missing"),
        ("delete from holdfast.audit where seq = 3", "rows after 2 are missing: there were 3"),
    ],
)
async def test_the_audit_notices_what_was_changed(make_app: MakeApp, change: str, problem: str) -> None:
    hf = make_app()
    await asyncio.gather(*(hf.access.audit.add(ANN, "runs cancel", f"run {n}", detail={"n": n}) for n in range(3)))
    assert (await hf.access.audit.verify()).broken is None
    assert [row.seq for row in await hf.access.audit.list(limit=2)] == [3, 2]
    await tamper(hf, change)
    found = await hf.access.audit.verify()
    assert (found.broken, found.problem) == (found.rows + 1, problem)


async def tamper(hf: Holdfast, change: str) -> None:
    database = await core_of(hf).opened()
    text = change if database.dialect == "postgres" else change.replace("holdfast.", "")
    stored = await database.stored_schema()
    assert stored is not None
    assert await database.script([text], at=stored.version)


async def test_the_same_request_again_gets_the_same_answer(hf: Holdfast) -> None:
    requests = hf.access.requests
    assert await requests.take("acme", "k", "digest") is None
    with pytest.raises(RequestConflict, match="not answered yet"):
        await requests.take("acme", "k", "digest")
    await requests.answered("acme", "k", 201, '{"id":"1"}')
    answered = await requests.take("acme", "k", "digest")
    assert answered is not None
    assert (answered.status, answered.answer) == (201, '{"id":"1"}')
    with pytest.raises(RequestConflict, match="another request"):
        await requests.take("acme", "k", "other")
    assert await requests.take("other tenant", "k", "other") is None
    await requests.free("other tenant", "k")
    assert await requests.take("other tenant", "k", "digest") is None
