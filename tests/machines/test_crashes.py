"""A machine survives the death of its worker at every commit: the same output, each effect once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.errors import RunFailed, UsageError
from holdfast.kernel.waiting import list_steps, store_step
from holdfast.machines.api import ExecutionHandle, resume_execution
from holdfast.machines.family import checkpoint_name
from holdfast.testing import Lab, Labs, Script, say
from holdfast.workers.loop_watch import attempted
from tests.machines.conftest import WriteMachine

FEW = {"sqlite": 6, "postgres": 4}  # places that make test tries; each run makes a database
MANY = {"sqlite": None, "postgres": 40}

STATES = """
start: {action: first, transitions: [{to: each}]}
each:
  foreach: "{{ range(2) }}"
  as: n
  machine: child
  output_to_context: {squares: "{{ output }}"}
  transitions: [{to: acts}]
acts: {foreach: "{{ range(2) }}", action: item, transitions: [{to: spawn}]}
spawn: {foreach: "{{ range(2) }}", launch: leaf, launch_input: {n: "{{ item }}"}, transitions: [{to: breaks}]}
breaks: {action: fails, on_error: {ValueError: wait}, transitions: [{to: done}]}
wait: {wait_for: "go/{{ input.key }}", output_to_context: {by: "{{ output.by }}"}, transitions: [{to: done}]}
done:
  type: final
  output: {squares: context.squares, by: context.by, error: context.error, first: context.first}
"""
CHILD = """
start: {action: child, transitions: [{to: done}]}
done: {type: final, output: {square: "{{ input.n * input.n }}"}}
"""
LEAF = "start: {action: leaf, transitions: [{to: done}]}\ndone: {type: final}"
ITEM = 'context: {item: "{{ input.n }}"}'
OUTPUT = {"squares": [{"square": 0}, {"square": 1}], "by": "ann", "error": "once", "first": 1}


class Counted:
    """Counts what is stored: an effect whose checkpoint was lost with its worker is done again."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()

    def on_action(self, action: str, context: dict[str, Any]) -> Any:
        self.done[f"{action} {context.get('item', context.get('index', ''))}"] += 1
        if action == "fails":
            raise ValueError("once")
        return {"first": 1} if action == "first" else {}


@pytest.mark.parametrize("signal_first", [True, False])
async def test_a_machine_survives_a_crash_at_a_commit(
    hf: Holdfast, labs: Labs, write: WriteMachine, dialect: str, signal_first: bool
) -> None:
    assert await survived(hf, labs, write, FEW[dialect], signal_first=signal_first) > 3


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3_600)
async def test_a_machine_survives_a_crash_at_every_commit(
    hf: Holdfast, labs: Labs, write: WriteMachine, dialect: str
) -> None:
    """On PostgreSQL at many of them: a new database for each takes ten times as long."""
    assert await survived(hf, labs, write, MANY[dialect], signal_first=False) > 20


async def survived(hf: Holdfast, labs: Labs, write: WriteMachine, at_most: int | None, *, signal_first: bool) -> int:
    """Run the machine with a crash at so many places; returns how many workers were killed."""
    counted = Counted()
    write("child", CHILD, data=ITEM)
    write("leaf", LEAF, data=ITEM)
    machine = hf.machine(write("m", STATES), hooks=counted)
    crashes = 0
    async for lab in labs.crash_everywhere(hf, at_most=at_most):
        counted.done.clear()
        execution = await machine.enqueue({"key": 1})
        if signal_first:
            await hf.signal("go/1", {"by": "ann"})
        await lab.drain()
        if not signal_first:
            await hf.signal("go/1", {"by": "ann"})
            await lab.drain()
        assert await execution.result() == OUTPUT
        await check_events(execution)
        # A worker was killed, between effects and their checkpoints at worst. Two machines ran at once at most.
        assert sum(counted.done.values()) - len(counted.done) <= 2 * len(lab.crashes)
        assert len(counted.done) == 8
        kinds = Counter(job.kind for job in await hf.jobs.list())
        assert kinds == {"machine:m": 1, "machine:child": 2, "machine:leaf": 2}
        assert {job.state for job in await hf.jobs.list()} == {"succeeded"}
        crashes += len(lab.crashes)
    return crashes


