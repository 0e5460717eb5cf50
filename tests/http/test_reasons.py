"""Why somebody did it: a page asks, a request and a command can say it, and the audit keeps it."""

from __future__ import annotations

import asyncio
import html
import re
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.http.browsing import browser, send
from tests.http.test_fleet_pages import filled, text
from tests.support.apps import working
from tests.support.commands import holdfast
from tests.support.snippets import check_command

WHY = "the machine is <b>replaced</b>"


async def reasons(hf: Holdfast) -> list[tuple[str, str]]:
    """What the audit says, the newest first: what was done, and why."""
    found = [each for each in await hf.access.audit.list() if each.phase == "intent" and "/" in each.action]
    return [(each.action, each.detail.get("reason", "")) for each in found]


@pytest.mark.both
async def test_what_a_person_writes_on_a_page_is_in_the_audit(hf: Holdfast) -> None:
    session = await filled(hf)
    ann = browser(hf)
    async with working(hf) as worker:
        page = await text(ann, f"/workers/{worker.id}")
        assert 'name="reason"' in page
        await send(ann, f"/workers/{worker.id}/drain", reason=WHY)
    done = ["POST /workers/{id}/drain"]
    for path, rule in (
        ("/schedules/tidy/pause", "POST /schedules/{name}/pause"),
        ("/schedules/tidy/resume", "POST /schedules/{name}/resume"),
        ("/schedules/tidy/run", "POST /schedules/{name}/run"),
        ("/schedules/tidy/delete", "DELETE /schedules/{name}"),
        (f"/sessions/{session}/fork", "POST /sessions/{id}/fork"),
        (f"/sessions/{session}/delete", "DELETE /sessions/{id}"),
    ):
        answer = await send(ann, path, reason=WHY)
        assert answer.status == 303, (path, answer.body)
        done.append(rule)
    assert await reasons(hf) == [(rule, WHY) for rule in reversed(done)]
    shown = await text(ann, "/audit")
    assert html.escape(WHY) in shown
    assert WHY not in shown


@pytest.mark.both
async def test_a_request_says_why_in_its_body_or_its_address(hf: Holdfast) -> None:
    await filled(hf)
    ann = browser(hf)
    await ann.post("/api/v1/queues/default/pause", {"reason": WHY})
    await ann.call("POST", "/api/v1/queues/default/resume", query={"reason": "again " + WHY})
    await ann.post("/api/v1/queues/default/pause", {"reason": "x" * 1_999})
    await ann.call("DELETE", "/api/v1/schedules/tidy", query={"reason": "x" * 3_000})
    told = await reasons(hf)
    assert [len(each) for _, each in told[:2]] == [2_000, 1_999]
    assert [each for _, each in told[2:]] == ["again " + WHY, WHY]


async def test_what_is_no_reason_is_none(hf: Holdfast) -> None:
    await filled(hf)
    ann = browser(hf)
    for raw in (b'{"reason": 7}', b'["reason"]', b'{"reason"', b"\xff reason", b"{}", b""):
        headers = {"content-type": "application/json", "sec-fetch-site": "same-origin"}
        await ann.call("POST", "/api/v1/queues/default/resume", raw=raw, headers=headers)
    assert {why for _, why in await reasons(hf)} == {""}


async def test_every_confirmation_shows_the_reason_as_a_command_and_as_a_request(hf: Holdfast) -> None:
    session = await filled(hf)
    ann = browser(hf)
    async with working(hf) as worker:
        pages = [await text(ann, path) for path in (f"/workers/{worker.id}", "/schedules/tidy", f"/sessions/{session}")]
    for page in pages:
        for dialog in re.findall(r'<dialog class="dialog" id="confirm-.*?</dialog>', page, re.S):
            shown = [html.unescape(each) for each in re.findall(r"<code>(.*?)</code>", dialog, re.S)]
            assert 'name="reason"' in dialog, dialog
            assert any("reason=…" in each or '"reason"' in each for each in shown if each.startswith("curl")), shown
            for command in (each for each in shown if each.startswith("holdfast ")):
                assert "--reason" in command
                check_command(command)


@pytest.mark.long
def test_a_command_says_why(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    asyncio.run(_make(url))
    for words in (
        ["queues", "pause", "mail", "--create"],
        ["queues", "resume", "mail"],
        ["workers", "drain", "nobody"],
    ):
        holdfast(*words, "--reason", "paper is back", "--url", url)
    listed = holdfast("audit", "ls", "--json", "--url", url).json
    why = [(each["action"], each["detail"]["reason"]) for each in listed if each["phase"] == "intent"]
    assert why == [(name, "paper is back") for name in ("workers drain", "queues resume", "queues pause")]


async def _make(url: str) -> None:
    async with Holdfast(url, embedded=False) as hf:
        await hf.migrate()
