"""Triggers in the browser and over the API: what this program declares, and what others have started."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.facades.flatagents.triggers import Triggers
from holdfast.machines.triggers import MARK
from tests.http.browsing import browser
from tests.http.test_fleet_pages import EVIL, check_is_safe, text
from tests.http.test_hooks import MACHINE, SECRET
from tests.support.apps import working

REGISTRY = """
triggers:
  - name: every_night
    type: cron
    machine: greeter
    schedule: "0 3 * * *"
  - name: on_call
    type: webhook
    machine: greeter
"""


def declared(hf: Holdfast, folder: Path) -> Triggers:
    (folder / "greeter.yml").write_text(MACHINE)
    (folder / "trigger_registry.yml").write_text(REGISTRY)
    return Triggers(folder / "trigger_registry.yml", app=hf)


@pytest.mark.both
async def test_a_page_shows_what_starts_machines_and_how_it_went(hf: Holdfast, tmp_path: Path) -> None:
    triggers = declared(hf, tmp_path)
    execution = await triggers.handle("on_call", {"name": "Bob"}, key="1")
    hf.webhook("orders", hf.machine(str(tmp_path / "greeter.yml")), secret=SECRET)
    found = {each["name"]: each for each in (await browser(hf).get("/api/v1/triggers")).json}
    assert (found["every_night"]["next_at"][11:16], found["every_night"]["started"]) == ("03:00", 0)
    assert (found["on_call"]["last"], found["on_call"]["last_state"]) == (execution, "succeeded")
    assert (found["orders"]["type"], found["orders"]["starts"]) == ("webhook", "greeter")
    page = await text(browser(hf, "viewer"), "/triggers")
    for word in ("every_night", "0 3 * * *", "on_call", f"/executions/{execution}", "/hooks/orders", "succeeded"):
        assert word in page, word


@pytest.mark.both
async def test_a_trigger_of_another_program_is_known_by_what_it_started(hf: Holdfast, tmp_path: Path) -> None:
    file = tmp_path / "greeter.yml"
    file.write_text(MACHINE)
    started = await hf.machine(str(file)).enqueue({"name": "Bob"}, metadata={MARK: f"cron {EVIL}"})
    page = await text(browser(hf), "/triggers")
    check_is_safe(page)
    assert "this program does not declare it" in page
    assert f"/executions/{started.id}" in page


async def test_triggers_are_of_the_fleet(hf: Holdfast, tmp_path: Path) -> None:
    declared(hf, tmp_path)
    assert (await browser(hf, tenant="acme").get("/triggers")).status == 404
    assert 'href="/triggers"' not in await text(browser(hf, tenant="acme"), "/")
    page = await text(browser(hf), "/")
    assert page.count('href="/triggers"') == 2, "in the navigation and in the palette"


async def test_the_page_without_triggers_says_how_to_have_some(hf: Holdfast) -> None:
    async with working(hf):
        assert "holdfast triggers install trigger_registry.yml" in await text(browser(hf), "/triggers")
