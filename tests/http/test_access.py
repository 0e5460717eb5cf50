"""Tokens, logins, the audit and answered requests, as Python has them."""

from __future__ import annotations

import asyncio
import time

import pytest

from holdfast import Holdfast
from holdfast.access.access import IDLE_US
from holdfast.access.principals import Principal, os_user
from holdfast.access.tokens import hashed
from holdfast.app import core_of
from holdfast.errors import NotFound, RequestConflict, UsageError
from holdfast.http import web
from tests.http.client import Client
from tests.http.test_api import guide
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


async def expire(hf: Holdfast, token: str) -> None:
    """Let the time of a token be over."""
    await tamper(hf, f"update holdfast.token set expires_at = 1 where id = '{token}'")


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


async def test_a_login_that_nobody_has_used_for_long_is_not_live(hf: Holdfast) -> None:
    """Neither for a request nor for a stream that it began."""
    old, new = [await hf.access.logins.begin(ANN) for _ in range(2)]
    await tamper(hf, f"update holdfast.login set seen_at = seen_at - {IDLE_US} where hash = '{hashed(old)}'")
    assert await hf.access.logins.live([old, new]) == {new}
    assert await hf.access.logins.principal(old) is None
    assert await hf.access.logins.principal(new) == ANN


async def test_a_login_ends_with_the_token_that_it_was_made_with(hf: Holdfast) -> None:
    made = await hf.access.tokens.create("ann", lasts="90d")
    principal = await hf.access.tokens.principal(made.secret)
    assert principal is not None
    cookie, own = await hf.access.logins.begin(principal), await hf.access.logins.begin(ANN)
    assert await hf.access.logins.principal(cookie) == principal
    await expire(hf, made.id)
    assert await hf.access.logins.principal(cookie) is None
    assert await hf.access.logins.live([cookie, own]) == {own}


async def audited(hf: Holdfast) -> list[tuple[str, str, str, str]]:
    rows = await hf.access.audit.list()
    return [(row.actor, row.action, row.subject, row.phase) for row in reversed(rows)]


async def test_what_a_program_changes_is_in_the_audit_by_the_name_of_its_user(hf: Holdfast) -> None:
    user = f"{os_user()} (python)"
    run = await guide(hf).enqueue("Hello")
    assert await audited(hf) == [], "to start a run is work"
    await hf.queues.pause("default", reason="a release")
    await hf.runs[run.id].cancel()
    token = await hf.access.tokens.create("ci", by="bob")
    assert await audited(hf) == [
        (user, "queues pause", "default", "intent"),
        (user, "queues pause", "default", "outcome"),
        (user, "runs cancel", run.id, "intent"),
        (user, "runs cancel", run.id, "outcome"),
        ("bob", "tokens create", "ci", "intent"),
        ("bob", "tokens create", "ci", "outcome"),
    ]
    assert token.secret not in str(await hf.access.audit.list())
    with pytest.raises(NotFound):
        await hf.schedules.pause("nothing")
    assert (await hf.access.audit.list(limit=1))[0].detail == {"error": "NotFound"}
    assert (await hf.access.audit.verify()).broken is None


async def test_many_changes_of_one_call_are_one_entry(hf: Holdfast) -> None:
    agent = guide(hf)
    for n in range(3):
        await agent.enqueue(f"n{n}")
    assert (await hf.runs.cancel_some(agent="guide", dry_run=True)).matched == 3
    assert await audited(hf) == []
    assert (await hf.runs.cancel_some(agent="guide")).changed == 3
    assert [each[1:] for each in await audited(hf)] == [
        ("runs cancel", "agent=guide", "intent"),
        ("runs cancel", "agent=guide", "outcome"),
    ]


async def test_a_program_may_say_who_asked_for_a_change(hf: Holdfast) -> None:
    async with hf.access.audit.recording("ann", "release", "v2"):
        await hf.queues.pause("default")
        await hf.queues.resume("default")
    assert [each[:2] for each in await audited(hf)] == [("ann", "release")] * 2


async def test_what_a_worker_changes_is_not_in_the_audit(hf: Holdfast) -> None:
    """Handlers pause, cancel and approve as part of their work, on threads too."""

    @hf.job
    async def close_down() -> None:
        await hf.queues.pause("other")

    @hf.job
    def open_up() -> None:
        hf.sync(hf.queues.resume("other"))

    await close_down.run()
    await open_up.run()
    assert await audited(hf) == []


async def test_a_cookie_is_found_among_hostile_ones(hf: Holdfast) -> None:
    """Who asks need not be known for their cookies to be read."""
    client = Client(web(hf))
    made = await hf.access.tokens.create("ann", role="admin")
    login = await client.call("POST", "/login", {"token": made.secret}, headers={"sec-fetch-site": "same-origin"})
    cookie = login.headers["set-cookie"].partition(";")[0]
    hostile = 'a="' + "\\" * 60_000 + '"'
    begun = time.process_time()
    told = await client.call("GET", "/api/v1/runs", headers={"cookie": f"{hostile}; {cookie}; b"})
    assert told.status == 200, told.body
    assert (await client.call("GET", "/api/v1/runs", headers={"cookie": hostile})).status == 401
    assert time.process_time() - begun < 2, "Python's own reader takes six seconds for each"
