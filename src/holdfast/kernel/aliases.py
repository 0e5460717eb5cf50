"""Aliases: public names for jobs that follow each other, as a run that is started again has a new job.

A name is never given to something else, even when its jobs have been pruned. The last job that was written under it is
the current one.
"""

from __future__ import annotations

from holdfast.kernel.broker_rows import Alias
from holdfast.kernel.database import Transaction, reading, single
from holdfast.kernel.ids import JobId
from holdfast.kernel.statements import BrokersSql


async def name_job(tx: Transaction, scope: str, name: str, job: JobId, *, digest: str) -> Alias:
    """Give a name to a job, or find what it stands for: the answer's `job` is another then.

    Whether that is the same work the caller judges by `digest`. Enqueue the job in the same transaction.
    """
    first = {"scope": scope, "name": name, "job": job, "digest": digest, "number": 1, "attempts": 0}
    while True:
        named = await tx.one(BrokersSql.name_job, **first) or await tx.one(
            BrokersSql.find_alias, scope=scope, name=name
        )
        if named is not None:
            return named


@single
async def follow(tx: Transaction, before: Alias, job: JobId, *, digest: str, attempts: int) -> Alias | None:
    """Let another job continue under a name; None when somebody else was faster, so look again.

    `attempts`: how many all jobs of the name have made until now.
    """
    after = {"job": job, "digest": digest, "number": before.number + 1, "attempts": attempts}
    return await tx.one(BrokersSql.name_job, scope=before.scope, name=before.name, **after)


@reading
async def find_alias(tx: Transaction, scope: str, name: str) -> Alias | None:
    """What a name stands for now. Its job may have been pruned."""
    return await tx.one(BrokersSql.find_alias, scope=scope, name=name)


@reading
async def list_aliases(tx: Transaction, scope: str, name: str, *, after: int = 0, limit: int = 10_000) -> list[Alias]:
    """What a name has stood for after this number, the first first."""
    return await tx.many(BrokersSql.list_aliases, scope=scope, name=name, after=after, limit=limit)


@reading
async def alias_of(tx: Transaction, job: JobId) -> Alias | None:
    """The name of a job, if it has one."""
    return await tx.one(BrokersSql.alias_of, job=job)
