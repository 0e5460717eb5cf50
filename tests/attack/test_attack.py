"""A little of each attack of `make attack`, so that the command works when somebody needs it."""

from __future__ import annotations

import pytest

from tests.attack.attacks import SAMPLE, attack
from tests.http.attachments import PAGE, SVG, problems_of
from tests.http.test_hostile_attachments import odd_in


def test_what_is_served_as_what_it_says_it_is_would_be_noticed() -> None:
    plain = {"x-content-type-options": "nosniff"}
    assert problems_of("/x", 200, {**plain, "content-type": "application/json"}, b"{}", []) == []
    assert problems_of("/x", 200, {**plain, "content-type": "image/svg+xml"}, SVG, []) != []
    assert problems_of("/x", 200, {**plain, "content-type": "text/html"}, PAGE, []) != []
    assert problems_of("/x", 200, {"content-type": "application/json"}, b"{}", []) != []
    assert {"script", "img"} <= {each.split()[0] for each in odd_in(PAGE + b"<img src=x onerror=pwned()>")}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_little_of_each_attack_finds_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert await attack(SAMPLE, seed=1) == []
    table = capfd.readouterr().out
    assert table.count("in this process") >= 2
    assert "p99 ms" in table
