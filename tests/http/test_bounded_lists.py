"""Lists that find what is rare by an index, say how many there are, and look no further than they say."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Holdfast, Retry
from holdfast.access.principals import Principal
from holdfast.agents.listings import LOOK, SessionFilters, message_page, session_page
from holdfast.errors import RunFailed
from holdfast.kernel.queries import JobFilters, list_troubled
from holdfast.models.script import Script, call, say
from tests.http.client import Client
from tests.http.planted import ask
from tests.http.test_api import API, guide
from tests.http.test_security import as_principal
from tests.support.apps import MakeApp, eventually
from tests.support.sent import Statements

pytestmark = pytest.mark.both


@pytest.fixture
def admin(hf: Holdfast) -> Client:
    return as_principal(hf, Principal("ann", "admin"))


async def fail_some(hf: Holdfast) -> list[str]:
    """Two jobs that fail, the second enqueued first; and four that succeed after them."""

    @hf.job(name="paint", retry=Retry(attempts=1))
    async def paint(bad: bool) -> None:
        if bad:
            raise ValueError("no color")

    late = await paint.options(delay="1h").enqueue(True)
    await hf.ensure_worker()
    early = await paint.enqueue(True)
    with pytest.raises(RunFailed):
        await early.result()
    await late.cancel()
    for _ in range(4):
        await (await paint.enqueue(False)).result()
    return [early.id, late.id]


async def test_failed_jobs_are_found_behind_any_number_of_others(hf: Holdfast, admin: Client) -> None:
    failed, cancelled = await fail_some(hf)
    found = await hf.jobs.list(state="failed", look=2)
    assert [job.id for job in found] == [failed]
    assert [job.id for job in await hf.jobs.list(state="cancelled", tenant="", kind="paint")] == [cancelled]
    assert await hf.jobs.list(state="failed", tenant="acme") == []
    assert await hf.jobs.list(state="failed", since=found[0].finished_at) == []
    page = await ask(hf, list_troubled, JobFilters("failed"), limit=1, look=1)
    rest = await ask(hf, list_troubled, JobFilters("failed"), limit=1, look=1, before=page.place)
    assert [row.id for row in (*page.rows, *rest.rows)] == [failed]
    again = await admin.post(f"{API}/jobs/retry", {})
    assert (again.json["matched"], again.json["changed"]) == (1, 1)


async def test_lists_say_how_many_there_are(hf: Holdfast, admin: Client) -> None:
    await fail_some(hf)

    @hf.tool(approve=True)
    def send(to: str) -> str:
        """Send it."""
        return "sent"

    hf.script("clerk", Script(call("send", to="ann"), say("done")))
    run = await hf.agent("clerk", model="scripted:clerk", tools=[send]).enqueue("Go")

    async def asked() -> bool:
        return bool(await hf.inquiries.list())

    await eventually(asked)
    totals = {}
    for path in ("agents", "inquiries", "calls?state=pending", "jobs?kind=paint", "jobs?kind=paint&state=failed"):
        name, _, filters = path.partition("?")
        query = dict(pair.split("=") for pair in filters.split("&") if pair)
        found = (await admin.get(f"{API}/{name}", **query, count="1", limit=1)).json
        totals[path] = found["total"]
        assert len(found["items"]) == 1, path
    assert totals == {
        "agents": 1,
        "inquiries": 1,
        "calls?state=pending": 1,
        "jobs?kind=paint": 6,
        "jobs?kind=paint&state=failed": 1,
    }
    states = {state: await hf.jobs.count(state=state, kind="paint") for state in ("succeeded", "running", "pending")}
    assert states == {"succeeded": 4, "running": 0, "pending": 0}
    await hf.inquiries.approve(run.id)
    await run.result()
    counted = {state: await hf.inquiries.count(state=state) for state in ("open", "approved", None)}
    assert counted == {"open": 0, "approved": 1, None: 1}
    assert await hf.inquiries.count(state=None, run=run.id) == await hf.runs.count_calls(name="send") == 1
    assert [each.state for each in await hf.inquiries.list(state=None)] == ["approved"]
    assert [each.state for each in await hf.tenant("acme").inquiries.list(state=None)] == []


async def test_a_look_for_metadata_ends_and_says_where(hf: Holdfast) -> None:
    for number in range(5):
        await hf.session(f"s{number}", metadata={"n": number})
    wanted = SessionFilters(metadata='{"n": 0}')
    page = await ask(hf, session_page, wanted, look=3)
    assert (page.rows, page.looked) == ([], 3)
    rest = await ask(hf, session_page, wanted, look=3, before=page.place)
    assert ([row.key for row in rest.rows], rest.place) == (["s0"], None)
    assert await hf.sessions.count(metadata={"n": 0}, cap=3) == 0
    assert sorted(await hf.sessions.values("n", cap=2)) == [(3, 1), (4, 1)]


async def test_where_metadata_are_pinned_a_page_asks_for_all_its_sessions_at_once(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = make_app(embedded=False)
    agent = guide(hf)
    for user in ("bob", "eve", "bob", "eve", "bob"):
        await agent.enqueue("Hi", session=await hf.session(metadata={"user": user}))
    bob = as_principal(hf, Principal("bob", "viewer"), metadata={"user": "bob"})
    sent = Statements(monkeypatch, "postgres" if "postgres" in hf.settings.url else "sqlite")
    found = (await bob.get(f"{API}/runs", limit=5)).json
    assert (len(found["items"]), found["looked"]) == (3, 3)
    assert (sent.sent["metadata_of"], sent.sent["find_session"]) == (1, 0)
    first = (await bob.get(f"{API}/runs", limit=2)).json
    rest = (await bob.get(f"{API}/runs", limit=10, after=first["next"])).json
    assert [each["id"] for page in (first, rest) for each in page["items"]] == [each["id"] for each in found["items"]]


async def test_messages_are_read_in_pages(hf: Holdfast) -> None:
    hf.script("echo", Script(*[say(str(n)) for n in range(3)]))
    agent, session = hf.agent("echo", model="scripted:echo"), hf.session("s")
    for number in range(3):
        await agent.run(f"say {number}", session=session)
    first = await session.messages(limit=4)
    rest = await session.messages(limit=4, after=first.next)
    assert [message.ordinal for message in (*first, *rest)] == [1, 2, 3, 4, 5, 6]
    page = await ask(hf, message_page, (await session.refresh()).id, limit=LOOK)
    assert (len(page.messages), page.place) == (6, None)


async def test_messages_are_listed_from_the_end(hf: Holdfast, admin: Client) -> None:
    hf.script("echo", Script(*[say(str(n)) for n in range(8)]))
    agent, session = hf.agent("echo", model="scripted:echo"), hf.session("s")
    for number in range(8):
        await agent.run(f"say {number}", session=session)
    path = f"{API}/sessions/{(await session.refresh()).id}/messages"
    last = (await admin.get(path, before="end", limit=12)).json
    rest = (await admin.get(path, before=last["next"], limit=12)).json
    assert [each["ordinal"] for page in (last, rest) for each in page["items"]] == list(range(16, 0, -1))
    assert rest["next"] is None
    assert (await admin.get(path, before="nonsense")).status == 422


async def test_rows_of_the_audit_share_their_commits(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    await hf.access.audit.add(Principal("ann", "admin"), "begin", "it")
    statements = Statements(monkeypatch, "postgres" if "postgres" in hf.settings.url else "sqlite")
    who = [Principal(f"ann {number}", "admin") for number in range(40)]
    numbers = await asyncio.gather(*(hf.access.audit.add(each, "try", "it", phase="intent") for each in who))
    assert sorted(numbers) == list(range(2, 42))
    assert statements.sent["add_entries"] <= 3
    verified = await hf.access.audit.verify()
    assert (verified.rows, verified.broken) == (41, None)
    kept = {row.seq: row.actor for row in await hf.access.audit.list()}
    assert [kept[number] for number in numbers] == [each.name for each in who]
