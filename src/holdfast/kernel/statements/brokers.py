"""The statements of `brokers.sql`, as Python sees them."""

from __future__ import annotations

from holdfast.kernel.broker_rows import (
    Alias,
    Asker,
    Beaten,
    LaneDemand,
    LeaseKey,
    LiveOwner,
    Offer,
    OwnedLease,
    OwnerBeat,
    RouteDemand,
    Sought,
    Taking,
    Transferred,
    Want,
)
from holdfast.kernel.rows import Incarnation, Lease, Seq, UnnamedLease, Woken
from holdfast.kernel.sql import Many, One, Statements


class BrokersSql(
    Statements,
    file="brokers.sql",
    rows={"wants": Want, "takings": Taking, "askers": Asker, "leases": LeaseKey, "beats": OwnerBeat},
):
    offers: Many[Offer]
    take_for: Many[Lease]
    claim_each: Many[Lease]
    find_unanswered: Many[UnnamedLease]
    seek: One[Sought]
    wake_one: One[Woken]
    find_lease: One[OwnedLease]
    leases_of: Many[OwnedLease]
    transfer_leases: Many[Transferred]
    beat_many: Many[Beaten]
    lock_living: Many[Incarnation]
    find_live_owner: One[LiveOwner]
    refresh_owner: One[Seq]
    demand: Many[RouteDemand]
    lane_demand: Many[LaneDemand]
    name_job: One[Alias]
    find_alias: One[Alias]
    list_aliases: Many[Alias]
    alias_of: One[Alias]
