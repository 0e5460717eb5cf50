"""Metadata in lists: columns and drop-downs that the host names, on runs and on sessions."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import UsageError
from holdfast.http import web
from tests.http.browsing import browser
from tests.http.test_api import API, guide
from tests.http.test_fleet_pages import text
from tests.support.apps import MakeApp

SHOWN: dict[str, Any] = {"columns": ("customer",), "filters": ("plan",)}


async def filled(hf: Holdfast) -> dict[str, str]:
    """Runs and sessions of three customers; the id of each one's run."""
    agent, found = guide(hf), {}
    for customer, plan in (("42", "gold"), ("43", "gold"), ("<44>", {"is": "free"})):
        marks = {"customer": customer, "plan": plan, "note": "n"}
        session = await hf.session(f"of {customer}", metadata=marks, tenant="acme")
        run = await agent.enqueue("What?", session=session, metadata=marks, tenant="acme")
        found[customer] = run.id
    return found


def rows(page: str, ids: dict[str, str]) -> set[str]:
    return {name for name, id in ids.items() if f'id="row-{id}"' in page}


@pytest.mark.both
async def test_runs_are_chosen_by_their_metadata(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    ids = await filled(hf)
    for ann in (browser(hf, **SHOWN), browser(hf, tenant="acme", **SHOWN)):
        page = await text(ann, "/runs")
        assert rows(page, ids) == set(ids)
        assert '<select name="meta.plan" aria-label="plan">' in page
        assert '<option value="gold">gold (2)</option>' in page
        assert "&lt;44&gt;" in page
        assert rows(await text(ann, "/runs?meta.plan=gold"), ids) == {"42", "43"}
        assert rows(await text(ann, '/runs?meta.plan={"is": "free"}&agent=guide&state=pending'), ids) == {"<44>"}
        assert rows(await text(ann, "/runs?meta.plan=gold&agent=nobody"), ids) == set()
    others = browser(hf, tenant="other", **SHOWN)
    assert rows(await text(others, "/runs?meta.plan=gold"), ids) == set()
    assert "gold" not in await text(others, "/runs")


@pytest.mark.both
async def test_sessions_are_chosen_by_their_metadata(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    await filled(hf)
    ids = {each.key.removeprefix("of "): each.id for each in await hf.sessions.list() if each.key}
    ann = browser(hf, **SHOWN)
    page = await text(ann, "/sessions")
    assert rows(page, ids) == set(ids)
    assert "<th>customer</th>" in page
    assert '<option value="gold">gold (2)</option>' in page
    assert rows(await text(ann, "/sessions?meta.plan=gold"), ids) == {"42", "43"}
    chosen = await text(ann, '/sessions?meta.plan=gold&key=customer&value="42"')
    assert rows(chosen, ids) == {"42"}
    assert 'href="/sessions?key=customer&amp;value=%2242%22"' in chosen, "a cross takes one filter away"


async def test_the_api_lists_runs_by_their_metadata(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    ids = await filled(hf)
    ann = browser(hf)
    ann.headers.clear()
    listed = await ann.get(f"{API}/runs", metadata='{"plan": "gold"}', limit=1)
    more = await ann.get(f"{API}/runs", metadata='{"plan": "gold"}', limit=1, after=listed.json["next"])
    found = [each["id"] for page in (listed, more) for each in page.json["items"]]
    assert found == [ids["43"], ids["42"]]
    for wrong in ({"metadata": "[1]"}, {"metadata": "{"}, {"metadata": "{}", "count": "1"}):
        assert (await ann.get(f"{API}/runs", **wrong)).status == 422


async def test_a_refresh_asks_for_no_values(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    await filled(hf)
    ann = browser(hf, **SHOWN)
    ann.headers["hx-request"] = "true"
    assert "gold (2)" not in await text(ann, "/runs")


async def test_where_metadata_are_pinned_no_values_are_offered(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    ids = await filled(hf)
    ann = browser(hf, metadata={"customer": "42"}, **SHOWN)
    for path in ("/runs", "/sessions"):
        page = await text(ann, path)
        assert "<option" not in page or "gold (" not in page
    assert rows(await text(ann, "/runs?meta.plan=gold"), ids) == {"42"}


async def test_keys_are_a_list(hf: Holdfast) -> None:
    for wrong in ("customer", ("",)):
        with pytest.raises(UsageError, match="columns= must be a list of keys"):
            web(hf, columns=wrong)
