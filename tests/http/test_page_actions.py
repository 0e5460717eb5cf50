"""What one does on pages: talk with runs below, decide in a chat, find by the palette, tick rows, read the commands."""

from __future__ import annotations

import html
import re

import pytest

from holdfast import Agent, Holdfast
from holdfast.app import core_of
from holdfast.errors import RunFailed
from holdfast.models.script import Script, call, reject, say
from holdfast.resp.client import KeyPrincipal
from holdfast.resp.workers import WorkerDescription, register
from tests.http.browsing import browser, send
from tests.http.test_api import guide
from tests.http.test_fleet_pages import filled, text
from tests.http.test_pages import asking
from tests.support.agents import scripted
from tests.support.apps import MakeApp, working
from tests.support.snippets import check_command


def lead(hf: Holdfast) -> Agent[str]:
    """An agent that asks another one."""
    below = guide(hf)
    hf.script("lead", Script(call("guide", task="What is a cat?"), say("It says so.")))
    return hf.agent("lead", model="scripted:lead", agents=[below])


async def test_runs_below_are_folded_under_their_call_or_shown_flat(hf: Holdfast) -> None:
    run = await lead(hf).run("Ask.", session="talk")
    (below,) = await hf.runs[run.run_id].children()
    ann = browser(hf)
    nested = await text(ann, "/sessions/talk")
    assert f'hx-get="/runs/{below.id}/said"' in nested
    assert "A cat." not in nested.split("Result")[0]
    said = await text(ann, f"/runs/{below.id}/said")
    assert "look_up" in said
    assert "<p>A cat.</p>" in said
    assert "<html" not in said
    flat = await text(ann, "/sessions/talk?view=flat")
    assert f'hx-get="/runs/{below.id}/said"' not in flat
    assert flat.index("look_up") < flat.index("It says so.")
    assert "<b>guide</b>" in flat
    assert (await ann.get("/sessions/talk", view="upside down")).status == 422


async def test_a_person_decides_in_the_chat(hf: Holdfast) -> None:
    run = await asking(hf)
    (inquiry,) = await hf.inquiries.list(run=run.id)
    ann = browser(hf)
    page = await text(ann, f"/sessions/{inquiry.session_id}")
    assert f'action="/inquiries/{inquiry.id}/approve"' in page
    assert "<button" not in page.split('id="decide-')[0].split("waits for a person")[-1]
    decided = await send(ann, f"/inquiries/{inquiry.id}/approve", digest=inquiry.digest, session=inquiry.session_id)
    assert (decided.status, decided.headers["location"]) == (303, f"/sessions/{inquiry.session_id}")
    assert (await run.result(timeout="60s")).text == "Paid."
    assert f'action="/inquiries/{inquiry.id}/approve"' not in await text(
        browser(hf, "viewer"), f"/sessions/{inquiry.session_id}"
    )


async def test_the_window_is_what_the_provider_said_last(hf: Holdfast) -> None:
    await guide(hf).run("What?", session="talk")
    ann = browser(hf)
    page = await text(ann, "/sessions/talk")
    assert "Tokens of the window in use" in page
    assert "May be compacted" in await text(ann, "/sessions/talk/window")
    await hf.session("empty")
    assert "No model has answered here yet" in await text(ann, "/sessions/empty")


