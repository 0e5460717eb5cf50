"""The pages, as a browser asks for them: what they show, to whom, and what their forms do."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.access.principals import Principal, Role
from holdfast.http import web
from holdfast.http.pages.serving import ROUTES
from holdfast.http.security.roles import TABLE
from tests.http.client import Answer, Client
from tests.http.test_api import guide

HTML = {"accept": "text/html,application/xhtml+xml"}


def browser(hf: Holdfast, role: Role = "admin", tenant: str | None = None, **options: Any) -> Client:
    """A browser of somebody whom the host app knows."""
    return Client(web(hf, who=lambda _: Principal("ann", role, tenant), **options), headers=dict(HTML))


async def send(client: Client, path: str, **fields: str) -> Answer:
    """A form, as a browser sends it."""
    from urllib.parse import urlencode

    headers = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
    return await client.call("POST", path, raw=urlencode(fields, doseq=True).encode(), headers=headers)


def test_every_page_has_the_rule_of_a_route() -> None:
    assert {route.name for route in ROUTES} <= set(TABLE)


@pytest.mark.both
async def test_runs_are_listed(hf: Holdfast) -> None:
    run = await guide(hf).enqueue("Hello")
    page = await browser(hf).get("/runs")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8"), page.body
    assert run.id in page.body.decode()
    assert "script-src 'self'" in page.headers["content-security-policy"]


@pytest.mark.both
async def test_a_run_is_shown_with_what_was_said(hf: Holdfast) -> None:
    agent = guide(hf)
    await hf.ensure_worker()
    run = await agent.enqueue("What is <b>it</b>?", session="chat")
    await run.result(timeout="60s")
    page = (await browser(hf).get(f"/runs/{run.id}")).body.decode()
    assert "What is &lt;b&gt;it&lt;/b&gt;?" in page
    assert "<p>A cat.</p>" in page
    assert "look_up" in page
    assert [each.text for each in await run.messages()][-1] == "A cat."
    assert [reason.gate for reason in await run.reasons()] == ["ended"]
    compared = await browser(hf).get("/runs/compare", a=run.id, b=run.id)
    assert (compared.status, "They gave the same answer." in compared.body.decode()) == (200, True)
