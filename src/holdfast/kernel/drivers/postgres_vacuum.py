"""VACUUM of the tables whose rows come and go with every job.

Each job leaves a dead row in `ready` and one in `lease`, and dead entries at the head of an index slow every claim.
Autovacuum comes once a minute at best. So the holder of the duty vacuums by need, in a statement of its own, and waits
for nobody. A role that may not vacuum the tables leaves them to autovacuum; `holdfast doctor` says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.clock import Clock

if TYPE_CHECKING:
    from holdfast.kernel.drivers.postgres_pool import PooledConnection

# How many dead rows are too many, whatever the setting says.
HOT = {"ready": 2**31, "later": 2**31, "lease": 2**31, "family": 5_000, "lane": 1_000, "worker": 5_000, "duty": 5_000}
_NO_LIMITS = "set lock_timeout = 0; set statement_timeout = 0"
_LONGEST_PAUSE = 60.0

# What VACUUM asks itself about a table `c` and this role; the privilege is known from PostgreSQL 17 on.
MAY_VACUUM = """(case when cast(current_setting('server_version_num') as integer) >= 170000
        then has_table_privilege(c.oid, 'MAINTAIN') else pg_has_role(c.relowner, 'USAGE') end
    or (select pg_has_role(d.datdba, 'USAGE') from pg_database d where d.datname = current_database()))"""
_DEAD = f"""
select s.relname, s.n_dead_tup as dead, s.n_tup_upd + s.n_tup_del as died
from pg_stat_user_tables s join pg_class c on c.oid = s.relid
where s.schemaname = $1 and s.relname = any($2::text[]) and {MAY_VACUUM}
"""


class _LastVacuum(NamedTuple):
    """The last time that a table was vacuumed."""

    at: float
    died: int  # how many of its rows had ever died
    pause: float  # how long it was left alone before, because that had been of no use


class Vacuum:
    def __init__(self, schema: str, clock: Clock) -> None:
        self._schema = schema
        self._clock = clock
        self._last: dict[str, _LastVacuum] = {}

    async def tidy(self, line: PooledConnection, after: int, *, limits: str | None) -> bool:
        """Vacuum the tables with more than `after` dead rows. `limits` sets those of this session again; None: it has
        none that are ours."""
        done = False
        for table, dead, died in await line.connection.fetch(_DEAD, self._schema, list(HOT)):
            if self._is_due(table, dead, died, most=min(after, HOT[table])):
                await self._vacuum(line, table, limits)
                done = True
        return done

    def _is_due(self, table: str, dead: int, died: int, *, most: int) -> bool:
        """Where the last vacuum left too many, a transaction that stays open needs them still: to read all of it every
        second would help nobody, so the pauses double."""
        if dead <= most:
            self._last.pop(table, None)
            return False
        now, pause, last = self._clock.monotonic(), 0.0, self._last.get(table)
        if last is not None and dead - (died - last.died) > most:
            pause = min(_LONGEST_PAUSE, 2 * last.pause or 1.0)
            if now - last.at < pause:
                return False
        self._last[table] = _LastVacuum(now, died, pause)
        return True

    async def _vacuum(self, line: PooledConnection, table: str, limits: str | None) -> None:
        """However long it takes: neither the server nor this side ends it.

        A connection that may have been left without limits is closed.
        """
        line.rest()
        try:
            if limits is not None:
                await line.connection.execute(_NO_LIMITS)
            await line.connection.execute(f"vacuum (truncate off, skip_locked, parallel 0) {self._schema}.{table}")
            line.ask()
            if limits is not None:
                await line.connection.execute(limits)
        except BaseException:
            line.connection.terminate()
            raise
