"""Lists of runs, what they cost to read, and sums over what is below a run."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.listings import LEADS, LOOK, RunFilters, run_page
from holdfast.agents.statements import RunListsSql, RunsSql
from holdfast.app import core_of
from holdfast.kernel.sql import catalogue
from holdfast.models.script import call, reject, say
from tests.conftest import Place
from tests.support.agents import in_run_state, scripted
from tests.support.apps import MakeApp, working
from tests.support.past_kernel import query

EARLY = datetime(2020, 1, 1, tzinfo=UTC)
NOBODYS = "01a1e767-0db2-7043-a45e-85af1b28257e"
NAMED = re.compile(r":[a-z_]+")
MANY = """
insert into holdfast.run (id, job, session, branch, ordinal, tenant, agent, agent_name, version, mode, state, root,
    depth, input, variables, metadata, options, created_at, finalized_at, outcome)
select 'r' || g, 1000000 + g, 's' || (g % 5000), '', 1, 't' || (g % 1000), 'ag', 'a', 1, 'streaming',
    case g % 10 when 0 then 'pending' when 1 then 'failed' else 'completed' end, 'r' || g, 0, '{}', '{}', '{}', '{}', g,
    case when g % 10 > 0 then g end, case when g % 10 > 1 then 'answered' end from generate_series(1, 50000) g
