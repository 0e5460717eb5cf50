"""All planted bugs, by name."""

from __future__ import annotations

from typing import Final

from tests.mutants import agents, facades, http, kernel, machines, resp, workers
from tests.mutants.planting import Mutant

PARTS: Final = tuple(part.MUTANTS for part in (kernel, workers, agents, machines, resp, http, facades))
MUTANTS: Final[dict[str, Mutant]] = {mutant.name: mutant for part in PARTS for mutant in part}


def find(name: str) -> Mutant:
    if name not in MUTANTS:
        raise LookupError(f"there is no planted bug {name!r}; python -m tests.mutants --list has them all")
    return MUTANTS[name]
