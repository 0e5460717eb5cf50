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
