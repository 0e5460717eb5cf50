"""Batch mode, compaction and budgets: results applied a minute, a long session made short, the cost of a check."""

from __future__ import annotations

from functools import partial

from bench import meter
from bench.contenders import HOLDFAST, Contender
from bench.contenders.protocol import Order
from bench.figures import Sample, Subject
from bench.players import Player
from bench.session import Session
from bench.stores import PostgresStores, Recipe

FINAL = Subject("batches.final", "final turns of batches applied by one worker", "turns/min")
TOOLED = Subject("batches.tooled", "turns that each start a tool call applied by one worker", "turns/min")
HYBRID = Subject("batches.hybrid", "a session of 200,000 tokens pruned", "ms", more_is_better=False)
SUMMARY = Subject("batches.summary", "the same summarised, the model's time left out", "ms", more_is_better=False)
UNBUDGETED = Subject("batches.unbudgeted", "the begin of a turn without budgets, p50", "ms", more_is_better=False)
BUDGETED = Subject("batches.budgeted", "the begin of a turn under two budgets, p50", "ms", more_is_better=False)
PART = "holdfast_batches"

HOW = """
A scripted model in the worker's process keeps the batches; when all runs wait for one, it ends, and what is measured is
from the first result to the last that is applied: messages, usage, costs, events, the end of the run, or a tool call
with its job. The session is read, planned and rewritten; the summariser answers at once. A budget check is two
statements more in the transaction that begins a turn.
"""


def measure(session: Session) -> None:
    stores = PostgresStores()

    def run(contender: Contender) -> None:
        for subject, what in ((FINAL, "final"), (TOOLED, "tooled")):
            session.cell(contender, partial(_collect, session, contender, stores, subject, what))
        played = partial(_play, session, contender, stores)
        session.cell(contender, partial(played, "compact", n=0, figures={HYBRID: "hybrid", SUMMARY: "summarize"}))
        figures = {UNBUDGETED: "without", BUDGETED: "budgeted"}
        session.cell(contender, partial(played, "budget", n=session.scale.agent_turns, figures=figures))

    try:
        session.rounds(
            session.contenders("postgres", only=frozenset({HOLDFAST})), run, rounds=session.scale.long_rounds
        )
    finally:
        stores.close()


def _empty(what: str) -> Recipe:
    return Recipe(f"batches_{what}", lambda _contender, _url: None)


def _collect(session: Session, contender: Contender, stores: PostgresStores, subject: Subject, what: str) -> None:
    n = session.scale.batch_turns
    session.progress.show(f"batches: {n} {what} turns")
    with stores.lend(contender, _empty(what)) as store:
        order = Order(url=store.url, n=n, what=what)
        with Player.of(contender, "collect", order, limit=session.scale.limit, part=PART) as player:
            player.expect("ready")
            before = meter.read()
            player.go()
            told = player.expect("done")
            lap = meter.lap(before, meter.read())
    session.record(subject, contender.name, Sample.of(60 * n / told["seconds"], lap, jobs=n))


def _play(
    session: Session,
    contender: Contender,
    stores: PostgresStores,
    verb: str,
    *,
    n: int,
    figures: dict[Subject, str],
) -> None:
    session.progress.show(f"batches: {verb}")
    limit = session.scale.limit
    with (
        stores.lend(contender, _empty(verb)) as store,
        Player.of(contender, verb, Order(url=store.url, n=n), limit=limit, part=PART) as player,
    ):
        player.expect("ready")
        before = meter.read()
        player.go()
        told = player.expect("done")
        lap = meter.lap(before, meter.read())
    for subject, name in figures.items():
        session.record(subject, contender.name, Sample.of(told[name], lap))
