"""An agent as a program sees it: it enqueues runs. Making a handle does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar, Unpack

from holdfast import durations, validation
from holdfast.agents import queries
from holdfast.agents.api.options import ManyRunOptions, RunOptions, check_model, chosen, microseconds
from holdfast.agents.api.run import Run
from holdfast.agents.api.session import Session, wish_for
from holdfast.agents.batches.mode import choose
from holdfast.agents.content import Prompt, blocks_of, check_fresh
from holdfast.agents.core import AgentsCore
from holdfast.agents.definition import AgentSpec, Delegate, as_stored
from holdfast.agents.runs.create import AgentName, CreatedRun, NamedAgent, Submission, create_runs, needs_of, run_job
from holdfast.client.intake import Intake
from holdfast.client.results import Result
from holdfast.durations import Duration
from holdfast.errors import NoWorker, UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import drive
from holdfast.kernel.ids import new_id
from holdfast.workers.telemetry import sending

T = TypeVar("T")

_TOGETHER = 1_000  # runs that one transaction takes in


class Agent(Generic[T]):
    """An agent: its instructions, its model and its tools."""

    def __init__(
        self,
        app: AgentsCore,
        name: AgentName,
        make: Callable[[], NamedAgent],
        decode: Callable[[Any, str], T] | None = None,
        stored: tuple[str, int] | None = None,
    ) -> None:
        """`make` is called at first use: schemas of tools may name classes that are declared later."""
        self._app = app
        self._make = make
        self._decode = decode
        self._stored = stored  # its id and version, once written
        self._name = name

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"

    @property
    def name(self) -> str:
        return self._name.name

    @cached_property
    def named(self) -> NamedAgent:
        return self._make()

    @property
    def spec(self) -> AgentSpec:
        return self.named.spec

    @property
    def description(self) -> str:
        return self.named.description

    @property
    def tenant(self) -> str:
        return self._name.tenant

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(codec.decode(self._name.metadata))

    def delegate(self) -> Delegate:
        """This agent as another's tool."""
        spec = self.spec
        return Delegate(
            name=self.name,
            description=self.description,
            queue=spec.queue,
            priority=spec.priority,
            requires=spec.requires,
        )

    async def enqueue(self, prompt: Prompt, **options: Unpack[RunOptions]) -> Run[T]:
        """Accept a run durably: when this returns, it is committed, or will be with the caller's `tx`.

        `session`: a key, a Session, or nothing for a new one. `key` makes repeated calls one run. `variables` are for
        the tools, never for the model. `limits`, `model`, `priority`, `delay`, `at`, `metadata`, `tenant` are this
        run's own. `require_worker` refuses when no worker alive serves this agent. With `answer_within` ("6h") the
        runtime chooses whether the model is asked at once or by a batch, at half the price; `mode` says so outright.
        """
        own = chosen(options)
        return await self._enqueue(self._app.intake(own["tx"]), prompt, own)

    async def enqueue_again(self, run: str, prompt: Prompt, **options: Unpack[RunOptions]) -> Run[T]:
        """`enqueue` for `hf.runs.retry`: the new run says which one it repeats."""
        own = chosen(options)
        intake = self._app.intake(None)
        if isinstance(session := own["session"], Session):
            await session.open(intake, lasting=True)
        wish = self._submission(intake, prompt, own)._replace(retry_of=run)
        return (await self._accept(intake, [wish], own))[0]

    async def run(self, prompt: Prompt, **options: Unpack[RunOptions]) -> Result[T]:
        """Enqueue, then wait for the result; starts a worker in this process if the app may embed one."""
        if options.get("tx") is not None:
            raise UsageError("no worker sees this run before your transaction commits: enqueue it, commit, then wait.")
        self._app.require_key(options.get("model") or self.spec.model, self.spec.kind)
        await self._app.ensure_worker(adopting=self._stored is not None)
        return await (await self.enqueue(prompt, **options)).result()

    def enqueue_sync(self, prompt: Prompt, **options: Unpack[RunOptions]) -> Run[T]:
        """`enqueue` for code without an event loop; with `tx` it uses that connection, on this thread."""
        own = chosen(options)
        if own["tx"] is None:
            return self._app.call(self.enqueue(prompt, **options), "agent.enqueue_sync")
        return drive(self._enqueue(self._app.intake(own["tx"], sync=True), prompt, own))

    def run_sync(self, prompt: Prompt, **options: Unpack[RunOptions]) -> Result[T]:
        return self._app.call(self.run(prompt, **options), "agent.run_sync")

    async def enqueue_many(
        self, prompts: Iterable[Prompt], *, key: Callable[[Any], str] | None = None, **options: Unpack[ManyRunOptions]
    ) -> list[Run[T]]:
        """Enqueue many runs, each in its own session. `key` makes a run's idempotency key from its prompt.

        All of them are accepted or none, by one transaction. More than a thousand are accepted a thousand at a time;
        if the store fails in between, the same call with the same keys continues where it was.
        """
        if isinstance(prompts, str | bytes | Mapping):
            raise UsageError(f"enqueue_many takes a list of prompts; got {validation.shown(prompts)}.")
        if key is not None and not callable(key):
            raise UsageError("key is a function that makes a key from a prompt: key=str.")
        if options.get("session") is not None:
            raise UsageError("runs of one session execute one after the other: enqueue them one by one.")
        own = chosen(options)
        intake = self._app.intake(own["tx"])
        wishes = [
            self._submission(intake, prompt, own if key is None else chosen({**own, "key": key(prompt)}))
            for prompt in prompts
        ]
        made: list[Run[T]] = []
        for begin in range(0, len(wishes), _TOGETHER):
            made += await self._accept(intake, wishes[begin : begin + _TOGETHER], own)
        return made

    async def _enqueue(self, intake: Intake, prompt: Prompt, options: RunOptions) -> Run[T]:
        if isinstance(session := options["session"], Session):
            await session.open(intake, lasting=options["tx"] is None)
        return (await self._accept(intake, [self._submission(intake, prompt, options)], options))[0]

    async def _accept(self, intake: Intake, wishes: Sequence[Submission], options: RunOptions) -> list[Run[T]]:
        if options["require_worker"]:
            await self._require_worker(intake)
        with sending(intake.ports, wishes[0].job, [each.job.id for each in wishes]) as first:
            traced = [each._replace(job=each.job._replace(metadata=first.metadata)) for each in wishes]
            created = await intake.transact(create_runs, traced, intake.settings.announced)
        if options["tx"] is None and self._stored is None:  # what a transaction may undo is not remembered
            self._stored = next((each.agent for each in created if each.agent is not None), None)
        return [self._handle(each) for each in created]

    def _handle(self, created: CreatedRun) -> Run[T]:
        run = Run(self._app, created.run, self._decode, session_id=created.session)
        run.fresh = created.fresh
        if not run.fresh:
            run.state = None  # a run that was there already may be anywhere
        return run

    async def _require_worker(self, intake: Intake) -> None:
        able = await intake.transact(queries.servers_of, [self.spec.kind, *needs_of(self.spec)])
        if not able:
            raise NoWorker(f"no live worker serves agent {self.name!r}: start one, or leave require_worker out.")

    def _submission(self, intake: Intake, prompt: Prompt, options: RunOptions) -> Submission:
        spec, settings = self.spec, intake.settings
        blocks = blocks_of(prompt)
        check_fresh(blocks, intake.ports.clock.wall_us())
        tenant = self.tenant if options["tenant"] is None else options["tenant"]
        session, model, limits = options["session"], options["model"], options["limits"]
        wish = wish_for(session, new_id(intake.ports))
        if isinstance(session, Session) and session.tenant is not None:
            if options["tenant"] not in (None, session.tenant):
                raise UsageError(f"session {session.id} does not belong to tenant {options['tenant']!r}.")
            tenant = session.tenant
        if model is not None:
            check_model(model, spec.options)
        wanted_us = _span(options["answer_within"])
        choice = choose(model or spec.model, options["mode"], wanted_us, settings)
        job, route = run_job(
            new_id(intake.ports),
            spec.name,
            settings,
            tenant=tenant,
            queue=spec.queue,
            priority=spec.priority if options["priority"] is None else options["priority"],
            requires=spec.requires,
            needs=needs_of(spec),
            mode=choice.mode,
            delay_us=_span(options["delay"]),
            due_at=None if options["at"] is None else microseconds(options["at"]),
        )
        own: dict[str, Any] = {}
        if limits is not None:
            own["limits"] = as_stored(limits)
        if model is not None:
            own["model"] = model
        return Submission(
            job=job,
            route=route,
            agent=self._stored or self.named,
            agent_name=spec.name,
            session=wish,
            input=codec.encode(blocks, what="the prompt", cap=settings.prompt_cap),
            mode=choice.mode,
            reason=choice.reason if wanted_us is not None else "",
            deadline_us=wanted_us if options["mode"] is None else None,  # who chooses needs no choosing
            key=options["key"],
            variables=codec.encode(dict(options["variables"] or {}), what="variables", cap=settings.metadata_cap),
            metadata=codec.encode(dict(options["metadata"] or {}), what="metadata", cap=settings.metadata_cap),
            options=codec.encode(own, what="the options", cap=settings.metadata_cap),
            notify=options["notify"],
            during=options["during"],
            lent=options["tx"] is not None,
        )


def _span(duration: Duration | None) -> int | None:
    return None if duration is None else durations.microseconds(duration)
