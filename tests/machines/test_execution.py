"""Machines as jobs: what their states do, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import IdempotencyConflict, RunFailed, UsageError
from holdfast.machines.problems import BadMachine
from holdfast.models.steps import reject
from holdfast.testing import Lab, Labs, Script, call, say
from tests.machines.conftest import WriteMachine
from tests.machines.pure import SEED

CHILD = """
start: {action: work, on_error: {KeyError: odd}, transitions: [{to: done}]}
odd: {type: final, output: {odd: "{{ input.n }}"}}
done: {type: final, output: {n: "{{ input.n }}"}}
"""


def work(action: str, context: dict[str, Any]) -> dict[str, Any]:
    return {}


async def result(
    hf: Holdfast, lab: Lab, path: Path, hooks: Any, input: dict[str, Any] | None = None, **more: Any
) -> Any:
    execution = await hf.machine(path, hooks=hooks, **more).enqueue(input or {})
    await lab.drain()
    return await execution.result()


async def test_the_hooks_of_the_document_run_its_machines(hf: Holdfast, labs: Labs, write: WriteMachine) -> None:
    """Byte for byte: the machines and the class are cut out of the document."""
    names: dict[str, Any] = {"MachineHooks": object}
    exec((SEED / "hooks.txt").read_text(), names)
    hooks = names["DistributedWorkerHooks"]()
    pool = PoolInMemory(["a", "b", "c"])
    hooks.work_backend = hooks.registration_backend = pool
    lab = await labs.use(hf)
    echo = write("echo_processor", 'start: {type: final, output: {echo: "{{ input.job }}"}}')
    checker = hf.machine(SEED / "parallelization_checker.yml", hooks=hooks, machines={"actual_job_processor": echo})
    execution = await checker.enqueue({"pool_id": "p", "max_workers": 3})
    await lab.drain()
    assert await execution.result() == {"spawned": 3}
    assert pool.done == {"a": {"echo": "a"}, "b": {"echo": "b"}, "c": {"echo": "c"}}
    assert len(set(pool.claimed_by.values())) == 3
    idle = await result(
        hf, lab, SEED / "job_worker.yml", hooks, {"pool_id": "p"}, machines={"actual_job_processor": echo}
    )
    assert idle == {"status": "no_work_available"}


class PoolInMemory:
    """As much of a pool and a registry as the printed class calls."""

    def __init__(self, items: list[str]) -> None:
        self.items = items
        self.done: dict[str, Any] = {}
        self.failed: dict[str, Any] = {}
        self.claimed_by: dict[str, str] = {}

    def pool(self, name: str) -> PoolInMemory:
        return self

    def size(self) -> int:
        return len(self.items)

    def list(self, status: str) -> list[str]:
        return []

    def claim(self, worker: str) -> Item | None:
        if not self.items:
            return None
        item = self.items.pop(0)
        self.claimed_by[item] = worker
        return Item(item, item)

    def complete(self, id: str, result: Any) -> None:
        self.done[id] = result

    def fail(self, id: str, error: Any) -> None:
        self.failed[id] = error


@dataclass
class Item:
    id: str
    data: Any


async def test_the_reaper_of_the_document_reaps_each(hf: Holdfast, labs: Labs) -> None:
    reaped: list[Any] = []

    def hooks(action: str, context: dict[str, Any]) -> Any:
        if action == "list_stale_workers":
            assert context["stale_threshold_seconds"] == 60
            return {"workers": [{"worker_id": "a"}, {"worker_id": "b"}]}
        reaped.append(context["worker"]["worker_id"])
        return None

    lab = await labs.use(hf)
    assert await result(hf, lab, SEED / "stale_worker_reaper.yml", hooks, {"pool_id": "p"}) == {"reaped_count": 2}
    assert reaped == ["a", "b"]


@pytest.mark.parametrize("sort", ["plain", "async", "three"])
async def test_hooks_may_be_plain_or_async_with_either_signature(
    hf: Holdfast, labs: Labs, write: WriteMachine, sort: str
) -> None:
    class Plain:
        def on_action(self, action: str, context: dict[str, Any]) -> Any:
            return {"did": action}

    class Async:
        async def on_action(self, action: str, context: dict[str, Any]) -> Any:
            await asyncio.sleep(0)
            return {"did": action}

    class Three:
        def on_action(self, state: str, action: str, context: dict[str, Any]) -> Any:
            assert (state, context["machine"]["current_state"]) == ("start", "start")
            return {"did": action}

    path = write(
        "m",
        """
        start: {action: it, hooks: {name: mine}, transitions: [{to: done}]}
        done: {type: final, output: {did: "{{ context.did }}"}}
        """,
    )
    hooks = {"mine": {"plain": Plain, "async": Async, "three": Three}[sort]}
    assert await result(hf, await labs.use(hf), path, hooks) == {"did": "it"}


async def test_every_hook_takes_part(hf: Holdfast, labs: Labs, write: WriteMachine) -> None:
    called: list[str] = []

    class All:
        def __init__(self, mark: str = "") -> None:
            self.mark = mark

        def on_machine_start(self, context: dict[str, Any]) -> Any:
            called.append(f"begin{self.mark}")
            return {"started": True}

        def on_state_enter(self, state: str, context: dict[str, Any]) -> Any:
            called.append(f"enter {state}")
            return {**context, "entered": state}

        def on_state_exit(self, state: str, context: dict[str, Any], output: Any) -> Any:
            called.append(f"exit {state}")

        def on_transition(self, state: str, to: str, context: dict[str, Any]) -> Any:
            called.append(f"{state} to {to}")
            return "detour" if to == "work" and "detoured" not in context else None

        def on_action(self, action: str, context: dict[str, Any]) -> Any:
            if action == "break":
                raise ValueError("broken")
            return {"detoured": True}

        def on_error(self, state: str, error: str, context: dict[str, Any]) -> Any:
            called.append(f"error {state}: {error}, {context['last_error_type']}")
            return "done"

        async def on_machine_end(self, context: dict[str, Any], output: Any) -> Any:
            called.append("end")
            return {**output, "hooked": True}

    path = write(
        "m",
        """
        start: {transitions: [{to: work}]}
        detour: {action: mark, transitions: [{to: work}]}
        work: {action: break, transitions: [{condition: context.x, to: done}, {to: detour}]}
        done: {type: final, output: {entered: "{{ context.entered }}", started: "{{ context.started }}"}}
        """,
        data="hooks: {name: all, args: {mark: '!'}}",
    )
    output = await result(hf, await labs.use(hf), path, {"all": All})
    assert output == {"entered": "done", "started": True, "hooked": True}
    assert called == [
        *("begin!", "enter start", "exit start", "start to work"),
        *("enter detour", "exit detour", "detour to work"),
        *("enter work", "error work: broken, ValueError", "enter done", "exit done", "end"),
    ]


async def test_an_output_that_is_too_large_is_the_failure_of_its_state(
    hf: Holdfast, labs: Labs, write: WriteMachine
) -> None:
    path = write(
        "m",
        """
        start: {action: it, on_error: {BadPayload: oops}, transitions: [{to: done}]}
        oops: {type: final, output: {t: "{{ context.last_error_type }}"}}
        done: {type: final}
        """,
    )
    lab = await labs.use(hf)
    large = {"text": "x" * (16 * hf.settings.result_cap + 1)}
    assert await result(hf, lab, path, lambda action, context: large) == {"t": "BadPayload"}
    final = write(
        "final",
        """
        start: {action: it, transitions: [{to: done}]}
        done: {type: final, output: {text: context.text}}
        """,
    )
    execution = await hf.machine(final, hooks=lambda action, context: {"text": "x" * hf.settings.result_cap}).enqueue()
    await lab.drain()
    with pytest.raises(RunFailed, match=r"the output of the machine, from state .done., is 1,048,587 bytes"):
        await execution.result()


async def test_what_hooks_change_in_place_is_stored(hf: Holdfast, labs: Labs, write: WriteMachine) -> None:
    class Marks:
        def on_state_enter(self, state: str, context: dict[str, Any]) -> None:
            context["visited"].append(state)

        def on_transition(self, state: str, to: str, context: dict[str, Any]) -> None:
            context["visited"].append("this is a copy")

    path = write(
        "m",
        """
        start: {transitions: [{to: wait}]}
        wait: {wait_for: go, transitions: [{to: done}]}
        done: {type: final, output: {visited: "{{ context.visited }}"}}
        """,
        data="context: {visited: []}",
    )
    lab = await labs.use(hf)
    execution = await hf.machine(path, hooks={"default": Marks}).enqueue({})
    await lab.drain()
    place = await execution.place()
    assert place is not None
    assert place.context["visited"] == ["start", "wait"]
    await hf.signal("go")
    await lab.drain()
    assert await execution.result() == {"visited": ["start", "wait", "done"]}


async def test_an_error_is_taken_by_a_state_or_fails_the_job(hf: Holdfast, labs: Labs, write: WriteMachine) -> None:
    def hooks(action: str, context: dict[str, Any]) -> Any:
        raise KeyError("lost")

    taken = write(
        "taken",
        """
        start: {action: it, on_error: {LookupError: oops}, transitions: [{to: oops}]}
        oops: {type: final, output: {e: "{{ context.error }}", t: "{{ context.last_error_type }}"}}
        """,
    )
    lab = await labs.use(hf)
    assert await result(hf, lab, taken, hooks) == {"e": "'lost'", "t": "KeyError"}
    fails = write("fails", "start: {action: it, transitions: [{to: done}]}\ndone: {type: final}")
    execution = await hf.machine(fails, hooks=hooks).enqueue()
    await lab.drain()
    with pytest.raises(RunFailed) as failed:
        await execution.result()
    assert (failed.value.error_type, (await hf.jobs.get(execution.id)).attempts) == ("KeyError", 1)
    assert (await execution.history())[-1].name == "ended"


async def test_machines_run_in_parallel_and_an_error_among_them_is_a_value(
    hf: Holdfast, labs: Labs, write: WriteMachine
) -> None:
    def hooks(action: str, context: dict[str, Any]) -> Any:
        if context["n"] == 2:
            raise ValueError("two")
        return {}

    write("child", CHILD, data='context: {n: "{{ input.n }}"}')
    path = write(
        "m",
        """
        start:
          machine: [{name: child, input: {n: 1}}, {name: child, input: {n: 2}}]
          output_to_context: {both: "{{ output }}"}
          transitions: [{to: each}]
        each:
          foreach: "{{ range(3) }}"
          as: n
          key: "k{{ n }}"
          machine: child
          output_to_context: {each: "{{ output }}"}
          transitions: [{to: alone}]
        alone: {machine: child, input: {n: 2}, on_error: {ValueError: done}, transitions: [{to: start}]}
        done: {type: final, output: {both: context.both, each: context.each, error: context.error}}
        """,
    )
    error = {"_error": "two", "_error_type": "ValueError"}
    lab = await labs.use(hf)
    assert await result(hf, lab, path, hooks) == {
        "both": {"child": {"n": 1}, "child_2": error},
        "each": {"k0": {"n": 0}, "k1": {"n": 1}, "k2": error},
        "error": "two",
    }
    (parent,) = await hf.jobs.list(kind="machine:m")
    assert [child.kind for child in await hf.jobs.children(parent.id)] == ["machine:child"] * 6
    kinds = [job.kind for job in await hf.jobs.list()]
    assert (kinds.count("machine:child"), kinds.count("machine:m")) == (6, 1)


async def test_any_takes_the_first_that_succeeds_and_cancels_the_others(
    hf: Holdfast, labs: Labs, write: WriteMachine
) -> None:
    write("quick", "start: {type: final, output: {is: quick}}")
    write("slow", "start: {wait_for: never, transitions: [{to: done}]}\ndone: {type: final}")
    write("bad", "start: {action: bad, transitions: [{to: done}]}\ndone: {type: final}")
    path = write(
        "m",
        """
        start:
          machine: [slow, bad, quick]
          mode: any
          output_to_context: {first: "{{ output.is }}"}
          transitions: [{to: done}]
        done: {type: final, output: {first: context.first}}
        """,
    )

    def hooks(action: str, context: dict[str, Any]) -> Any:
        raise OSError("bad")

    lab = await labs.use(hf)
    assert await result(hf, lab, path, hooks) == {"first": "quick"}
    states = {job.kind: job.state for job in await hf.jobs.list()}
    assert states.pop("machine:bad") in ("failed", "cancelled")  # whether it ran before the first succeeded is chance
    assert states == {"machine:m": "succeeded", "machine:quick": "succeeded", "machine:slow": "cancelled"}


async def test_a_timeout_is_an_error_that_a_state_takes(hf: Holdfast, labs: Labs, write: WriteMachine) -> None:
    write("slow", "start: {wait_for: never, transitions: [{to: done}]}\ndone: {type: final}")
    path = write(
        "m",
        """
        start: {machine: slow, timeout: 30, on_error: {TimeoutError: wait}, transitions: [{to: done}]}
        wait: {wait_for: never, timeout: 60, on_error: act, transitions: [{to: done}]}
        act: {action: hang, timeout: 0.01, on_error: late, transitions: [{to: done}]}
        late: {type: final, output: {why: context.last_error_type}}
        done: {type: final}
        """,
    )

    async def hang(action: str, context: dict[str, Any]) -> Any:
        await asyncio.Event().wait()

    lab = await labs.use(hf)
    execution = await hf.machine(path, hooks=hang).enqueue()
    await lab.drain()
    assert (await hf.jobs.get(execution.id)).state == "waiting"
    await lab.clock.advance("31s")
    await lab.drain()
    place = await execution.place()
    assert place is not None
    assert place.state == "wait"
    await lab.clock.advance("61s")
    await lab.drain()
    assert await execution.result() == {"why": "TimeoutError"}
    assert {job.state for job in await hf.jobs.list(kind="machine:slow")} == {"cancelled"}


@pytest.mark.parametrize("before", [True, False])
async def test_a_signal_before_or_after_parking_wakes_the_one_it_is_for(
    hf: Holdfast, labs: Labs, write: WriteMachine, before: bool
) -> None:
    path = write(
        "m",
        """
        start:
          wait_for: "approval/{{ context.machine.execution_id }}"
          output_to_context: {by: "{{ output.by }}"}
          transitions: [{to: done}]
        done: {type: final, output: {by: context.by}}
        """,
    )
    lab = await labs.use(hf)
    machine = hf.machine(path)
    one, other = await machine.enqueue(), await machine.enqueue()
    if not before:
        await lab.drain()
        assert "signal" in str(await one.why())
        assert (await hf.jobs.get(one.id)).state == "waiting"
    await hf.signal(f"approval/{one.id}", {"by": "ann"})
    await lab.drain()
    assert await one.result() == {"by": "ann"}
    assert (await hf.jobs.get(other.id)).state == "waiting"
    assert [event.name for event in await other.history()] == ["started", "entered", "waiting"]


async def test_a_launch_returns_before_its_machine_has_run_and_no_cancel_reaches_it(
    hf: Holdfast, labs: Labs, write: WriteMachine
) -> None:
    write("later", "start: {wait_for: go, transitions: [{to: done}]}\ndone: {type: final}")
    path = write(
        "m",
        """
        start:
          launch: later
          output_to_context: {ids: "{{ output.execution_ids }}"}
          transitions: [{to: hold}]
        hold: {wait_for: hold, transitions: [{to: done}]}
        done: {type: final}
        """,
    )
    lab = await labs.use(hf)
    execution = await hf.machine(path).enqueue()
    await lab.drain()
    place = await execution.place()
    assert place is not None
    (launched,) = place.context["ids"]
    await execution.cancel()
    await lab.drain()
    await hf.signal("go")
    await lab.drain()
    assert (await hf.jobs.get(launched)).state == "succeeded"
    assert (await hf.jobs.get(execution.id)).state == "cancelled"


async def test_a_cancel_reaches_what_a_machine_runs(hf: Holdfast, labs: Labs, write: WriteMachine) -> None:
    write("slow", "start: {wait_for: never, transitions: [{to: done}]}\ndone: {type: final}")
    path = write("m", "start: {machine: [slow, slow], transitions: [{to: done}]}\ndone: {type: final}")
    lab = await labs.use(hf)
    execution = await hf.machine(path).enqueue()
    await lab.drain()
    assert "child" in str(await execution.why())
    assert await execution.cancel() == "cancelled"
    await lab.drain()
    assert {job.state for job in await hf.jobs.list()} == {"cancelled"}
    with pytest.raises(RunFailed):
        await execution.result()


def test_two_hooks_of_one_name_are_refused(hf: Holdfast, write: WriteMachine) -> None:
    with pytest.raises(UsageError, match="the same name"):
        hf.machine(write("m", "start: {type: final}"), hooks=[work, work])


async def test_machines_without_end_are_errors(hf: Holdfast, labs: Labs, write: WriteMachine) -> None:
    ends = "no: {type: final, output: {e: context.last_error_type}}"
    path = write("m", f"start: {{machine: m, on_error: no, transitions: [{{to: no}}]}}\n{ends}")
    lab = await labs.use(hf)
    assert await result(hf, lab, path, None) == {"e": None}
    assert len(await hf.jobs.list(kind="machine:m")) == 51


async def test_a_running_execution_keeps_the_machines_it_began_with(
    hf: Holdfast, labs: Labs, write: WriteMachine
) -> None:
    write("child", "start: {type: final, output: {v: 1}}")
    states = """
        start: {wait_for: go, transitions: [{to: run}]}
        run: {machine: child, output_to_context: {v: "{{ output.v }}"}, transitions: [{to: done}]}
        done: {type: final, output: {v: context.v}}
        """
    lab = await labs.use(hf)
    old = await hf.machine(write("m", states)).enqueue()
    await lab.drain()
    write("child", "start: {type: final, output: {v: 2}}")
    new = await hf.machine(write("m", states)).enqueue()
    await lab.drain()
    await hf.signal("go")
    await hf.signal("go")
    await lab.drain()
    assert [await each.result() for each in (old, new)] == [{"v": 1}, {"v": 2}]


async def test_a_machine_has_the_hooks_of_the_one_that_runs_it(hf: Holdfast, labs: Labs, write: WriteMachine) -> None:
    def who(name: str) -> Callable[[str, dict[str, Any]], Any]:
        return lambda action, context: {"who": name}

    write("child", "start: {action: a, transitions: [{to: done}]}\ndone: {type: final, output: {who: context.who}}")
    states = """
        start: {machine: child, output_to_context: {who: "{{ output.who }}"}, transitions: [{to: done}]}
        done: {type: final, output: {who: context.who}}
        """
    lab = await labs.use(hf)
    one = hf.machine(write("one", states), hooks=who("one"))
    two = hf.machine(write("two", states), hooks=who("two"))
    executions = [await machine.enqueue() for machine in (one, two, one)]
    await lab.drain()
    assert [(await each.result())["who"] for each in executions] == ["one", "two", "one"]


async def test_an_agent_of_the_file_has_the_model_of_its_profile_and_is_asked_again(
    hf: Holdfast, labs: Labs, write: WriteMachine, tmp_path: Path
) -> None:
    (tmp_path / "profiles.yml").write_text(
        "spec: flatprofile\ndata:\n  model_profiles: {cheap: {provider: scripted, name: critic}}\n  default: cheap\n"
    )
    path = write(
        "m",
        """
        start:
          agent: critic
          execution: {type: retry, backoffs: [5], jitter: 0}
          input: {text: Hello}
          on_error: sorry
          transitions: [{to: sorry}]
        sorry: {type: final, output: {error: context.last_error_type}}
        """,
        data="agents: {critic: {model: cheap, instructions: Be brief.}}",
    )
    machine = hf.machine(path, queue="letters")
    lab = await labs.use(hf, Script(reject("no")))
    execution = await machine.enqueue()
    await lab.drain()
    assert (await hf.jobs.get(execution.id)).state == "scheduled"
    await lab.clock.advance("6s")
    await lab.drain()
    assert await execution.result() == {"error": "streaming_error"}
    runs = await hf.runs.list()
    assert [(run.agent_name, run.state) for run in runs] == [("m.critic", "failed")] * 2
    assert {(await hf.jobs.get(run.id)).queue for run in runs} == {"letters"}, "a process may play this queue alone"


async def test_an_execution_id_names_one_execution(hf: Holdfast, labs: Labs, write: WriteMachine) -> None:
    done: list[str] = []
    machine = hf.machine(
        write("m", "start: {action: a, transitions: [{to: done}]}\ndone: {type: final, output: {n: input.n}}"),
        hooks=lambda action, context: done.append(action),
    )
    lab = await labs.use(hf)
    first = await machine.enqueue({"n": 1}, execution_id="paper 7")
    await lab.drain()
    again = await machine.enqueue({"n": 1}, execution_id="paper 7")
    await lab.drain()
    assert (first.id, first.fresh, again.fresh) == (again.id, True, False)
    assert await again.result() == {"n": 1}
    assert done == ["a"]
    with pytest.raises(IdempotencyConflict):
        await machine.enqueue({"n": 2}, execution_id="paper 7")


async def test_a_result_has_the_type_that_was_asked_for(hf: Holdfast, labs: Labs, write: WriteMachine) -> None:
    @dataclass
    class Report:
        n: int

    machine = hf.machine(write("m", "start: {type: final, output: {n: input.n}}"), output=Report)
    lab = await labs.use(hf)
    execution = await machine.enqueue({"n": 3})
    await lab.drain()
    assert await execution.result() == Report(3)


A = {"text": "a", "outcome": "answered"}
EXECUTIONS = {
    "": (1, A),
    "execution: {type: parallel, n_samples: 2}": (2, {"count": 2, "results": [A, A]}),
    "execution: {type: mdap_voting, k_margin: 2, max_candidates: 3}": (3, {**A, "votes": 2, "candidates": 2}),
}


@pytest.mark.parametrize("execution", EXECUTIONS)
async def test_an_agent_answers_in_a_run_of_its_own(
    hf: Holdfast, labs: Labs, write: WriteMachine, execution: str
) -> None:
    answers, output = EXECUTIONS[execution]
    hf.agent("critic", model="scripted:critic")
    path = write(
        "m",
        f"""
        start:
          agent: critic
          {execution}
          input: {{text: "Is {{{{ input.what }}}} good?"}}
          tool_loop: {{max_turns: 3, max_cost: 0.5}}
          output_to_context: {{said: "{{{{ output }}}}"}}
          transitions: [{{to: done}}]
        done: {{type: final, output: {{said: context.said}}}}
        """,
    )
    lab = await labs.use(hf, Script(*[say("a")] * answers))
    assert await result(hf, lab, path, None, {"what": "tea"}) == {"said": output}
    (run, *_) = await hf.runs.list()
    assert run.agent_name == "critic"


async def test_the_limits_of_a_tool_loop_end_the_run(hf: Holdfast, labs: Labs, write: WriteMachine) -> None:
    @hf.tool
    def look() -> str:
        return "nothing"

    hf.agent("critic", model="scripted:critic", tools=[look])
    path = write(
        "m",
        """
        start:
          agent: critic
          input: {text: Look.}
          tool_loop: {max_turns: 2, total_timeout: 600}
          output_to_context: {how: "{{ output.outcome }}"}
          transitions: [{to: done}]
        done: {type: final, output: {how: context.how}}
        """,
    )
    lab = await labs.use(hf, Script(*[call("look")] * 9))
    assert await result(hf, lab, path, None) == {"how": "limited"}


@pytest.mark.parametrize(
    ("states", "hooks", "said"),
    [
        ("start: {machine: chld, transitions: [{to: done}]}\ndone: {type: final}", None, "no machine 'chld'"),
        ("start: {action: a, transitions: [{to: done}]}\ndone: {type: final}", None, "no hooks are registered"),
        (
            "start: {action: a, hooks: papr, transitions: [{to: done}]}\ndone: {type: final}",
            {"paper": work},
            "Did you mean 'paper'",
        ),
    ],
)  # fmt: skip
def test_what_a_machine_needs_is_asked_for_when_it_is_declared(
    hf: Holdfast, write: WriteMachine, states: str, hooks: Any, said: str
) -> None:
    with pytest.raises(BadMachine, match=said):
        hf.machine(write("m", states), hooks=hooks)


def test_inputs_are_mappings(hf: Holdfast, write: WriteMachine) -> None:
    machine = hf.machine(write("m", "start: {type: final}"))
    wrong: Callable[..., Any] = machine.run_sync
    with pytest.raises(UsageError, match="mapping"):
        wrong([1])


def test_a_script_runs_a_machine_and_waits(tmp_path: Path, write: WriteMachine) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path}/run.db")
    machine = hf.machine(write("m", "start: {type: final, output: {n: input.n}}"))
    try:
        assert machine.run_sync({"n": 1}) == {"n": 1}
    finally:
        hf.sync.close()


@pytest.mark.parametrize("how", ["launch", "machine"])
async def test_machines_that_multiply_are_bounded_in_number(
    hf: Holdfast, labs: Labs, write: WriteMachine, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("holdfast.machines.family.MOST_MACHINES", 60)
    path = write(
        "m",
        f"""
        start: {{{how}: [m, m], on_error: {{TooManyMachines: stopped}}, transitions: [{{to: done}}]}}
        stopped: {{type: final, output: {{error: context.last_error}}}}
        done: {{type: final}}
        """,
    )
    lab = await labs.use(hf)
    execution = await hf.machine(path).enqueue()
    await lab.drain()
    jobs = await hf.jobs.list(kind="machine:m", limit=1_000)
    assert (len(jobs), {job.state for job in jobs}) == (61, {"succeeded"})
    ended = [await hf.jobs[job.id].result() for job in jobs]
    (said,) = {each["error"] for each in ended if each}
    assert f"more than 60 machines have come of execution {execution.id}" in said


async def test_an_error_of_a_child_is_taken_by_its_class_and_by_those_it_derives_from(
    hf: Holdfast, labs: Labs, write: WriteMachine
) -> None:
    def hooks(action: str, context: dict[str, Any]) -> Any:
        raise ConnectionRefusedError("nobody is there")

    write("below", "start: {action: it, transitions: [{to: done}]}\ndone: {type: final}")
    write("child", "start: {machine: below, transitions: [{to: done}]}\ndone: {type: final}")
    path = write(
        "m",
        """
        start: {machine: child, on_error: {KeyError: no, ConnectionError: again, default: no}, transitions: [{to: no}]}
        again: {machine: [child, child], mode: any, on_error: {OSError: taken, default: no}, transitions: [{to: no}]}
        taken: {type: final, output: {t: context.last_error_type, e: context.error}}
        no: {type: final}
        """,
    )
    said = {"t": "ConnectionRefusedError", "e": "nobody is there"}
    assert await result(hf, await labs.use(hf), path, hooks) == said


@pytest.mark.long
@pytest.mark.parametrize("how", ["action: it", "machine: child"])
async def test_the_results_of_many_items_may_be_more_than_one_step_holds(
    hf: Holdfast, labs: Labs, write: WriteMachine, how: str
) -> None:
    write("child", "start: {action: it, transitions: [{to: done}]}\ndone: {type: final, output: {text: context.text}}")
    path = write(
        "m",
        f"""
        start:
          foreach: "{{{{ range(12) }}}}"
          {how}
          output_to_context: {{all: "{{{{ output }}}}"}}
          transitions: [{{to: wait}}]
        wait: {{wait_for: go, transitions: [{{to: done}}]}}
        done:
          type: final
          output: {{count: "{{{{ context.all | length }}}}", last: "{{{{ context.all[11].text[-3:] }}}}"}}
        """,
    )
    large = {"text": '"é' * (hf.settings.result_cap // 10) + "end"}
    lab = await labs.use(hf)
    execution = await hf.machine(path, hooks=lambda action, context: large).enqueue()
    await lab.drain()
    place = await execution.place()
    assert place is not None
    assert place.context["all"] == [large] * 12
    await hf.signal("go")
    await lab.drain()
    assert await execution.result() == {"count": 12, "last": "end"}


async def test_an_input_that_is_too_large_is_the_failure_of_its_state(
    hf: Holdfast, labs: Labs, write: WriteMachine
) -> None:
    write("child", "start: {type: final}")
    path = write(
        "m",
        """
        start: {action: it, transitions: [{to: run}]}
        run: {machine: child, input: {all: context.text}, on_error: {BadPayload: oops}, transitions: [{to: done}]}
        oops: {type: final, output: {t: context.last_error_type}}
        done: {type: final}
        """,
    )
    large = {"text": "x" * (hf.settings.payload_cap + 1)}
    assert await result(hf, await labs.use(hf), path, lambda action, context: large) == {"t": "BadPayload"}
