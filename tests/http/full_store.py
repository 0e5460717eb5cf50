"""A store in which everything has happened that pages show, with texts that a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast import Agent, Holdfast, JobContext, Tool
from holdfast.access.principals import Principal
from holdfast.facades.flatagents.triggers import Triggers
from holdfast.kernel.retry import RetryPolicy
from holdfast.machines.triggers import MARK
from holdfast.models.protocol import Wire
from holdfast.models.script import Part, Script, call, calls, last_user_text, reject, say, think
from tests.http.test_security import as_principal
from tests.support.apps import eventually, working

MACHINE = """
spec: flatmachine
spec_version: "0.8.3"
data:
  name: article_{n}
  context:
    title: "{{{{ input.title }}}}"
  states:
    write_{n}:
      type: initial
      transitions:
        - to: ask_{n}
    ask_{n}:
      wait_for: "editor_{n}"
      output_to_context:
        verdict: "{{{{ output.verdict }}}}"
      transitions:
        - condition: "context.verdict == '<img src=x onerror=pwned()>'"
          to: done_{n}
        - to: write_{n}
    done_{n}:
      type: final
      output:
        verdict: "{{{{ context.verdict }}}}"
"""
TRIGGERS = """
triggers:
  - name: nightly_{n}
    type: cron
    machine: article_{n}
    schedule: "0 3 * * *"
  - name: added_{n}
    type: subprocess
    machine: article_{n}
    on: work_added
