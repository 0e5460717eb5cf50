"""A process and its store, one step at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.interleaving.scripts import SCRIPTS
from tests.support.stores import SharedDatabase


@pytest.mark.sample(3)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
async def test_a_script_holds(script: Callable[[str], Any], shared_database: SharedDatabase) -> None:
    shared_database.empty()
    await script(shared_database.url)
