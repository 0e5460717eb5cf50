"""Events of runs are hinted while some process reads them, and not else."""

from __future__ import annotations

from holdfast import Holdfast
from holdfast.agents.core import prune
from holdfast.agents.events.log import Changes
from holdfast.agents.events.reader import begin_reading, end_reading
from holdfast.app import core_of
from holdfast.kernel.database import Transaction
from holdfast.models.script import say
from tests.support.agents import scripted
from tests.support.apps import MakeApp, eventually, working
from tests.support.stores import Store


async def test_a_run_that_nobody_reads_is_not_hinted(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    notes: list[str] = []
    async with working(hf):
        await core_of(hf).runtime().database.listen(notes.append)
        run = await agent.enqueue("Hello")
        await eventually(lambda: ended(hf, run.id))
        assert [note for note in notes if note.startswith("run ")] == []
        read = await agent.enqueue("Hello")
        assert await read.text() == "done"
        await eventually(lambda: heard(notes, read.id))


async def test_whoever_streams_is_a_reader_until_the_app_closes(make_app: MakeApp) -> None:
    hf, other = make_app(embedded=False), make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    async with working(hf):
        run = await agent.enqueue("Hello")
        assert [event async for event in other.runs[run.id].stream()]
        assert await core_of(hf).runtime().transact(readers)
        await other.close()
        assert not await core_of(hf).runtime().transact(readers)


async def test_a_reader_counts_until_its_time_is_over(store: Store) -> None:
    assert not await store.do(readers)
    await store.do(begin_reading, "one")
    await store.do(begin_reading, "two")
    assert await store.do(readers)
    await store.do(end_reading, "two")
    await store.advance("15s")
    assert await store.do(readers)
    await store.do(begin_reading, "one")
    await store.advance("15s")
    assert await store.do(readers)
    await store.advance("6s")
    assert not await store.do(readers)
    assert await store.query("select id from holdfast.reader") == [("one",)]
    await store.do(prune, store.settings)
    assert await store.query("select id from holdfast.reader") == []


class Overheard:
    """A transaction, and the hints of it."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.notes: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._tx, name)

    async def hint(self, note: str) -> None:
        self.notes.append(note)


async def readers(tx: Transaction) -> bool:
    """Whether an event that is written now is hinted."""
    overheard = Overheard(tx)
    changes = Changes()
    changes.tell("018f0000-0000-7000-8000-000000000000", "something")
    await changes.write(overheard)  # type: ignore[arg-type]
    assert overheard.notes in ([], ["run 018f0000-0000-7000-8000-000000000000"])
    return bool(overheard.notes)


async def ended(hf: Holdfast, run: str) -> bool:
    return (await hf.runs[run].refresh()).state == "completed"


async def heard(notes: list[str], run: str) -> bool:
    return any(note.startswith("run ") and run in note for note in notes)
