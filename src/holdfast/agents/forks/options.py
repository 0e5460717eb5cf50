"""How a run is forked: what is to be different, checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from holdfast import validation
from holdfast.agents.api.options import check_model
from holdfast.agents.attachments import check_blocks
from holdfast.agents.content import Prompt, blocks_of, content_of
from holdfast.agents.core import AgentsCore
from holdfast.agents.definition import Limits, Mode
from holdfast.agents.file_references import check_fresh
from holdfast.agents.forks.fork import ForkWish, Origin
from holdfast.agents.forks.simulation import Policy, Tools
from holdfast.agents.runs.decision import run_job
from holdfast.agents.runs.needs import needs_of
from holdfast.agents.stored_form import as_stored
from holdfast.errors import UsageError
from holdfast.kernel import codec
from holdfast.kernel.ids import new_id
from holdfast.outcomes import Cancel, Discard


def result_of(value: Any, cap: int) -> dict[str, Any]:
    """What a tool returned, as its result tells the model; an exception is how it failed. Blocks stay as they are."""
    if isinstance(value, BaseException):
        named = "" if isinstance(value, Cancel | Discard) else f"{type(value).__name__}: "
        return {"content": content_of(f"{named}{value}", cap), "is_error": True}
    if isinstance(value, list) and value and all(isinstance(each, dict) and "type" in each for each in value):
        check_blocks(value)
        return {"content": value}
    content = content_of(value, cap)
    return {"content": content} if content else {}


class ForkOptions(NamedTuple):
    """What the caller of a fork wants."""

    at: int | None
    prompt: Prompt | None
    model: str | None
    results: Mapping[str, Any]
    tools: Policy
    limits: Limits | None
    key: str | None
    mode: Mode = "streaming"

    def for_origin(self, origin: Origin, app: AgentsCore, tenant: str | None) -> ForkWish:
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
            needs=[] if self.tools == "replayed" else needs_of(spec),  # what is replayed calls nothing
            mode=self.mode,
        )
        prompt = None
        if self.prompt is not None:
            blocks = blocks_of(self.prompt)
            check_fresh(blocks, ports.clock.wall_us())
            prompt = codec.encode(blocks, what="the prompt", cap=settings.prompt_cap)
        return ForkWish(
            source=run.id,
            session=new_id(ports),
            job=job,
            route=route,
            at=self.at,
            prompt=prompt,
            results=codec.encode(
                {name: result_of(value, settings.tool_output_cap) for name, value in self.results.items()},
                what="the results",
                cap=settings.prompt_cap,
            ),
            options=codec.encode(self._own(origin), what="the options", cap=settings.metadata_cap),
            mode=self.mode,
            key=self.key,
            tenant=tenant,
        )

    def _check(self) -> None:
        if self.tools not in (*get_args(Tools), "replayed"):
            raise UsageError(f"tools is one of {', '.join(get_args(Tools))}, not {self.tools!r}.")
        if self.mode not in get_args(Mode):
            raise UsageError(f"mode is one of {', '.join(get_args(Mode))}, not {self.mode!r}.")
        at: object = self.at
        if at is not None and (not isinstance(at, int) or isinstance(at, bool) or at < 1):
            raise UsageError(f"at is the number of a turn, from 1; not {validation.shown(at)}.")
        validation.mapping(self.results, "results")
        validation.instance(self.limits, "limits", Limits)

    def _own(self, origin: Origin) -> dict[str, Any]:
        own: dict[str, Any] = codec.decode(origin.run.options)
        own = {name: value for name, value in own.items() if name != "beyond_budget"}
        own["fork"] = {"tools": self.tools}
        if self.limits is not None:
            own["limits"] = as_stored(self.limits)
        if self.model is not None:
            check_model(self.model, origin.spec.options)
            own["model"] = self.model
        return own
