"""Charts say the same in words, keep within their box, and have no styles."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from markupsafe import Markup

from holdfast.http.pages.charts import bars, gauge, sparkline, stacked

ALL = (
    sparkline([1, 2, 3], "Depth"),
    sparkline([], "Depth"),
    bars([("2026-01-01", Decimal("1.5")), ("2026-01-02", Decimal())], "Cost", unit="$"),
    bars([], "Cost"),
    stacked([("failed", 2, "failed"), ("well", 8, "well")], "Ended"),
    stacked([("failed", 0, "failed")], "Ended"),
    gauge(50, 100, "Window", reserved=20),
    gauge(5, None, "Window"),
)


@pytest.mark.parametrize("picture", ALL)
def test_a_chart_has_a_title_a_description_and_no_style(picture: Markup) -> None:
    assert re.search(r"<title>[^<]+</title><desc>[^<]+</desc>", picture)
    assert "style" not in picture
    assert picture.count("<svg") == picture.count("</svg>") == 1


@pytest.mark.parametrize("picture", ALL)
def test_nothing_is_drawn_outside_of_its_box(picture: Markup) -> None:
    for x, width in re.findall(r'x="([\d.]+)%?" y="[\d.]+" width="([\d.]+)%"', picture):
        assert float(x) + float(width) <= 100.1


def test_the_highest_bar_fills_the_height_and_an_empty_day_has_none() -> None:
    picture = bars([("a", 4), ("b", 2), ("c", 0)], "Runs")
    assert re.findall(r'chart-bar tone[^>]*height="([\d.]+)"', picture) == ["96.0", "48.0", "0.0"]
    assert "a: 4; b: 2; c: 0" in picture


def test_names_are_text() -> None:
    assert "<b>" not in bars([("<b>", 1)], "<b>") + stacked([("<b>", 1, "well")], "<b>")


def test_a_gauge_is_red_near_its_edge_and_counts_what_is_reserved() -> None:
    assert "tone-runs" in gauge(1, 10, "Budget")
    assert "tone-person" in gauge(7, 10, "Budget", reserved=1)
    assert "tone-failed" in gauge(Decimal("8"), 10, "Budget", reserved=Decimal("1.5"))
    assert "8 of 10, and 1.5 reserved" in gauge(Decimal("8"), 10, "Budget", reserved=Decimal("1.5"))