"""
_BATCHED = ("batch_submitting", "batch_pending", "batch_processing")
_SETTLED = ("completed", "failed", "awaiting_input", *_BATCHED)


class FullStore:
    """`texts` are what everybody writes; what is named `agent_3` writes the third."""

    def __init__(self, hf: Holdfast, folder: Path, texts: Sequence[str], rows: int) -> None:
        self.hf = hf
        self._folder = folder
        self._texts = [each.replace("\0", "") for each in texts]
        self._rows = rows
        self._question = hf.inquiries.question()

    def text(self, number: int, longest: int = 2_000_000) -> str:
        return self._texts[number % len(self._texts)][:longest]

    async def fill(self) -> None:
        agents = [self._agent(number) for number in range(self._rows)]
        machines = [self._machine(number) for number in range(self._rows)]
        for number in range(self._rows):
            self._declare_jobs(number)
        async with working(self.hf):
            for number, agent in enumerate(agents):
                await self._converse(number, agent)
                await self._enqueue(number)
                started = {MARK: self.text(number, 200)}
                await machines[number].enqueue({"title": self.text(number, 20_000)}, metadata=started)
                await self.hf.budgets.set("1.00", tenant=f"tenant_{number}", per="1d")
                await self.hf.access.tokens.create(f"token_{number}", by=f"maker_{number}", tenant=f"tenant_{number}")
            await eventually(self._settled)
        async with self.hf.pool("pool_0", min=0, max=2):
            pass
        await self._ask_the_web()

    def _agent(self, n: int) -> Agent[str]:
        text, other = self.text(n), self.text(n + 1)
        last: dict[str, Part] = {
            "well": say(text),
            "asks": call(f"pay_{n}", to=text[:20_000], note={_key(other): text[:2_000]}),
            "question": call("ask_person", question=text[:2_000], choices=[text[:200], "no"]),
            "fails": reject(text[:5_000]),
        }
        first = calls(say(text), call(f"echo_{n}", text=text), call(f"fail_{n}", text=text[:20_000]))
        self.hf.script(f"script_{n}", Script(think(text[:20_000]), first, _by_prompt(last), say(text)))
        return self.hf.agent(
            f"agent_{n}",
            model=f"scripted:script_{n}",
            instructions=text[:20_000],
            description=other[:2_000],
            metadata={_key(other): text[:2_000]},
            tools=[*self._tools(n), self._question],
        )

    def _tools(self, n: int) -> list[Tool[Any, Any]]:
        def echo(text: str) -> str:
            return text

        def fail(text: str) -> str:
            raise ValueError(text)

        def pay(to: str, note: dict[str, Any]) -> str:
            return f"paid {to}"

        for each in (echo, fail, pay):
            each.__doc__ = self.text(n, 2_000)
        return [
            self.hf.tool(name=f"echo_{n}")(echo),
            self.hf.tool(name=f"fail_{n}", retry=RetryPolicy.none())(fail),
            self.hf.tool(name=f"pay_{n}", approve=True)(pay),
        ]

    def _machine(self, n: int) -> Any:
        file = self._folder / f"article_{n}.yml"
        file.write_text(MACHINE.format(n=n))
        registry = self._folder / f"triggers_{n}.yml"
        registry.write_text(TRIGGERS.format(n=n))
        Triggers(registry, app=self.hf)
        return self.hf.machine(file)

    def _declare_jobs(self, n: int) -> None:
        @self.hf.schedule("0 3 * * *", name=f"schedule_{n}", args={"text": self.text(n, 5_000)})
        @self.hf.job(name=f"nightly_{n}", queue=f"queue_{n}")
        async def nightly(text: str) -> None:
            return None

        @self.hf.job(name=f"kind_{n}", queue=f"queue_{n}", retry=RetryPolicy.none(), concurrency=2)
        async def work(ctx: JobContext, text: str) -> str:
            await ctx.step(f"step_{n}", _same, text)
            await ctx.progress({"said": text[:2_000]})
            if ctx.metadata.get("fails"):
                raise ValueError(text)
            return text

    async def _converse(self, n: int, agent: Agent[str]) -> None:
        text = self.text(n)
        told = {_key(text): text[:2_000]}
        for end in ("well", "asks", "fails", "question") if len(text) < 100_000 else ("well",):
            session = await self.hf.session(f"key_{n}_{end}", tenant=f"tenant_{n}", metadata=told)
            await session.send(f"{end}: {text}", agent, metadata=told)
        await agent.enqueue(f"well: {text[:5_000]}", mode="batch", tenant=f"tenant_{n}", metadata=told)

    async def _enqueue(self, n: int) -> None:
        text = self.text(n)
        for fails in (False, True):
            metadata = {"fails": fails, _key(text): text[:2_000]}
            await self.hf.enqueue(
                f"kind_{n}", {"text": text}, tenant=f"tenant_{n}", metadata=metadata, lane=f"lane_{n}"
            )
        await self.hf.enqueue(f"unknown_{n}", {"text": text}, queue=f"shut_{n}", requires=[f"need_{n}"])
        await self.hf.queues.pause(f"shut_{n}", reason=self.text(n, 1_000))

    async def _settled(self) -> bool:
        runs = await self.hf.runs.list(limit=1_000)
        left = await self.hf.jobs.list(state="pending", limit=1_000)
        return all(each.state in _SETTLED for each in runs) and all(each.kind.startswith("unknown_") for each in left)

    async def _ask_the_web(self) -> None:
        """Plans, actions, and an audit of it."""
        for n in range(self._rows):
            client = as_principal(self.hf, Principal(f"actor_{n}", "admin"))
            text = self.text(n, 500).replace("{", "(")
            task = {"task_number": 1, "command": "wc", "args": ["-l", text]}
            plan = {"plan_id": f"plan_{n}", "plan_description": text, "tasks": [task]}
            made = await client.post("/api/v1/plans", plan)
            assert made.status == 201, made.body
            begun = await client.post("/api/v1/actions", {"plan": f"plan_{n}", "inputs": [text]})
            assert begun.status < 300, begun.body


def _key(text: str) -> str:
    return text[:40] or "key"


def _same(text: str) -> str:
    return text


def _by_prompt(steps: dict[str, Part]) -> Callable[[list[Wire]], Part]:
    """What a run does depends on how its prompt begins."""
    return lambda messages: steps[last_user_text(messages).partition(":")[0]]