async def check_events(execution: ExecutionHandle[Any]) -> None:
    """However often it was resumed, its history is the one of a run without a crash."""
    events = [(event.name, event.state) for event in await execution.history() if event.name in ("entered", "left")]
    states = ["start", "each", "acts", "spawn", "breaks", "wait", "done"]
    expected = [pair for state in states for pair in (("entered", state), ("left", state))][:-1]
    assert events == expected


async def test_a_recorded_effect_is_not_repeated(hf: Holdfast, labs: Labs, write: WriteMachine) -> None:
    await repeated_nothing(hf, labs, write)


async def repeated_nothing(hf: Holdfast, labs: Labs, write: WriteMachine) -> None:
    """The worker is killed after each checkpoint: nothing is done twice."""
    counted = Counted()
    states = """
        start: {action: first, transitions: [{to: acts}]}
        acts: {foreach: "{{ range(2) }}", action: item, transitions: [{to: breaks}]}
        breaks: {action: fails, on_error: last, transitions: [{to: last}]}
        last: {action: last, transitions: [{to: done}]}
        done: {type: final}
        """
    machine = hf.machine(write("m", states), hooks=counted)
    for nth in range(1, 8):
        counted.done.clear()
        lab = await labs.use(hf)
        execution = await machine.enqueue()
        lab.crash(after="store_step", nth=nth)
        await lab.drain()
        assert await execution.result() == {}
        assert len(counted.done) == 5
        assert set(counted.done.values()) == {1}
        await labs.close_lab(lab)


class Overtaken(Counted):
    """Stores the last checkpoint before the one that precedes it, as an attempt does that outlives the server it began
    on."""

    def __init__(self, hf: Holdfast) -> None:
        super().__init__()
        self._hf = hf
        self.last: str | None = None

    async def on_action(self, action: str, context: dict[str, Any]) -> Any:
        holding = attempted.get()
        if action == "first" and self.last is not None:
            assert holding is not None
            await core_of(self._hf).runtime().transact(store_step, holding.lease, checkpoint_name(2), self.last)
        return super().on_action(action, context)


async def test_a_checkpoint_that_outlived_the_one_before_it_is_not_done_again(
    hf: Holdfast, labs: Labs, write: WriteMachine
) -> None:
    """A failover lost what came before it; the attempt of then went on, and stored it on the new server."""
    states = """
        start: {action: first, transitions: [{to: last}]}
        last: {action: last, transitions: [{to: done}]}
        done: {type: final}
        """
    lab = await labs.use(hf)
    machine = hf.machine(write("m", states), hooks=(counted := Overtaken(hf)))
    twin = await machine.enqueue()
    await lab.drain()
    steps = await core_of(hf).runtime().transact(list_steps, (await twin.refresh()).seq)
    counted.last = {step.name: step.result for step in steps}[checkpoint_name(2)]
    counted.done.clear()
    execution = await machine.enqueue()
    lab.crash(before="store_step", nth=2)
    await lab.drain()
    assert await execution.result() == {}
    assert counted.done == {"first ": 2}


