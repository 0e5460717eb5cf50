"""Planted bugs of workers and drivers."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = ()
