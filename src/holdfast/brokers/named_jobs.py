"""Jobs by name: work that nobody here has a function for. It waits for a broker, or a worker that knows its kind."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Unpack, cast

from holdfast import validation
from holdfast.brokers import bytes_form
from holdfast.core import Core
from holdfast.declarations import limits_of
from holdfast.errors import UsageError
from holdfast.jobs import ENQUEUE_DEFAULTS, EnqueueOptions, Job, JobFunction
from holdfast.kernel import codec
from holdfast.kernel.ownership import owner_of
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.rows import EndedJob
from holdfast.queues import Queue
from holdfast.settings import Settings
from holdfast.workers.definitions import Definition
from holdfast.workers.signatures import Signature


class NamedJobOptions(EnqueueOptions, total=False):
    """The options of an enqueue, and how often the job may be tried."""

    attempts: int | None


async def _nobody() -> None:
    """In place of a function: such a job never runs here."""


class NamedHandle(Job[Any]):
    """A handle on a job whose result may be bytes."""

    def _unpack(self, ended: EndedJob) -> Any:
        return bytes_form.from_json(super()._unpack(ended))


class NamedJob(JobFunction[Any, Any]):
    """A kind without a function: its payload is stored as it was given."""

    def __init__(self, core: Core, definition: Definition, payload: object) -> None:
        super().__init__(core, definition, _nobody)
        self._given = payload

    async def enqueue_with(self, options: EnqueueOptions) -> Job[Any]:
        """As `enqueue`; the result is read as it is stored, because nobody here knows its type."""
        job = await self._enqueue(self._app.intake(options["tx"]), (), {}, options)
        handle = NamedHandle(self._app, job.id, None)
        handle.fresh, handle.replaced = job.fresh, job.replaced
        return handle

    def _payload(self, args: tuple[Any, ...], kwargs: Any, settings: Settings) -> str:
        what = f"the payload of {self.definition.kind}"
        return codec.encode(bytes_form.to_json(self._given, what=what), what=what, cap=settings.payload_cap)


async def enqueue(
    core: Core,
    kind: str,
    payload: object,
    *,
    queue: str | None,
    requires: Collection[str],
    **options: Unpack[NamedJobOptions],
) -> Job[Any]:
    """Enqueue a job of this kind. A kind that is declared here keeps what its declaration says."""
    attempts = options.pop("attempts", None)
    unknown = sorted(options.keys() - ENQUEUE_DEFAULTS.keys())
    if unknown:
        known = ", ".join(sorted({*ENQUEUE_DEFAULTS, "attempts", "queue", "requires"}))
        raise UsageError(f"{unknown[0]!r} is not an option; there are {known}.")
    definition = _definition(
        core, codec.check_text(kind, what="a job's kind"), queue, validation.capabilities(requires)
    )
    if attempts is not None:
        times = validation.whole(attempts, "attempts", least=1)
        definition = replace(definition, retry=replace(definition.retry, attempts=times))
    return await NamedJob(core, definition, payload).enqueue_with({**ENQUEUE_DEFAULTS, **cast(EnqueueOptions, options)})


def _definition(core: Core, kind: str, queue: str | None, requires: frozenset[str]) -> Definition:
    if (owner := owner_of(kind, core.registry.layers)) is not None:
        raise UsageError(f"a job {kind!r} cannot be enqueued by name: such kinds belong to {owner}.")
    declared = core.registry.definitions.get(kind)
    if declared is not None and queue in (None, declared.queue) and not requires:
        return declared
    name = queue or (declared.queue if declared else "default")
    policy = core.policies.get(name, Queue())
    return Definition(
        kind=kind,
        function=_nobody,
        signature=Signature(kind, _nobody),
        queue=codec.check_text(name, what="a queue name"),
        requires=requires,
        retry=(declared.retry if declared else None) or policy.retry or RetryPolicy(),
        timeout_us=None,
        deadline_us=None,
        priority=100,
        isolate=None,
        limits=limits_of(f"queue:{name}", policy.concurrency, policy.rate, own=False),
        fair=policy.fair,
    )
