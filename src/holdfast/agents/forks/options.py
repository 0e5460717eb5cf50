"""How a run is forked: what is to be different, checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple, get_args

from holdfast.agents.contents import Prompt, blocks_of
from holdfast.agents.deciding import run_job
from holdfast.agents.definitions import Limits
from holdfast.agents.files import check_fresh
from holdfast.agents.forks.forking import ForkWish, Origin
from holdfast.agents.forks.simulating import Policy, Tools
from holdfast.agents.options import check_model
from holdfast.agents.reaching import App
from holdfast.errors import UsageError
from holdfast.kernel import encoding
from holdfast.kernel.ids import new_id


class ForkOptions(NamedTuple):
    """What whoever forks a run wants."""

    at: int | None
    prompt: Prompt | None
    model: str | None
    results: Mapping[str, Any]
    tools: Policy
    limits: Limits | None
    key: str | None

    def for_origin(self, origin: Origin, app: App, tenant: str | None) -> ForkWish:
        """The fork of this run, as the store is asked for it."""
        self._check()
        settings, ports = app.settings, app.runtime().ports
        run, spec = origin
        job, route = run_job(
            new_id(ports),
            spec.name,
            settings,
            tenant=run.tenant,
            queue=spec.queue,
            priority=spec.priority,
            requires=spec.requires,
        )
        prompt = None
        if self.prompt is not None:
            blocks = blocks_of(self.prompt)
            check_fresh(blocks, ports.clock.wall_us())
            prompt = encoding.encode(blocks, what="the prompt", cap=settings.prompt_cap)
        return ForkWish(
            source=run.id,
            session=new_id(ports),
            job=job,
            route=route,
            at=self.at,
            prompt=prompt,
            results=encoding.encode(dict(self.results), what="the results", cap=settings.prompt_cap),
            options=encoding.encode(self._own(origin), what="the options", cap=settings.metadata_cap),
            key=self.key,
            tenant=tenant,
        )

    def _check(self) -> None:
        if self.tools not in (*get_args(Tools), "replayed"):
            raise UsageError(f"tools is one of {', '.join(get_args(Tools))}, not {self.tools!r}.")
        if self.at is not None and self.at < 1:
            raise UsageError(f"at is the number of a turn, from 1; not {self.at!r}.")
        if self.limits is not None and not isinstance(self.limits, Limits):
            raise UsageError(f"limits is Limits(…), not {type(self.limits).__name__}.")

    def _own(self, origin: Origin) -> dict[str, Any]:
        own: dict[str, Any] = encoding.decode(origin.run.options)
        own = {name: value for name, value in own.items() if name != "beyond_budget"}
        own["fork"] = {"tools": self.tools}
        if self.limits is not None:
            own["limits"] = asdict(self.limits)
        if self.model is not None:
            check_model(self.model, origin.spec.options)
            own["model"] = self.model
        return own
