"""What a page asks the store: so many statements, which does not grow with what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast import Agent, Holdfast
from holdfast.kernel.drivers.postgres_transaction import PostgresTransaction
from holdfast.kernel.drivers.sqlite_file import SqliteStatements
from holdfast.models.script import Script, call, say
from tests.http.browsing import browser, treasurer
from tests.http.test_api import guide
from tests.support.apps import MakeApp, eventually, working

MOST = 40  # statements of one page
SESSION = "long"
LISTS = (
    *("/", "/now/health", "/inbox", "/runs", "/runs?state=failed", "/sessions", "/agents", "/tools", "/calls", "/jobs"),
    *(
        "/queues",
        "/workers",
        "/schedules",
        "/batches",
        "/pools",
        "/machines",
        "/triggers",
        "/plans",
        "/money",
        "/audit",
        "/settings",
    ),
    *(f"/sessions/{SESSION}", f"/sessions/{SESSION}?view=flat", "/find?q=gui", "/failures?kind=guide"),
)


@contextmanager
def statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of what is asked meanwhile, on either database."""
    asked: list[str] = []
    with monkeypatch.context() as patch:
        for kind in (SqliteStatements, PostgresTransaction):
            patch.setattr(kind, "_rows", _noting(kind._rows, asked))
        yield asked


def _noting(rows: Any, asked: list[str]) -> Any:
    def noted(self: Any, statement: Any, parameters: Any) -> Any:
        asked.append(statement.name)
        return rows(self, statement, parameters)

    return noted


def crew(hf: Holdfast) -> tuple[Agent[str], Agent[str]]:
    """An agent that asks another one, and one that waits for a person."""
    below = guide(hf)
    hf.script("lead", Script(call("guide", task="What is a cat?"), say("It says: a cat.")))
    return hf.agent("lead", model="scripted:lead", agents=[below]), treasurer(hf)


async def grow(hf: Holdfast, lead: Agent[str], asker: Agent[str], count: int, begin: int) -> None:
    """So much more of everything: runs with calls and runs below them, questions, sessions, failures."""
    for number in range(begin, begin + count):
        await (await lead.enqueue("Ask.", session=SESSION)).result(timeout="100s")
        await asker.enqueue("Pay.", session=f"ask {number}")
        await hf.session(f"quiet {number}", metadata={"plan": number})
        await (await lead.enqueue("Gone.", session=f"gone {number}")).cancel()

    async def asked() -> bool:
        return len(await hf.inquiries.list()) == begin + count

    await eventually(asked)


async def counted(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What each page asks of the store, from a server that remembers nothing."""
    run = (await hf.sessions[SESSION].runs(limit=1))[0].id
    client, found = browser(hf), dict[str, list[str]]()
    for path in (*LISTS, f"/runs/{run}", f"/runs/{run}/events", f"/jobs/{run}", f"/why?id={run}"):
        place, _, query = path.partition("?")
        with statements(monkeypatch) as asked:
            answer = await client.get(place, **dict([query.split("=")] if query else []))
        assert answer.status == 200, (path, answer.body[:2000])
        found[path.replace(run, "{run}")] = asked
    return found


async def test_no_page_asks_more_when_more_is_stored(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = make_app(embedded=False)
    lead, asker = crew(hf)
    async with working(hf):
        await grow(hf, lead, asker, 2, 0)
    few = await counted(hf, monkeypatch)
    async with working(hf):
        await grow(hf, lead, asker, 4, 2)
    many = await counted(hf, monkeypatch)
    grown = {path: (few[path], asked) for path, asked in many.items() if len(asked) > len(few[path])}
    assert grown == {}
    large = {path: asked for path, asked in many.items() if len(asked) > MOST}
    assert large == {}