@pytest.mark.long
async def test_a_checkpoint_in_parts_is_there_with_all_of_them_or_not_at_all(
    hf: Holdfast, labs: Labs, write: WriteMachine
) -> None:
    states = """
        start:
          foreach: "{{ range(12) }}"
          action: it
          output_to_context: {all: "{{ output }}"}
          transitions: [{to: done}]
        done: {type: final, output: {count: "{{ context.all | length }}", last: "{{ context.all[11].text[-3:] }}"}}
        """
    large = {"text": '"é' * (hf.settings.result_cap // 10) + "end"}
    machine = hf.machine(write("m", states), hooks=lambda action, context: large)
    items = 13  # the first checkpoint, and what each item has put out
    for nth in range(items + 1, items + 4):
        lab = await labs.use(hf)
        execution = await machine.enqueue()
        lab.crash(after="store_step", nth=nth)
        await lab.drain()
        assert len(lab.crashes) == 1
        assert await execution.result() == {"count": 12, "last": "end"}
        await labs.close_lab(lab)


ANY = """
start:
  machine: [slow, quick, bad]
  mode: any
  timeout: 600
  output_to_context: {first: "{{ output.is }}"}
  transitions: [{to: ask}]
ask: {agent: critic, input: {text: Well?}, output_to_context: {said: "{{ output.text }}"}, transitions: [{to: done}]}
done: {type: final, output: {first: context.first, said: context.said}}
"""


async def test_a_race_and_an_answer_survive_a_crash_at_a_commit(
    hf: Holdfast, labs: Labs, write: WriteMachine, dialect: str
) -> None:
    write("quick", "start: {type: final, output: {is: quick}}")
    write("slow", "start: {wait_for: never, transitions: [{to: done}]}\ndone: {type: final}")
    write("bad", "start: {action: fails, transitions: [{to: done}]}\ndone: {type: final}")
    hf.agent("critic", model="scripted:critic")
    machine = hf.machine(write("m", ANY), hooks=Counted())

    async def body(lab: Lab) -> Any:
        execution = await machine.enqueue()
        await lab.drain()
        states = sorted((job.kind, job.state) for job in await hf.jobs.list() if job.kind != "machine:bad")
        return await execution.result(), states, len(await hf.runs.list())

    output, states, runs = await labs.survives(hf, body, Script(say("fine")), at_most=FEW[dialect])
    assert output == {"first": "quick", "said": "fine"}
    assert ("machine:slow", "cancelled") in states
    assert runs == 1


async def test_a_finished_execution_is_not_run_again_and_a_failed_one_is_resumed_once(
    hf: Holdfast, labs: Labs, write: WriteMachine
) -> None:
    broken = [True]
    done: list[str] = []

    def hooks(action: str, context: dict[str, Any]) -> Any:
        done.append(action)
        if action == "b" and broken[0]:
            raise ValueError("broken")
        return {action: len(done)}

    machine = hf.machine(
        write(
            "m",
            """
            start: {action: a, transitions: [{to: next}]}
            next: {action: b, transitions: [{to: done}]}
            done: {type: final, output: {a: context.a, b: context.b}}
            """,
        ),
        hooks=hooks,
    )
    lab = await labs.use(hf)
    failed = await machine.enqueue()
    await lab.drain()
    with pytest.raises(RunFailed):
        await failed.result()
    broken[0] = False
    core = core_of(hf)
    resumed = await resume_execution(core, failed.id, None, "default")
    with pytest.raises(UsageError, match="was resumed already"):
        await resume_execution(core, failed.id, None, "default")
    await lab.drain()
    assert await resumed.result() == {"a": 1, "b": 3}
    assert done == ["a", "b", "b"]
    with pytest.raises(UsageError, match="nothing to resume"):
        await resume_execution(core, resumed.id, None, "default")


async def test_the_new_version_of_a_machine_takes_over_where_the_old_one_waits(
    hf: Holdfast, labs: Labs, write: WriteMachine
) -> None:
    states = """
        start: {action: a, transitions: [{to: wait}]}
        wait: {wait_for: go, transitions: [{to: done}]}
        done: {type: final, output: {version: 1, a: context.a}}
        """
    hooks = lambda action, context: {"a": 7}  # noqa: E731
    lab = await labs.use(hf)
    old = await hf.machine(write("m", states), hooks=hooks).enqueue()
    await lab.drain()
    new = hf.machine(write("m", states.replace("version: 1", "version: 2")), hooks=hooks)
    execution = await resume_execution(core_of(hf), old.id, new.bundle, "default")
    await hf.signal("go")
    await lab.drain()
    assert await execution.result() == {"version": 2, "a": 7}
    assert (await hf.jobs.get(old.id)).state == "cancelled"
