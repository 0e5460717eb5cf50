"""What the pages' own script does: named views, the zone of times, the zoom of a waterfall, rows by keys."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.http.site import Site
from tests.http.test_browser import site

__all__ = ["site"]

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_a_view_is_kept_under_its_name(site: Site, page: Page) -> None:
    page.goto(site("/runs?state=failed&agent=guide"))
    page.get_by_text("Save this view").click()
    page.get_by_label("Name of the view").fill("guides <b>that</b> fail")
    page.keyboard.press("Enter")
    page.goto(site("/runs"))
    page.locator("[data-saved]").get_by_role("link", name="guides <b>that</b> fail").click()
    page.wait_for_url(re.compile("state=failed&agent=guide"))
    page.goto(site("/workers"))
    page.keyboard.press("/")
    page.keyboard.type("guides")
    expect(page.locator("#saved-views li:not([hidden])")).to_have_count(1)
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("agent=guide"))
    page.get_by_label("Forget the view").click()
    page.reload()
    expect(page.locator("[data-saved] a")).to_have_count(0)


def test_the_zone_is_remembered(site: Site, page: Page) -> None:
    run = site.start("till", "When?")
    page.goto(site(f"/runs/{run}"))
    expect(page.locator("[data-zone-name]")).to_have_text("UTC")
    page.locator("[data-zone-switch]").click()
    page.reload()
    zone = page.evaluate("Intl.DateTimeFormat().resolvedOptions().timeZone")
    expect(page.locator("[data-zone-name]")).to_have_text(zone)
    expect(page.locator("time[datetime]").first).to_have_attribute("title", re.compile("UTC$"))


def test_a_waterfall_is_zoomed_by_dragging_and_by_keys(site: Site, page: Page) -> None:
    run = site.start("till", "How long?")
    page.goto(site(f"/runs/{run}"))
    drawing, box = page.locator("svg.wf"), page.locator(".wf-picture")
    place = box.bounding_box()
    assert place is not None
    page.mouse.move(place["x"] + 0.25 * place["width"], place["y"] + 30)
    page.mouse.down()
    page.mouse.move(place["x"] + 0.5 * place["width"], place["y"] + 30)
    expect(page.locator(".wf-range")).to_be_visible()
    page.mouse.up()
    expect(page.locator(".wf-range")).to_have_count(0)
    wide = float((drawing.get_attribute("width") or "").removesuffix("%"))
    assert 350 < wide < 450
    scrolled = box.evaluate("each => each.scrollLeft / each.scrollWidth")
    assert 0.2 < scrolled < 0.3
    box.press("0")
    expect(drawing).to_have_attribute("width", "100%")
    box.press("+")
    expect(drawing).to_have_attribute("width", "200%")
    page.get_by_role("button", name="Whole").click()
    expect(drawing).to_have_attribute("width", "100%")


def test_a_row_is_ticked_and_asked_about_by_keys(site: Site, page: Page) -> None:
    run = site.start("till", "Tick me")
    page.goto(site("/runs"))
    expect(page.locator(f"#row-{run}")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("[data-chosen]")).to_have_text("1")
    page.get_by_role("button", name="Cancel…").click()
    expect(page.locator("main")).to_contain_text("Cancel 1 run?")
    page.get_by_label("Reason").fill("by keys")
    page.get_by_role("button", name="Cancel 1").click()
    expect(page.locator("main")).to_contain_text("1 of 1 cancelled")


def test_nothing_moves_while_a_run_waits_asks_and_ends(site: Site, page: Page) -> None:
    site.ask(site.hf.queues.pause("default", reason="night shift"))
    try:
        run = site.start("till", "Refund it")
        page.goto(site(f"/runs/{run}"))
        expect(page.locator("#why-waits")).to_contain_text("night shift")
    finally:
        site.ask(site.hf.queues.resume("default"))
    expect(page.locator("#why-asks")).to_be_visible()
    site.ask(site.hf.inquiries.approve(run, by="ann"))
    expect(page.locator("#why-ended")).to_be_visible()
    expect(page.locator("#head .badge")).to_have_text("completed")
    assert page.evaluate("window.shifts") == 0, "\n".join(page.evaluate("window.shifted"))