"""


@pytest.mark.parametrize(
    ("lead", "chosen", "index"),
    [
        ("all", {"until": EARLY}, "run_listed"),
        ("of_session", {"session": NOBODYS}, "run_session"),
        ("of_parent", {"parent": "r77"}, "run_parent"),
        ("of_agent", {"agent": NOBODYS}, "run_agent"),
        ("of_tenant", {"tenant": "nobody"}, "run_tenant"),
        ("unanswered", {"state": "failed"}, "run_unanswered"),
        ("unanswered_of_tenant", {"state": "failed", "tenant": "t1"}, "run_tenant_unanswered"),
        ("open", {"state": "pending"}, "run_open"),
        ("open_of_tenant", {"state": "pending", "tenant": "t1"}, "run_tenant_open"),
    ],
)
async def test_lists_of_runs_have_an_index(
    hf: Holdfast, place: Place, lead: str, chosen: dict[str, Any], index: str
) -> None:
    agent = hf.agent("a", model=scripted(hf, say("done")))
    await agent.run("Go")
    assert len(await hf.runs.list(state="completed")) == 1
    if "session" not in chosen:
        assert await hf.runs.list(**chosen) == []
    if place.url.startswith("sqlite"):
        for statement in filter(None, LEADS[lead]):
            (text,) = catalogue((RunListsSql,), "sqlite", "")[statement].texts
            plan = [str(row[3]) for row in query(place, f"explain query plan {NAMED.sub('null', text)}")]
            assert [line for line in plan if f"INDEX {index} " in line], plan
        return
    query(place, MANY)
    query(place, "analyze holdfast.run")
    given = {"tenant": None, "session": None, "agent": None, "state": None, "parent": None, "mode": None, **chosen}
    # Fewer than there are of each kind: else the order of an index saves nothing, and others are as good.
    values = {**given, "before_at": 2**62, "before": "~", "since": 0, "look": 1_000, "skipped": 999, "limit": 100}
    for statement in filter(None, LEADS[lead]):
        rendered = catalogue((RunListsSql,), "postgres", "holdfast")[statement]
        text = rendered.texts[0]
        for number, value in reversed(list(enumerate(rendered.arguments(values), 1))):
            text = text.replace(f"${number}", _literal(value))
        explained = "\n".join(str(row[0]) for row in query(place, f"explain {text}"))
        assert re.search(rf"using {index} on run|Bitmap Index Scan on {index}\b", explained), explained
        assert "Seq Scan on run" not in explained


async def test_a_filter_without_an_index_looks_at_so_many(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    runs = [(await agent.enqueue(f"n{n}", session=f"s{n}")).id for n in range(7)]
    database = await core_of(hf).opened()
    page = await database.transact(run_page, RunFilters(mode="batch"), limit=2, look=3)
    assert ([row.id for row in page.rows], page.looked) == ([], 3)
    assert page.place is not None
    assert page.place[1] == runs[4]
    rest = await database.transact(run_page, RunFilters(mode="batch"), before=page.place, limit=2, look=LOOK)
    assert (rest.rows, rest.place, rest.looked) == ([], None, 0)
    middle = (await hf.runs.get(runs[3])).created_at
    assert [run.id for run in await hf.runs.list(since=middle)] == runs[:2:-1]
    assert [run.id for run in await hf.runs.list(until=middle, mode="streaming")] == runs[2::-1]
    assert await hf.runs.list(since=middle + timedelta(days=1)) == []


async def test_stuck_runs_are_found_by_way_of_the_leases(hf: Holdfast, place: Place) -> None:
    await hf.agent("a", model=scripted(hf, say("done"))).run("Go")
    if place.url.startswith("sqlite"):
        text = catalogue((RunsSql,), "sqlite", "")[RunsSql.find_stuck].texts[0]
        for name in ("now_us()", ":timeout_us", ":limit"):
            text = text.replace(name, "1")
        assert "SCAN r" not in [str(row[3])[:6] for row in query(place, f"explain query plan {text}")]
        return
    query(place, MANY)
    query(place, "analyze holdfast.run")
    text = catalogue((RunsSql,), "postgres", "holdfast")[RunsSql.find_stuck].texts[0]
    plan = query(place, f"explain {text.replace('$1', '1').replace('$2', '1')}")
    assert not [row for row in plan if "Seq Scan on run" in str(row[0])]


def _literal(value: object) -> str:
    if value is None:
        return "null"
    return str(value) if isinstance(value, int) else f"'{value}'"


async def test_runs_are_listed_by_the_state_they_are_shown_in(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    ends = hf.agent("ends", model=scripted(hf, say("done")))
    fails = hf.agent("fails", model=scripted(hf, reject("not today")))
    done, failed, gone = await ends.enqueue("1"), await fails.enqueue("2"), await ends.enqueue("3")
    await gone.cancel()
    async with working(hf):
        await done.result()
        await in_run_state(failed, "failed")
    left = await ends.enqueue("4")
    everyone = await hf.runs.list()
    assert sorted(row.state for row in everyone) == ["cancelled", "completed", "failed", "pending"]
    for state in ("pending", "streaming", "failed", "completed", "cancelled"):
        expected = [row.id for row in everyone if row.state == state]
        assert [row.id for row in await hf.runs.list(state=state)] == expected
        assert await hf.runs.list(state=state, tenant="other") == []
    assert (await left.refresh()).state == "pending"


async def test_usage_is_that_of_everything_below(hf: Holdfast) -> None:
    c = hf.agent("c", model=scripted(hf, say("C")))
    b = hf.agent("b", model=scripted(hf, call("c", task="t"), say("B")), agents=[c])
    a = hf.agent("a", model=scripted(hf, call("b", task="t"), say("A")), agents=[b])
    result = await a.run("Go")
    root = hf.runs[result.run_id]
    (middle,) = await root.children()
    (lowest,) = await hf.runs[middle.id].children()
    used = [await hf.runs[id].usage() for id in (root.id, middle.id, lowest.id)]
    assert [(each.runs, each.turns) for each in used] == [(3, 5), (2, 3), (1, 1)]
    assert used[0].output_tokens > used[1].output_tokens > used[2].output_tokens > 0
    assert result.usage == used[0]
    assert (await hf.runs[middle.id].result()).usage == used[1]
    assert result.turns == 2
    ended = [event async for event in root.stream()][-1]
    assert ended.result.usage == used[0]  # type: ignore[attr-defined]  # the last event is RunEnded
