"""Pages of sessions, agents, tools, fleet, money and administration: empty and filled, for every role and tenant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from holdfast import Holdfast
from holdfast.access.principals import Role
from holdfast.errors import HoldfastError
from holdfast.http.pages.serving import ROUTES
from holdfast.kernel.retry import RetryPolicy
from holdfast.models.script import call, say
from tests.http.browsing import browser, send
from tests.http.client import Client
from tests.http.test_faces import PLAN
from tests.http.test_hooks import MACHINE
from tests.support.agents import scripted
from tests.support.apps import working

LISTS = (
    *("/sessions", "/agents", "/tools", "/calls", "/queues", "/workers", "/schedules", "/batches", "/pools"),
    *("/machines", "/triggers", "/plans", "/money", "/audit", "/settings"),
)
FLEET = ("/queues", "/workers", "/schedules", "/batches", "/pools", "/triggers", "/audit", "/settings")
EVIL = "</script><img src=x onerror=alert(1)>\u202e"


def shop(hf: Holdfast) -> Any:
    """An agent with a tool that fails and a tool that does not, and a schedule."""

    @hf.tool(retry=RetryPolicy.none())
    def weigh(what: str) -> str:
        """Weigh something."""
        raise ValueError(f"too heavy: {EVIL}")

    @hf.schedule("0 3 * * *", name="tidy")
    @hf.job
    async def tidy() -> None:
        """Tidy up."""

    return hf.agent(
        "clerk", model=scripted(hf, call("weigh", what=EVIL), say(f"It is **heavy** {EVIL}")), tools=[weigh]
    )


async def filled(hf: Holdfast, tenant: str = "") -> str:
    """A store in which something has happened; the id of the session."""
    agent = shop(hf)
    session = await hf.session(f"chat {EVIL}", tenant=tenant, metadata={"plan": EVIL})
    run = await session.send(f"Weigh it {EVIL}", agent)
    async with working(hf):
        await run.result()
        await hf.budgets.set("1.00", per="1d")
    return session.id


async def text(client: Client, path: str) -> str:
    place, _, query = path.partition("?")
    answer = await client.get(place, **dict(parse_qsl(query)))
    assert answer.status == 200, (path, answer.status, answer.body[:2000])
    return answer.body.decode()


def check_is_safe(page: str) -> None:
    assert "<img src=x" not in page
    assert "\u202e" not in page
    assert " style=" not in page


@pytest.mark.both
async def test_every_list_is_a_page_that_says_how_to_fill_it(hf: Holdfast) -> None:
    client = browser(hf)
    for path in LISTS:
        page = await text(client, path)
        assert "<h1" in page, path


@pytest.mark.both
async def test_every_page_shows_what_is_there_and_no_markup_of_others(hf: Holdfast) -> None:
    session = await filled(hf)
    client = browser(hf)
    worker = (await hf.workers.list(all=True))[0]
    (failed,) = await hf.jobs.list(state="failed")
    details: dict[str, Sequence[str]] = {
        f"/sessions/{session}": ("Weigh it", "<strong>heavy</strong>", "Window"),
        "/sessions": (session, "plan"),
        "/agents": ("clerk",),
        f"/agents/{(await hf.agents.get('clerk')).id}": ("weigh", "Start a run", "Versions"),
        "/tools": ("weigh", "Weigh something"),
        "/tools/weigh": ("Calls that failed", failed.id),
        "/calls": ("ValueError", "too heavy", failed.id),
        f"/calls/{failed.id}": ("What went wrong", "too heavy"),
        "/queues": ("default",),
        "/queues/default": ("Pause", "Policy"),
        "/workers?all=true": (worker.id,),
        f"/workers/{worker.id}": ("agent:clerk", "tool:weigh", worker.hostname),
        "/schedules": ("tidy", "0 3 * * *"),
        "/schedules/tidy": ("Run now", "UTC"),
        "/money": ("clerk", "Budgets", "<svg"),
        "/money?by=model&since=7d": ("scripted:",),
        "/settings": ("prompt_cap", "Doctor"),
    }
    for path, words in details.items():
        page = await text(client, path)
        check_is_safe(page)
        for word in words:
            assert word in page, (path, word)


@pytest.mark.long
@pytest.mark.both
async def test_fleet_pages_are_not_there_for_a_tenant(hf: Holdfast) -> None:
    session = await filled(hf, tenant="acme")
    mine, others = browser(hf, "admin", "acme"), browser(hf, "admin", "other")
    for path in LISTS:
        answer = await mine.get(path)
        assert answer.status == (404 if path in FLEET else 200), path
    page = await text(mine, f"/sessions/{session}")
    for path in FLEET:
        assert f'href="{path}"' not in page
    (failed,) = await hf.jobs.list(state="failed")
    for path in (f"/sessions/{session}", f"/calls/{failed.id}", f"/sessions/{session}?before=x"):
        assert (await others.get(path)).status in (400, 404)
    assert "clerk" not in await text(others, "/money")


@pytest.mark.sample(1)
@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
async def test_buttons_are_only_for_who_may_press_them(hf: Holdfast, role: Role) -> None:
    session = await filled(hf)
    paths = (f"/sessions/{session}", "/queues/default", "/schedules/tidy", "/money")
    client, shut = browser(hf, role), browser(hf, role, read_only=True)
    shown = "".join([await text(client, path) for path in paths])
    assert ("/send" in shown) is (role != "viewer")
    assert ("/queues/default/pause" in shown) is (role != "viewer")
    assert ("/schedules/tidy/delete" in shown) is (role == "admin")
    assert ('action="/budgets"' in shown) is (role == "admin")
    closed = "".join([await text(shut, path) for path in paths])
    assert [each for each in re.findall(r'<form method="post" action="([^"]*)"', closed) if each != "/logout"] == []
    refused = await send(shut, f"/sessions/{session}/send", prompt="Hi", agent="clerk")
    assert refused.status == 403


async def test_a_viewer_is_shown_no_secrets(hf: Holdfast) -> None:
    agent = hf.agent("clerk", model=scripted(hf, say("done")))
    await hf.session("chat", metadata={"api_key": "sk-abcdefgh12345678"})
    run = await agent.enqueue("My key is sk-abcdefgh12345678", session="chat")
    async with working(hf):
        await run.result()
    for path in ("/sessions", "/sessions/chat"):
        assert "sk-abcdefgh" not in await text(browser(hf, "viewer"), path)
    assert "sk-abcdefgh" in await text(browser(hf, "operator"), "/sessions/chat")


async def test_a_conversation_is_read_from_its_end_backwards(hf: Holdfast) -> None:
    agent = hf.agent("clerk", model=scripted(hf, *(say(f"answer {n}") for n in range(40))))
    session = await hf.session("long")
    async with working(hf):
        for number in range(40):
            await (await session.send(f"question {number} ends", agent)).result()
    client = browser(hf, "viewer")
    newest = await text(client, "/sessions/long")
    assert "question 39 ends" in newest
    assert "question 0 ends" not in newest
    assert newest.index("question 38 ends") < newest.index("question 39 ends")
    (earlier,) = re.findall(r'rel="prev" href="([^"]+)"', newest)
    older = await text(client, earlier.replace("&amp;", "&"))
    assert "question 0 ends" in older
    assert "question 39 ends" not in older


async def test_a_message_is_sent_a_run_is_stopped_and_a_session_is_copied(hf: Holdfast) -> None:
    hf.agent("clerk", model=scripted(hf, say("one"), say("two")))
    await hf.agents.put(hf.agent("guide", model=scripted(hf, say("guided"))))
    client = browser(hf, "operator")
    begun = await send(client, "/sessions", agent="guide", prompt="Hello", metadata="customer=42\nplan=gold", key="new")
    assert begun.status == 303, begun.body
    place = begun.headers["location"]
    record = await hf.sessions.get("new")
    assert (place, record.metadata) == (f"/sessions/{record.id}", {"customer": 42, "plan": "gold"})
    (run,) = await hf.sessions["new"].runs()
    assert 'name="run"' in await text(client, place)
    assert (await send(client, f"{place}/stop", run="another")).status == 422
    assert (await send(client, f"{place}/stop", run=run.id)).status == 303
    assert (await hf.runs.get(run.id)).state == "completed"
    copied = await send(client, f"{place}/fork", key="copy")
    assert copied.headers["location"] == f"/sessions/{(await hf.sessions.get('copy')).id}"
    empty = await send(client, f"{place}/send", agent="guide", prompt="  ")
    assert (empty.status, "write a message" in empty.body.decode()) == (422, True)
    assert (await send(client, "/sessions", metadata="nonsense")).status == 422


async def test_a_queue_is_paused_with_a_reason_and_resumed(hf: Holdfast) -> None:
    await filled(hf)
    client = browser(hf, "operator")
    assert (await send(client, "/queues/default/pause", reason="night shift")).status == 303
    assert (await hf.queues.get("default")).pause_reason == "night shift"
    assert "night shift" in await text(client, "/queues/default")
    assert (await send(client, "/queues/default/resume")).status == 303
    assert (await hf.queues.get("default")).paused_at is None


async def test_a_schedule_is_run_paused_and_its_next_ticks_are_told(hf: Holdfast) -> None:
    await filled(hf)
    client = browser(hf, "operator")
    assert len(re.findall(r"03:00:00 UTC</time>", await text(client, "/schedules/tidy"))) == 5
    run = await send(client, "/schedules/tidy/run")
    assert re.fullmatch(r"/jobs/[0-9a-f-]{36}", run.headers["location"])
    assert (await send(client, "/schedules/tidy/pause")).status == 303
    assert "Never, while it is paused" in await text(client, "/schedules/tidy")


async def test_what_a_version_changed_is_shown_as_a_comparison(hf: Holdfast) -> None:
    await hf.agents.put(hf.agent("clerk", model="scripted:", instructions="Be short."))
    other = Holdfast(hf.settings.url)
    await other.agents.put(other.agent("clerk", model="scripted:", instructions="Be long."))
    await other.close()
    page = await text(browser(hf, "viewer"), "/agents/clerk")
    assert re.search(r'class="add">\+[^<]*Be long', page)
    assert re.search(r'class="del">-[^<]*Be short', page)


async def test_money_is_downloaded_as_a_table_that_no_spreadsheet_runs(hf: Holdfast) -> None:
    agent = hf.agent("=cmd()", model=scripted(hf, say("done")))
    async with working(hf):
        await (await agent.enqueue("Go")).result()
    answer = await browser(hf, "viewer").get("/money.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    head, row = answer.body.decode().splitlines()
    assert head.startswith("day,tenant,agent,model,mode,turns")
    assert ",'=cmd()," in row


async def test_a_budget_is_set_and_deleted(hf: Holdfast) -> None:
    client = browser(hf)
    assert (await send(client, "/budgets", cost="5.00", scope="tenant", tenant="acme", per="1d")).status == 303
    (budget,) = await hf.budgets.list()
    assert (budget.subject, str(budget.cost)) == ("acme", "5")
    assert "tenant acme" in await text(client, "/money")
    assert (await send(client, "/budgets", cost="much")).status == 422
    assert (await send(client, "/budgets", cost="1", policy="explode")).status == 422
    assert (await send(client, f"/budgets/{budget.id}/delete")).status == 303
    assert await hf.budgets.list() == []


async def test_the_audit_shows_each_change_once_with_its_outcome(hf: Holdfast) -> None:
    await filled(hf)
    client = browser(hf)
    await send(client, "/queues/default/pause", reason="x")
    await send(client, "/queues/nowhere/pause", reason="x")
    page = await text(client, "/audit")
    assert page.count("POST /queues/{name}/pause") == 2
    assert "404" in page
    assert "/queues/default/pause" in page
    await hf.queues.resume("default")
    with pytest.raises(HoldfastError):
        await hf.workers.drain("nobody")
    page = await text(client, "/audit")
    rows = {
        name: page.partition(f"<code>{name}</code>")[2].partition("</tr>")[0]
        for name in ("queues resume", "workers drain")
    }
    assert ("done" in rows["queues resume"], "NotFound" in rows["workers drain"]) == (True, True)
    assert f"{page.count('<tr id=')} shown" in page


async def test_a_machine_is_drawn_started_and_its_state_is_lit(hf: Holdfast, tmp_path: Path) -> None:
    file = tmp_path / "greeter.yml"
    file.write_text(MACHINE)
    hf.machine(str(file))
    client = browser(hf, "operator")
    assert "<svg" in await text(client, "/machines/greeter")
    begun = await send(client, "/machines/greeter/start", input='{"name": "Bob"}')
    assert begun.status == 303, begun.body
    async with working(hf):
        await hf.jobs[begun.headers["location"].rpartition("/")[2]].result()
    page = await text(client, begun.headers["location"])
    assert "(the current state)" in page
    assert begun.headers["location"] in await text(client, "/machines")
    assert (await send(client, "/machines/greeter/start", input="[1]")).status == 422
    assert (await client.get("/machines/nothing")).status == 404


async def test_a_plan_is_applied_to_inputs(hf: Holdfast) -> None:
    client = browser(hf)
    made = await client.post("/api/v1/plans", PLAN)
    assert made.status == 201, made.body
    assert PLAN["plan_description"] in await text(client, "/plans")
    begun = await send(client, f"/plans/{PLAN['plan_id']}/apply", inputs="one\ntwo\n")
    assert begun.status == 303, begun.body
    assert "2 jobs" in await text(client, begun.headers["location"])
    assert "Tasks" in await text(client, f"/plans/{PLAN['plan_id']}")


def test_every_action_of_a_page_is_a_form_behind_a_rule() -> None:
    assert all(route.template or route.method == "POST" or route.path == "/money.csv" for route in ROUTES)


async def test_names_of_rows_are_harmless_in_attributes_too(hf: Holdfast) -> None:
    """A row names what it stands for, so that a page can refresh it and copy its name."""

    @hf.schedule("0 3 * * *", name=f"tidy {EVIL}")
    @hf.job(queue=f"letters {EVIL}")
    async def tidy() -> None:
        """Tidy up."""

    await tidy.enqueue()
    async with working(hf):
        for path in ("/schedules", "/queues"):
            shown = await text(browser(hf), path)
            assert 'data-id="' in shown
            check_is_safe(shown)
