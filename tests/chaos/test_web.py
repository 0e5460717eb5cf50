"""kill -9 of a worker while a person watches the run on its page: the page goes on, and shows where the worker died."""

from __future__ import annotations

from contextlib import closing

import pytest
from playwright.sync_api import expect

from holdfast import Holdfast
from holdfast.settings import Settings
from tests.chaos import agents
from tests.chaos.agents import APP
from tests.chaos.crew import Crew, Member
from tests.chaos.test_agents import QUICKLY
from tests.conftest import Place
from tests.http.site import Site, looking, running_chromium
from tests.support.apps import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.long]


def test_a_run_goes_on_while_its_page_is_watched(place: Place, crew: Crew) -> None:
    workers = [crew.worker(place.url, app=APP, script_pace="700ms", **QUICKLY) for _ in range(2)]
    hf = agents.hf
    hf.settings = Settings(url=place.url)
    with closing(Site(hf, works=False)) as site, running_chromium() as chromium, looking(chromium) as (page, _):
        for worker in workers:
            site.ask(worker.says("registered as"))
        run = site.start("teller", "Tell me a story")
        page.goto(site(f"/runs/{run}"))
        expect(page.locator("[data-text]")).to_contain_text("once upon a time")
        holder = site.ask(_holder(hf, run, workers))
        holder.kill()
        expect(page.locator("#head .badge")).to_have_text("completed")
        expect(page.locator(".say.assistant")).to_contain_text("nobody could kill")
        expect(page.locator("#waterfall .wf-broken, #waterfall .wf-break, #waterfall .wf-torn").first).to_be_visible()


async def _holder(hf: Holdfast, run: str, workers: list[Member]) -> Member:
    """The process that plays the run."""

    async def held() -> int | None:
        for worker in await hf.workers.list():
            if worker.leases:
                return worker.pid
        return None

    pid = await eventually(held)
    return next(each for each in workers if each.pid == pid)
