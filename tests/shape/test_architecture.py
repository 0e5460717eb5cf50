"""What the page about the architecture says of the code is so."""

from __future__ import annotations

import json
import re

import pytest
from walks import PAGE, listed

from tests.shape.tree import ROOT, SOURCE
from tests.shape.tree import listed as in_lines
from tests.support.commands import python

MOST = {"job": 32, "run": 91}  # modules; every merge may lower these
TRIES = 3


def paths(text: str) -> set[str]:
    """What the page names in the form of a path: `workers/claims`, `app.py`, `cli/`."""
    named = {each.strip("`") for each in re.findall(r"`[\w./]+`", text)}
    return {each for each in named if re.fullmatch(r"\w+(/\w+)*(/|\.py|\.sql)|\w+(/\w+)+", each)}


def test_every_path_on_the_page_exists() -> None:
    found = paths(PAGE.read_text())
    assert {"app.py", "kernel/sql/enqueue.sql", "workers/claims", "cli/"} <= found
    places = [SOURCE, ROOT]
    absent = [each for each in found if not any((at / f"{each}{end}").exists() for at in places for end in ("", ".py"))]
    assert not absent, in_lines(sorted(absent))


def test_every_module_of_a_walk_exists() -> None:
    modules = {module for walk in listed().values() for module in walk}
    assert modules
    absent = [each for each in modules if not any((SOURCE / f"{each}{end}").exists() for end in ("", ".py"))]
    assert not absent, in_lines(sorted(absent))


@pytest.mark.parametrize("walk", MOST)
def test_a_walk_passes_few_modules(walk: str) -> None:
    assert len(listed()[walk]) <= MOST[walk]


@pytest.mark.long
@pytest.mark.parametrize("walk", MOST)
def test_a_walk_passes_the_modules_that_the_page_lists(walk: str) -> None:
    """On a slow machine a timer may fall into every walk of a series: then another series is walked."""
    always, ever, page = None, set[str](), set(listed()[walk])
    for _ in range(TRIES):
        found = json.loads(python(str(ROOT / "tools" / "walks.py"), "--json", walk).out)[walk]
        always = set(found["always"]) if always is None else always & set(found["always"])
        ever |= set(found["ever"])
        if always <= page <= ever:
            return
    assert always is not None
    assert (always - page, page - ever) == (set(), set()), "run `make docs`"
