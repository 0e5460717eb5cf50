"""Large tables, written by SQL: hundreds of thousands of jobs that wait, a million that have ended.

What stands in a table is what the contender's own calls would have left there, dead rows included, only sooner. The
first job is enqueued by the contender itself; the others are copies of it.
"""

from __future__ import annotations

import psycopg

from bench.contenders import BARE, HOLDFAST, Contender
from bench.stores import fill

FINISHABLE = frozenset({HOLDFAST, BARE})  # whose jobs can be ended by SQL
_SLICE = 50_000  # jobs that come and go between two vacuums, as in life

# The copies have ids in the order of time, as those that Holdfast makes: the index on them grows at its end.
_COPY = """
insert into holdfast.job (id, route, slot, created_at, priority, max_attempts, max_rescues, cost, kind, queue, tenant,
    payload, metadata)
select cast(lpad(to_hex(n), 8, '0') || '-0000-7000-8000-' || lpad(to_hex(n), 12, '0') as uuid), route, slot,
    created_at + n, priority, max_attempts, max_rescues, cost, kind, queue, tenant,
    cast('{"n":' || n || '}' as json), metadata
from (select * from holdfast.job order by seq limit 1) as first
cross join generate_series(cast(%(first)s as bigint), %(last)s) as n
order by n
"""
_READY = """
insert into holdfast.ready (route, slot, seq, token, priority, attempts, rescues)
select route, slot, seq, 0, priority, 0, 0 from holdfast.job where seq > %(after)s order by seq
"""
_CLAIM = """
with taken as (delete from holdfast.ready returning *)
insert into holdfast.lease (seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind, queue)
select t.seq, 0, 1, 1, j.created_at, j.created_at, t.route, 0, 0, j.kind, j.queue
from taken t join holdfast.job j on j.seq = t.seq order by t.seq
"""
_COMPLETE = """
with gone as (delete from holdfast.lease returning *)
insert into holdfast.ended (seq, token, finished_at, worker, epoch, claimed_at, attempts, rescues, state, queue,
    outcome, result)
select seq, token, claimed_at + 1000, worker, epoch, claimed_at, 1, 0, 'succeeded', queue, 'succeeded', 'null'
from gone order by seq
"""
_LAST = "select coalesce(max(seq), 0) from holdfast.job"

_BARE_COPY = """
insert into bare_job (payload)
select cast('{"n":' || n || '}' as jsonb) from generate_series(cast(%(first)s as bigint), %(last)s) as n order by n
"""
_BARE_CLAIM = """
update bare_job set state = 'running', token = 1, worker = 0, lease_until = now() where state = 'pending'
"""
_BARE_COMPLETE = """
update bare_job set state = 'succeeded', worker = null, lease_until = null, finished_at = now() where state = 'running'
"""


def fill_pending(contender: Contender, url: str, jobs: int) -> None:
    """So many jobs that wait, and nothing else; PostgreSQL has no statistics on them."""
    if contender.name not in FINISHABLE:
        fill(contender, url, jobs)
        return
    fill(contender, url, 1)
    with psycopg.connect(url, autocommit=True) as connection:
        _insert(connection, contender, 2, jobs)


def fill_finished(contender: Contender, url: str, jobs: int) -> None:
    """So many jobs that have come, run and ended, and nothing else; vacuumed since."""
    fill(contender, url, 1)
    ours = contender.name == HOLDFAST
    claim, complete = (_CLAIM, _COMPLETE) if ours else (_BARE_CLAIM, _BARE_COMPLETE)
    vacuum = f"vacuum (truncate off) {'holdfast.ready, holdfast.lease' if ours else 'bare_job'}"
    with psycopg.connect(url, autocommit=True) as connection:
        for first in range(1, jobs + 1, _SLICE):
            _insert(connection, contender, max(first, 2), min(first + _SLICE - 1, jobs))
            connection.execute(claim.encode())
            connection.execute(complete.encode())
            connection.execute(vacuum.encode())
        connection.execute("vacuum (truncate off)")


def _insert(connection: psycopg.Connection[tuple[object, ...]], contender: Contender, first: int, last: int) -> None:
    numbers: dict[str, object] = {"first": first, "last": last}
    if contender.name == BARE:
        connection.execute(_BARE_COPY.encode(), numbers)
        return
    (after,) = connection.execute(_LAST.encode()).fetchall()[0]
    connection.execute(_COPY.encode(), numbers)
    connection.execute(_READY.encode(), {"after": after})
