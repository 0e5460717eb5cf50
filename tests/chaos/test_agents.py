"""kill -9 at every moment of a run: it ends as if nothing had happened, and no recorded answer is bought again."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import Holdfast
from holdfast.agents.api.run import Run
from holdfast.app import core_of
from holdfast.events import Event, InputDelta, RunEnded, TextDelta, TurnRestarted
from holdfast.models.protocol import Request, ResponseHead, Wire
from holdfast.models.script import Script, call, say
from holdfast.models.scripted import ScriptedModel
from holdfast.models.spool import read_witness
from holdfast.settings import Settings
from tests.chaos import agents
from tests.chaos.agents import APP, STORY, boss, caller, payer, teller
from tests.chaos.crew import Crew, Member
from tests.chaos.scene import Scene, Witness
from tests.chaos.watch import Watch
from tests.support.apps import eventually, settings_with, working
from tests.support.exchanges import Said, broken_exchange, purchases
from tests.support.invariants import check_whole
from tests.support.proxy import Proxy

pytestmark = pytest.mark.chaos

FAILPOINTS = [
    ("claim", "after", 1),  # K1
    ("begin", "after", 1),  # K2: the intent is stored, the request has not left
    ("commit", "before", 1),  # K5: the whole answer is here, and is not stored
    ("commit", "after", 1),  # K7: stored with its calls, which nobody has started
    ("complete_and_settle", "before", 1),  # K8: the tool's effect is there, its result is not
    ("complete_and_settle", "after", 2),  # K9: a result is there, nobody goes on
    ("commit", "before", 4),  # K11
    ("commit", "after", 4),
]
QUICKLY: dict[str, Any] = {"rescue_backoff": "50ms", "presence_grace": "100ms"}


class Turn(NamedTuple):
    run: str
    number: int
    state: str
    attempts: int
    unknown: int


class Stage(NamedTuple):
    """A scene whose workers run agents, and what the models among them were asked."""

    scene: Scene
    asked: Path

    def worker(self, **settings: Any) -> Member:
        return self.scene.worker(app=APP, script_witness=self.asked, **{**QUICKLY, **settings})

    async def registered(self, **settings: Any) -> Member:
        member = self.worker(**settings)
        await member.says("registered as")
        return member

    @property
    def variables(self) -> dict[str, str]:
        return {"witness": str(self.scene.witness)}

    def sent(self, run: str) -> int:
        return sum(n for (asked, _), n in purchases(read_witness(self.asked)).items() if asked == run)

    async def turns(self, besides: str = "") -> list[Turn]:
        """Of every agent but one."""
        rows = await self.scene.watch.query(
            "select t.run, t.number, t.state, t.attempts, t.unknown from holdfast.turn t "
            f"join holdfast.run r on r.id = t.run where r.agent_name <> '{besides}'"
        )
        return [Turn(*row) for row in rows]


@pytest.fixture
async def stage(url: str, tmp_path: Path, watch: Watch, crew: Crew) -> AsyncIterator[Stage]:
    agents.hf.settings = Settings(url=url)
    scene = Scene(url, tmp_path, agents.hf, watch, crew, Witness(tmp_path / "witness.txt"))
    yield Stage(scene, tmp_path / "asked.jsonl")
    await agents.hf.close()


async def everything_is_whole(stage: Stage, *, besides: str = "") -> None:
    """What must hold after any number of deaths, once every run has ended. `besides`: an agent of another witness."""
    watch, bought = stage.scene.watch, purchases(read_witness(stage.asked))
    for turn in await stage.turns(besides):
        assert turn.state == "completed"
        assert 1 <= bought[turn.run, turn.number] <= 1 + turn.unknown, turn
    branches: defaultdict[tuple[str, str], dict[int, tuple[str, str, list[Any]]]] = defaultdict(dict)
    for session, branch, ordinal, role, run, body in await watch.query(
        "select m.session, m.branch, m.ordinal, m.role, m.run, cast(b.body as text) from holdfast.message m "
        "join holdfast.block b on b.message = m.id order by m.session, m.branch, m.ordinal, b.ordinal"
    ):
        branches[session, branch].setdefault(ordinal, (role, run, []))[2].append(json.loads(body))
    for told in branches.values():
        assert list(told) == list(range(1, len(told) + 1))
        assert not broken_exchange([Said(*message) for message in told.values()], open_tail=False)
    for run, events, last, count in await watch.query(
        "select r.id, r.events, max(e.seq), count(*) from holdfast.run r join holdfast.run_event e on e.run = r.id "
        "group by r.id, r.events"
    ):
        assert events == last == count, run
    for run, total, counted in await watch.query(
        "select r.id, r.output_tokens, (select sum(t.output_tokens) from holdfast.turn t where t.run = r.id) "
        "from holdfast.run r"
    ):
        assert total == counted > 0, run
    check_whole(await watch.snapshot())


async def test_a_kill_at_any_commit_of_a_run_loses_and_repeats_nothing(stage: Stage) -> None:
    scene = stage.scene
    scene.hf.settings = settings_with(url=scene.url, max_rescues=50, max_rescue_attempts=50)
    doomed = {
        failpoint: scene.crew.script("doomed_agents", scene.url, stage.asked, *failpoint) for failpoint in FAILPOINTS
    }
    runs = [await boss.enqueue(f"Go {n}", variables=stage.variables) for n in range(6)]

    async def all_died() -> bool:
        """Meanwhile there is work enough for everybody to reach the point where it dies."""
        if len(runs) < 60 and sum(row.state == "completed" for row in await scene.hf.runs.list()) > len(runs):
            runs.append(await boss.enqueue(f"Go {len(runs)}", variables=stage.variables))
        return not any(member.running for member in doomed.values())

    await eventually(all_died)
    assert {failpoint: await member.leaves() for failpoint, member in doomed.items()} == dict.fromkeys(FAILPOINTS, -9)
    stage.worker()
    results = [await run.result(timeout="60s") for run in runs]
    assert [(result.text, result.turns) for result in results] == [("all done", 2)] * len(runs)
    rows = await scene.hf.runs.list(limit=1_000)
    assert Counter((row.agent_name, row.state, row.turns) for row in rows) == {
        ("boss", "completed", 2): len(runs),
        ("clerk", "completed", 2): len(runs),
    }
    await everything_is_whole(stage)
    unknown = sum(turn.unknown for turn in await stage.turns())
    bought = purchases(read_witness(stage.asked)).total()
    assert 4 * len(runs) + 2 <= bought <= 4 * len(runs) + unknown  # two died with an answer in their hands
    starts = Counter(line.split()[1] for line in scene.witness.lines)
    assert len(starts) == 3 * len(runs)


async def test_a_reader_follows_a_run_whose_worker_is_killed_while_it_answers(stage: Stage) -> None:
    """One is killed mid-stream, the other when its request was sent and not a byte had come back."""
    victim = stage.worker(script_pace="700ms")
    telling = await teller.enqueue("Tell")
    reading = asyncio.create_task(read(telling))
    await eventually(lambda: some(telling, TextDelta))
    silent = await teller.enqueue("Tell me too")
    await eventually(lambda: was_sent(stage, silent))
    assert not await some(silent, TextDelta)
    rescuer = await stage.registered()
    victim.kill()
    assert [await run.text(timeout="60s") for run in (telling, silent)] == [STORY, STORY]
    assert victim.pid != rescuer.pid
    events = await reading
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    (restarted,) = [place for place, event in enumerate(events) if isinstance(event, TurnRestarted)]
    assert any(isinstance(event, TextDelta) for event in events[:restarted])
    assert text(events[restarted:]) == STORY
    assert isinstance(events[-1], RunEnded)
    for run in (telling, silent):
        assert stage.sent(run.id) == 2
        assert [(turn.attempts, turn.unknown) for turn in await stage.turns() if turn.run == run.id] == [(2, 1)]
    await everything_is_whole(stage)


@pytest.mark.long
async def test_calls_over_http_that_nobody_hears_the_end_of_are_made_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed with one request out and no byte back, and another in the middle of its stream."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-test")
    unheard = {"match": {"nth": 1}, "do": {"slow_headers": 3600}}
    broken_off = {"match": {"nth": 2}, "do": {"stall": {"after": 5}}}
    url = await provider_of(stage, unheard, broken_off)
    victim = stage.worker(provider_url=url)
    silent = await caller.enqueue("Look", variables=stage.variables)
    await eventually(lambda: was_sent(stage, silent))
    cut_off = await caller.enqueue("Look too", variables=stage.variables)
    reading = asyncio.create_task(read(cut_off))
    await eventually(lambda: some(cut_off, InputDelta))
    await stage.registered(provider_url=url)
    victim.kill()
    assert [await run.text(timeout="60s") for run in (silent, cut_off)] == [STORY, STORY]
    events = await reading
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert text(after_restart(events)) == STORY
    for run in (silent, cut_off):
        turns = sorted(turn for turn in await stage.turns() if turn.run == run.id)
        assert [(turn.attempts, turn.unknown) for turn in turns] == [(2, 1), (1, 0)]
        assert stage.sent(run.id) == 3
    assert not [line for line in read_witness(stage.asked) if line.get("rejected")]
    await everything_is_whole(stage)


async def provider_of(stage: Stage, *rules: dict[str, Any]) -> str:
    """A provider in a process of its own, which fails by these rules."""
    folder = stage.scene.folder
    said = [{"call": ["look_up", {"word": "a word that takes its time"}]}, {"say": STORY}]
    (folder / "script.json").write_text(json.dumps(said))
    (folder / "rules.json").write_text(json.dumps(rules))
    given = {"--script": "script.json", "--rules": "rules.json", "--witness": stage.asked.name}
    words = [word for option, name in given.items() for word in (option, str(folder / name))]
    member = stage.scene.crew.start("holdfast", "provider", "--port", "0", *words)
    return (await member.says("provider simulator on")).split()[3].rstrip(";")


async def test_a_tool_killed_after_its_effect_runs_again_under_its_key_and_once_means_once(stage: Stage) -> None:
    scene, gate = stage.scene, stage.scene.gate()
    victim = stage.worker()
    run = await payer.enqueue("Pay", variables={**stage.variables, "gate": str(gate)})
    await eventually(lambda: took_effect(stage, 2))
    await stage.registered()
    victim.kill()
    gate.open()
    assert await run.text(timeout="60s") == "settled"
    made = {each.name: each for each in await run.calls()}
    assert (made["look_up"].state, made["pay"].state) == ("completed", "failed")
    starts = Counter(tuple(line.split()[:2]) for line in scene.witness.lines)
    assert starts == {("look_up", made["look_up"].id): 2, ("pay", made["pay"].id): 1}
    assert stage.sent(run.id) == 2
    await everything_is_whole(stage)


@pytest.mark.long
async def test_a_worker_told_to_go_hands_its_run_back_at_the_end_of_its_grace(stage: Stage) -> None:
    """K12: what cannot be finished in time is released, not lost, and goes on elsewhere; but once means once."""
    gate = stage.scene.gate()
    leaving = stage.worker(script_pace="300ms", drain_grace="100ms")
    paying = await payer.enqueue("Pay", variables={**stage.variables, "gate": str(gate)})
    await eventually(lambda: took_effect(stage, 2))
    run = await teller.enqueue("Tell")
    await eventually(lambda: some(run, TextDelta))
    leaving.send(signal.SIGTERM)
    stage.worker()
    await eventually(lambda: took_effect(stage, 3))
    gate.open()
    assert await run.text(timeout="60s") == STORY
    assert await paying.text(timeout="60s") == "settled"
    assert {each.name: each.state for each in await paying.calls()} == {"pay": "failed", "look_up": "completed"}
    assert Counter(line.split()[0] for line in stage.scene.witness.lines) == {"pay": 1, "look_up": 2}
    assert await leaving.leaves() == 0
    assert await stage.scene.watch.outcomes(run.id) == ["released", "succeeded"]
    assert stage.sent(run.id) == 2
    assert text(after_restart(await run.events())) == STORY
    await everything_is_whole(stage)


@pytest.mark.long
@pytest.mark.parametrize("dialect", ["postgres"])
async def test_postgres_answers_to_commits_that_are_lost_repeat_nothing(url: str, watch: Watch, tmp_path: Path) -> None:
    """K6: every other commit is done, and its link is cut before the answer."""
    async with Proxy(url) as proxy:
        far = Holdfast(proxy.url, settings=settings_with(stream_interval="20ms"), embedded=False)
        asked = tmp_path / "asked.jsonl"
        script = Script(call("look_up", word="cat"), say(STORY), say("never"))
        model = Losing(ScriptedModel(script, pace=0.01, witness=asked), proxy)
        core_of(far).book.substitute = model
        starts: Counter[str] = Counter()

        @far.tool
        async def look_up(word: str) -> str:
            """Look a word up."""
            starts[word] += 1
            return f"looked up {word}"

        agent = far.agent("far", model="scripted:far", tools=[look_up])
        async with working(far):
            runs = [await agent.enqueue("Go", session="one") for _ in range(3)]
            assert [await run.text(timeout="60s") for run in runs] == [STORY] * 3
        assert model.lost >= 6
        for run in runs:
            turns = await run.turns()
            assert [(turn.state, turn.attempts, turn.unknown) for turn in turns] == [("completed", 1, 0)] * 2
            events = await run.events()
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert text(events) == STORY
            assert await watch.outcomes(run.id) in (["parked", "succeeded"], ["parked", "parked", "succeeded"])
        assert purchases(read_witness(asked)).total() == 6
        assert starts == {"cat": 3}
        await far.close()


class Losing:
    """A model that has the next answer of the store lost: when it begins to answer, and again when it has."""

    def __init__(self, model: ScriptedModel, proxy: Proxy) -> None:
        self._model = model
        self._proxy = proxy
        self.lost = 0

    async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> AsyncGenerator[Wire, None]:
        async for event in self._model.stream(request, answered):
            if event["type"] in ("message_start", "message_stop"):
                self.lost += self._proxy.lost.is_set()
                self._proxy.lose_answer(b"COMMIT;")
            yield event

    async def count_tokens(self, request: Request) -> int:
        return await self._model.count_tokens(request)

    async def close(self) -> None:
        await self._model.close()


async def read(run: Run[str]) -> list[Event]:
    return [event async for event in run.stream()]


async def some(run: Run[str], kind: type[Event]) -> bool:
    return any(isinstance(event, kind) for event in await run.events())


async def took_effect(stage: Stage, times: int) -> bool:
    return len(stage.scene.witness.lines) == times


async def was_sent(stage: Stage, run: Run[str]) -> bool:
    return stage.sent(run.id) > 0


def after_restart(events: list[Event]) -> list[Event]:
    return events[max(place for place, event in enumerate(events) if isinstance(event, TurnRestarted)) :]


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))