async def test_the_palette_finds_ids_keys_names_and_actions(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    run = await guide(hf).enqueue("What?", session="talk with ann", tenant="acme")
    session = (await hf.sessions.list())[0].id
    ann = browser(hf)
    assert f'href="/runs/{run.id}"' in await text(ann, f"/find?q={run.id[:13]}")
    whole = await text(ann, f"/find?q={run.id}")
    assert f'href="/jobs/{run.id}"' in whole
    assert f'href="/why?id={run.id}"' in whole
    assert f'href="/sessions/{session}"' in await text(ann, "/find?q=talk w")
    assert ">agent " in await text(ann, "/find?q=gui")
    assert 'href="/queues/default"' in await text(ann, "/find?q=def")
    others = browser(hf, tenant="other")
    for wanted in (run.id, "talk w", "def"):
        assert "href" not in await text(others, f"/find?q={wanted}")
    pinned = browser(hf, metadata={"customer": 1})
    assert "href" not in await text(pinned, f"/find?q={run.id}")
    assert 'href="/money#budget"' in await text(ann, "/runs")
    assert 'href="/money#budget"' not in await text(browser(hf, "viewer"), "/runs")


async def test_ticked_rows_are_asked_about_with_what_ends_with_them(hf: Holdfast) -> None:
    run = await asking(hf)
    ann = browser(hf)
    asked = (await ann.get("/runs/cancel", id=[run.id])).body.decode()
    assert "Cancels 1 run, 1 call." in asked
    assert f"holdfast runs cancel {run.id}" in asked
    assert f'<input type="hidden" name="id" value="{run.id}">' in asked
    again = (await ann.get("/jobs/cancel", id=[run.id])).body.decode()
    assert f"holdfast jobs cancel {run.id}" in again
    assert (await browser(hf, tenant="other").get("/runs/cancel", id=[run.id])).status == 404
    done = await send(ann, "/runs/cancel", id=run.id, reason="too dear")
    assert "1 of 1 cancelled" in done.body.decode()
    assert (await run.refresh()).state == "cancelled"
    retried = await send(ann, "/jobs/retry", id=run.id)
    assert "1 could not be changed" in retried.body.decode()


async def test_every_command_that_a_page_shows_exists(hf: Holdfast) -> None:
    session = await filled(hf)
    run = await asking(hf)
    worker = (await hf.workers.list(all=True))[0]
    ann, found = browser(hf), set[str]()
    for path in (
        *(
            f"/runs/{run.id}",
            "/inbox",
            f"/sessions/{session}",
            f"/jobs/{run.id}",
            f"/why?id={run.id}",
            "/queues/default",
        ),
        *("/schedules/tidy", "/money", f"/workers/{worker.id}", f"/agents/{(await hf.agents.get('clerk')).id}"),
        *(
            f"/runs/cancel?id={run.id}",
            f"/jobs/cancel?id={run.id}",
            "/runs",
            "/sessions",
            "/batches",
            "/pools",
            "/plans",
        ),
    ):
        shown = re.findall(r'<pre class="command"><code>(.*?)</code>', await text(ann, path), re.S)
        found |= {html.unescape(each) for each in shown}
    commands = {each for each in found if each.startswith("holdfast ")}
    assert len(commands) > 10, commands
    for command in commands:
        check_command(command)


async def test_workers_behind_the_redis_protocol_have_a_place_of_their_own(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    who = WorkerDescription("unit-7", "10.0.0.7", "1.2", ("convert",), (), 3, (), {})
    database = await core_of(hf).opened()
    key = KeyPrincipal("key of unit 7", "", ("unit-7",))
    await database.transact(register, who, key, "first", ttl_us=90_000_000, release=False)
    async with working(hf):
        page = await text(browser(hf), "/workers")
    processes, _, clients = page.partition("Redis clients</h2>")
    assert "unit-7" not in processes.partition("<main")[2]
    for word in ("unit-7", "key of unit 7", "10.0.0.7", "tool:convert"):
        assert word in clients


async def test_yesterday_is_a_day_of_its_own(hf: Holdfast) -> None:
    await filled(hf)
    ann = browser(hf)
    assert "clerk" in await text(ann, "/money?since=1d")
    assert "Nothing was spent" in await text(ann, "/money?since=yesterday")
    assert (await ann.get("/money.csv", since="yesterday")).body.count(b"\n") == 1


async def test_failed_calls_are_told_by_their_words(hf: Holdfast) -> None:
    await filled(hf)
    page = await text(browser(hf), "/calls")
    assert '<span class="note failed">ValueError: too heavy' in page
    assert "Traceback" not in page


async def test_now_says_what_work_waits_for(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    await guide(hf).enqueue("What?")
    await hf.enqueue("print", {}, queue="reports")
    await hf.queues.pause("reports", reason="no paper")
    ann = browser(hf)
    page = await text(ann, "/")
    gates = re.findall(r'<b class="num">(\d+)</b><a href="([^"]+)">([^<]+)</a>', page)
    assert ("1", "/workers", "a worker: none is live") in gates
    assert ("1", "/queues", "a queue that is paused") in gates
    assert len(gates) == 6, "each has its place, also without work"
    assert "What work waits for" not in await text(browser(hf, tenant="acme"), "/")


async def test_an_agent_says_who_serves_it(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    agent = await hf.agents.put(guide(hf))
    ann = browser(hf)
    assert "No live worker has it" in await text(ann, f"/agents/{agent.id}")
    async with working(hf) as worker:
        assert f'href="/workers/{worker.id}"' in await text(ann, f"/agents/{agent.id}")
    tenants = await text(browser(hf, tenant="acme"), "/agents")
    assert "Who serves it" not in tenants


async def test_why_leads_to_what_holds_it(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    job = await hf.enqueue("print", {}, queue="reports")
    await hf.queues.pause("reports", reason="no paper")
    ann = browser(hf)
    for path in (f"/jobs/{job.id}", f"/why?id={job.id}"):
        page = await text(ann, path)
        assert '<a class="way" href="/queues">' in page, path
        assert '<a class="way" href="/workers">' in page, path


async def test_a_run_has_one_notice_in_every_state(hf: Holdfast) -> None:
    """So that nothing moves when one takes the place of another."""
    ann = browser(hf)
    run = await asking(hf)
    told = [await text(ann, f"/runs/{run.id}")]
    await run.cancel("no longer wanted")
    told.append(await text(ann, f"/runs/{run.id}"))
    done = await guide(hf).run("What?")
    told.append(await text(ann, f"/runs/{done.run_id}"))
    failing = hf.agent("clumsy", model=scripted(hf, reject("x" * 500)))
    with pytest.raises(RunFailed):
        await failing.run("Reach")
    (failed,) = await hf.runs.list(agent="clumsy")
    told.append(await text(ann, f"/runs/{failed.id}"))
    found = [re.findall(r'class="notice[^"]* told[^"]*" id="([a-z-]+)"', page) for page in told]
    assert found == [["why-asks"], ["why-ended"], ["why-ended"], ["why-ended"]]
    assert 'class="notice failed' not in told[1], "only a failure is red"
