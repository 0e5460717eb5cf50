"""Planted bugs of brokers. The simulation must notice each."""

from __future__ import annotations

from typing import Final

from holdfast.kernel.statements import LeasesSql
from tests.simulation.mutants import Mutant, rewrite

MUTANTS: Final = (
    Mutant(
        "broker renewing a lease it lost",
        "a lease that ran out, or that another has now, is renewed for who held it before",
        rewrite(LeasesSql.renew_each, (" and k.lease_until > now_us() - max(cast(:leap_us as bigint), 0)", "")),
    ),
)
