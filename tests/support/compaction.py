"""Sessions to be compacted in tests: long enough, and watched by a model that refuses what the provider would."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from holdfast import Agent, Compaction, Holdfast, Session
from holdfast.agents.compaction.compactor import look
from holdfast.agents.compaction.records import HistoryBlock
from holdfast.app import core_of
from holdfast.models import Model, ModelFailure
from holdfast.models.protocol import Request, ResponseHead, Wire
from holdfast.models.script import Script, call, say, think
from holdfast.models.scripted import ScriptedModel
from holdfast.models.simulator.http import RequestRefused
from holdfast.models.simulator.strict import check_request
from holdfast.models.wire import KEY

SUMMARY = "## Goal\nTo know the weather."
SMALL = Compaction(preserve_last=2, protected_tokens=50, target_tokens=2_000, window=10_000, summarizer="scripted:sum")


class Strict:
    """Answers by the script of each model's name, notes every request, and refuses what the provider refuses."""

    def __init__(self, scripts: Mapping[str, Script], others: Mapping[str, Model] | None = None) -> None:
        self.models: dict[str, Model] = {name: ScriptedModel(script) for name, script in scripts.items()}
        self.models.update(others or {})
        self.requests: list[Request] = []
        self.counts = 0
        self.uncounted = False  # whether the counting API fails
        self.counting: int | None = None  # what it says instead of counting

    def play(self, model: str, script: Script) -> None:
        """Let one more model answer, by a script."""
        self.models[model] = ScriptedModel(script)

    async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> AsyncGenerator[Wire, None]:
        self.requests.append(request)
        try:
            check_request(request.body(), key=KEY, account="")
        except RequestRefused as refused:
            raise ModelFailure("bad_request", f"refused: {refused}", bought="no") from refused
        async for event in self.models[request.model].stream(request, answered):
            yield event

    async def count_tokens(self, request: Request) -> int:
        self.counts += 1
        if self.uncounted:
            raise ModelFailure("server", "no counting today", bought="no")
        check_request(request.body(), key=KEY, account="", counting=True)
        if self.counting is not None:
            return self.counting
        return await self.models[request.model].count_tokens(request)

    async def close(self) -> None: ...

    def asked(self, model: str) -> list[Request]:
        return [request for request in self.requests if request.model == model]


def talker(hf: Holdfast, others: Mapping[str, Model] | None = None, **options: Any) -> tuple[Agent[str], Strict]:
    """An agent that thinks, looks something long up, and answers; and the model that plays it and its summariser."""

    @hf.tool(effect="read")
    def look_up(what: str) -> str:
        """Look something up."""
        return f"{what}: " + "rain and wind, " * 200

    script = Script(think("I should look."), call("look_up", what="weather"), think("So it is."), say("It will rain."))
    model = Strict({"scripted:talk": script, "scripted:sum": Script(say(SUMMARY))}, others)
    core_of(hf).book.substitute = model
    agent = hf.agent("talker", model="scripted:talk", instructions="Help.", tools=[look_up], **options)
    return agent, model


async def talk(session: Session, agent: Agent[str], times: int) -> None:
    for number in range(times):
        result = await agent.run(f"Question {number}?", session=session)
        assert result.outcome == "answered"


async def sent_now(hf: Holdfast, session: Session) -> list[HistoryBlock]:
    """The blocks that would be sent, byte for byte."""
    return (await core_of(hf).runtime().transact(look, session.id)).rows
