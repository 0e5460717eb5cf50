"""The statements of `leases.sql`, as Python sees them."""

from __future__ import annotations

from holdfast.kernel.broker_rows import Renewal
from holdfast.kernel.rows import Expiry, Held, HeldToken, Kin, Lost, Renewed, Seq, UnnamedLease
from holdfast.kernel.sql import Many, One, Statements


class LeasesSql(Statements, file="leases.sql", rows={"held": Held, "renewals": Renewal}):
    renew: Many[Renewed]
    renew_each: Many[Renewed]
    held_tokens: Many[HeldToken]
    find_unnamed: Many[UnnamedLease]
    next_expiry: One[Expiry]
    find_lapsed: Many[Kin]
    expire: Many[Lost]
    shorten_leases: Many[Seq]
