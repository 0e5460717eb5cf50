"""A shop whose pages are worth a picture: agents, tools that fail, a queue that is paused, people who decide.

Scripts answer in the place of the models; the prices are the models' own.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from holdfast import Agent, Holdfast, Retry
from holdfast.app import core_of
from holdfast.facades.flatagents.triggers import Triggers
from holdfast.machines.triggers import MARK
from holdfast.models import Script, call, calls, reject, say
from holdfast.workers.role import Role

MACHINE = Path(__file__).parents[1] / "examples" / "article.yml"
_REGISTRY = """
triggers:
  - {name: front page, type: cron, schedule: "0 5 * * *", machine: article}
  - {name: letters, type: subprocess, on: work_added, machine: article}
"""
_CUSTOMERS = (("42", "gold"), ("43", "gold"), ("44", "free"))


class Newspaper:
    """What the states of the machine do."""

    def on_action(self, action: str, context: dict[str, Any]) -> dict[str, Any]:
        return {"draft": f"{context['title']}, draft {context['round'] + 1}"} if action == "write_draft" else {}


class Shop(NamedTuple):
    """What the pictures are of, by id."""

    run: str
    session: str
    job: str
    batch: str
    execution: str
    worker: str


async def open_shop(hf: Holdfast) -> Shop:
    """Fill the store, and leave two workers that live."""
    desk, guide, lead = _staff(hf)

    @hf.job(name="reports.print", queue="reports")
    async def report(month: str) -> str:
        return month

    @hf.job(name="feeds.fetch", queue="feeds", retry=Retry(attempts=1))
    async def fetch(url: str) -> None:
        raise ConnectionError(f"{url} does not answer")

    @hf.schedule("0 3 * * *", name="tidy")
    @hf.job(name="tidy")
    async def tidy() -> None:
        """Tidy up."""

    article = hf.machine(MACHINE, hooks=Newspaper)
    _triggers(hf)
    await hf.migrate()
    for id in ("mill-1", "mill-2"):
        await core_of(hf).make_worker(Role(id=id, name="mill")).start()
    execution = await article.enqueue({"title": "The Storm"}, metadata={MARK: "front page"})
    await hf.budgets.set("0.05", tenant="acme", per="1d")
    await hf.budgets.set("400.00", per="30d", policy="ask")
    for customer, plan in _CUSTOMERS:
        marks = {"customer": customer, "plan": plan}
        talk = await hf.session(f"customer {customer}", tenant="acme", metadata=marks)
        await (await talk.send("How do I get to the harbour?", guide, metadata=marks)).result()
    for town in ("Oslo", "Bergen", "Tromso"):
        await guide.enqueue(f"Describe {town}.", tenant="acme", mode="batch")
    for number in range(3):
        await fetch.enqueue(f"https://example.org/news/{number}")
        await _failing(hf, number)
    chat = await hf.session("family trip", tenant="globex", metadata={"customer": "77", "plan": "gold"})
    await (await chat.send("Plan a day for four.", lead)).result()
    asked = await chat.send("My lamp A1 never came.", desk)
    await hf.queues.pause("reports", reason="The printer has no paper.")
    waiting = await report.enqueue("2026-10")
    (batch,) = await hf.batches.list()
    return Shop(asked.id, chat.id, waiting.id, batch.id, execution.id, "mill-2")


def _triggers(hf: Holdfast) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "trigger_registry.yml"
        file.write_text(_REGISTRY)
        Triggers(file, app=hf)


def _staff(hf: Holdfast) -> tuple[Agent[str], Agent[str], Agent[str]]:
    @hf.tool(effect="read")
    def find_order(number: str) -> str:
        """Find an order."""
        return f"order {number}: one lamp, 80 euros, lost on its way"

    @hf.tool(effect="once", approve=True)
    def refund(number: str, euros: int) -> str:
        """Refund an order."""
        return f"{euros} euros for {number}"

    hf.script("claude-haiku-4-5", Script(say("Take **bus 5** from the station. It leaves every ten minutes.")))
    asks = calls(say("I look for it."), call("find_order", number="A1"))
    refunds = calls(say("It is lost. I would refund it."), call("refund", number="A1", euros=80))
    hf.script("claude-sonnet-5-5", Script(asks, refunds, say("You get 80 euros back.")))
    guide = hf.agent("guide", model="claude-haiku-4-5", description="Knows the town.")
    plans = calls(say("I ask the guide."), call("guide", task="Which bus goes to the harbour?"))
    told = "1. Bus 5 to the harbour\n2. Lunch at the pier\n3. The lighthouse, before five"
    hf.script("claude-opus-4-5", Script(plans, say(told)))
    lead = hf.agent("planner", model="claude-opus-4-5", agents=[guide], description="Plans a day.")
    desk = hf.agent("desk", model="claude-sonnet-5-5", tools=[find_order, refund], description="Answers customers.")
    return desk, guide, lead


async def _failing(hf: Holdfast, number: int) -> None:
    """A tool that fails, and an agent whose model does not take what it is sent."""
    if number == 0:

        @hf.tool(retry=Retry(attempts=1))
        def weigh(parcel: str) -> str:
            """Weigh a parcel."""
            raise ValueError(f"the scale shows nothing for parcel {parcel}")

        hf.script("weigher", Script(call("weigh", parcel=str(number)), say("It cannot be weighed.")))
        hf.agent("weigher", model="scripted:weigher", tools=[weigh])
        hf.script("reader", Script(reject("the picture is larger than 5 MB")))
        hf.agent("reader", model="scripted:reader")
    weigher, reader = await hf.agents.named("weigher"), await hf.agents.named("reader")
    await (await weigher.enqueue(f"Weigh parcel {number}.", tenant="acme")).result()
    await reader.enqueue(f"Read label {number}.", tenant="acme")
