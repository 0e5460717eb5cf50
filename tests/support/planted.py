"""A bug of `tests.mutants` planted in a process that a test starts: the variable `PLANTED_BUG` has its name."""

from __future__ import annotations

import os

VARIABLE = "PLANTED_BUG"


def plant_named(name: str) -> None:
    from tests.mutants.catalogue import find
    from tests.mutants.planting import Planted

    find(name).plant(Planted())


def plant_what_the_environment_names() -> None:
    if name := os.environ.get(VARIABLE):
        plant_named(name)
