"""What follows from what in a machine, without a store."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.machines.family import checkpoint_name, read_steps, record
from holdfast.machines.problems import BadMachine
from holdfast.machines.stepping import (
    PROBLEMS,
    ActionCall,
    Effect,
    ExecutionInfo,
    Launch,
    MachineEvent,
    MachinePlace,
    RunMachines,
    Stepper,
    TakeSignal,
    failure_of,
)
from tests.machines.pure import machine_of, play, seed, states_of


def test_the_checker_of_the_document_spawns_what_its_formula_says() -> None:
    launched: list[Launch] = []

    def answer(at: MachinePlace, effect: Effect) -> Any:
        if isinstance(effect, Launch):
            launched.append(effect)
            return {"count": len(effect.wanted)}
        return {"queue_depth": 10, "active_workers": 0}

    ended, events = play(seed("parallelization_checker"), answer, {"pool_id": "p", "max_workers": 3})
    assert ended.result == {"spawned": 10}
    assert [each.input for each in launched[0].wanted] == [{"pool_id": "p"}] * 10
    assert [event.name for event in events if event.state == "check_state"] == ["entered", "executed", "left"]


def test_the_worker_of_the_document_ends_without_work_and_takes_errors() -> None:
    nothing, _ = play(seed("job_worker"), lambda at, effect: {"job": None, "job_id": None})
    assert nothing.result == {"status": "no_work_available"}
    seen: list[Any] = []

    def answer(at: MachinePlace, effect: Effect) -> Any:
        if isinstance(effect, RunMachines):
            return ValueError("it broke")
        assert isinstance(effect, ActionCall)
        seen.append((effect.action, effect.contexts[0].get("error"), effect.contexts[0].get("worker_id")))
        return {"job": {"a": 1}, "job_id": "7"} if effect.action == "claim_job" else effect.contexts[0]

    ended, events = play(seed("job_worker"), answer)
    assert ended.result == {"job_id": "7", "result": None}
    assert seen == [("claim_job", None, "execution"), ("fail_job", "it broke", "execution")]
    assert states_of(events) == ["start", "claim_job", "process_job", "job_failed", "done"]


def test_the_reaper_of_the_document_acts_for_each_worker() -> None:
    def answer(at: MachinePlace, effect: Effect) -> Any:
        assert isinstance(effect, ActionCall)
        if effect.action == "list_stale_workers":
            return {"workers": ["a", "b"]}
        return [context["worker"] for context in effect.contexts]

    ended, _ = play(seed("stale_worker_reaper"), answer, {"pool_id": "p"})
    assert ended.result == {"reaped_count": 2}
    none, _ = play(seed("stale_worker_reaper"), lambda at, effect: {"workers": []})
    assert none.result == {"reaped_count": 0}


def test_the_first_transition_that_holds_is_taken_and_none_is_an_error() -> None:
    machine = machine_of(
        """
        start:
          transitions:
            - {condition: "input.n > 5", to: big}
            - {condition: "input.n > 2", to: middle}
            - {condition: "input.n > 4", to: big}
        big: {type: final, output: {is: big}}
        middle: {type: final, output: {is: "{{ input.n }}"}}
        """
    )
    assert play(machine, lambda *_: None, {"n": 9})[0].result == {"is": "big"}
    assert play(machine, lambda *_: None, {"n": 5})[0].result == {"is": 5}
    ended, events = play(machine, lambda *_: None, {"n": 1})
    assert ended.failure is not None
    assert ended.failure.type == "NoTransition"
    assert events[-1] == MachineEvent("ended", "start", 1, "NoTransition")


def test_errors_are_taken_by_class_then_by_default() -> None:
    machine = machine_of(
        """
        start:
          action: work
          on_error: {KeyError: missing, LookupError: looked, default: other}
          transitions: [{to: done}]
        missing: {type: final, output: {of: "{{ context.last_error_type }}", text: "{{ context.last_error }}"}}
        looked: {type: final, output: {of: looked}}
        other: {type: final, output: {of: other}}
        done: {type: final}
        """
    )
    assert play(machine, lambda *_: KeyError("k"))[0].result == {"of": "KeyError", "text": "'k'"}
    assert play(machine, lambda *_: IndexError("k"))[0].result == {"of": "looked"}
    assert play(machine, lambda *_: OSError("k"))[0].result == {"of": "other"}


def test_an_action_gives_output_to_the_mapping_or_to_the_context() -> None:
    machine = machine_of(
        """
        start: {action: a, output_to_context: {x: "{{ output.v }}"}, transitions: [{to: next}]}
        next: {action: b, transitions: [{to: done}]}
        done: {type: final, output: "{{ context }}"}
        """.replace(
            'output: "{{ context }}"', 'output: {x: "{{ context.x }}", v: "{{ context.v }}", b: "{{ context.b }}"}'
        )
    )
    ended, _ = play(machine, lambda at, effect: {"v": 1, "machine": "no"} if at.state == "start" else {"b": 2})
    assert ended.result == {"x": 1, "v": None, "b": 2}
    assert "machine" not in ended.context


def test_foreach_gives_a_list_in_order_or_a_mapping_by_key() -> None:
    states = """
        start:
          foreach: "{{ input.names }}"
          as: name
          %s
          machine: child
          input: {who: "{{ name }}", number: "{{ index }}"}
          output_to_context: {all: "{{ output }}"}
          transitions: [{to: done}]
        done: {type: final, output: {all: "{{ context.all }}"}}
        """
    runs: list[RunMachines] = []

    def answer(at: MachinePlace, effect: Effect) -> Any:
        assert isinstance(effect, RunMachines)
        runs.append(effect)
        return [each.input["who"] for each in effect.wanted]

    ended, _ = play(machine_of(states % ""), answer, {"names": ["a", "b"]})
    assert ended.result == {"all": ["a", "b"]}
    assert runs[0].labels is None
    assert runs[0].wanted[1].input == {"who": "b", "number": 1}
    play(machine_of(states % 'key: "{{ name }}"'), answer, {"names": ["a", "b"]})
    assert runs[1].labels == ("a", "b")
    assert play(machine_of(states % ""), answer, {"names": []})[0].result == {"all": []}
    for wrong in ({"names": 3}, {}):
        failed, _ = play(machine_of(states % ""), answer, wrong)
        assert failed.failure is not None
        assert failed.failure.type == "TemplateError"


def test_an_endless_loop_is_an_error_that_a_state_can_take() -> None:
    loop = """
        start: {transitions: [{condition: "context.never", to: done}, {to: again}]}
        again: {%s transitions: [{to: start}]}
        done: {type: final, output: {error: "{{ context.last_error_type }}"}}
        """
    ended, events = play(machine_of(loop % ""), lambda *_: None)
    assert ended.failure is not None
    assert ended.failure.type == "MaxStepsExceeded"
    assert len(states_of(events)) == 1_000
    taken, _ = play(machine_of(loop % "on_error: done,"), lambda *_: None)
    assert taken.result == {"error": "MaxStepsExceeded"}
    _few, events = play(machine_of(loop % "", data="settings: {max_steps: 7}"), lambda *_: None)
    assert len(states_of(events)) == 7


def test_wait_for_gives_the_payload_as_output() -> None:
    machine = machine_of(
        """
        start:
          wait_for: "ok/{{ context.machine.execution_id }}"
          output_to_context: {by: "{{ output.by }}"}
          transitions: [{to: done}]
        done: {type: final, output: {by: "{{ context.by }}"}}
        """
    )
    channels: list[str] = []

    def answer(at: MachinePlace, effect: Effect) -> Any:
        assert isinstance(effect, TakeSignal)
        channels.append(effect.channel)
        return {"by": "ann"}

    ended, events = play(machine, answer)
    assert (ended.result, channels) == ({"by": "ann"}, ["ok/execution"])
    assert MachineEvent("waiting", "start", 1, "ok/execution") in events


def test_from_dialect_one_on_braces_are_texts_and_paths_keep_types() -> None:
    states = 'start: {type: final, output: {text: "{{ input.n }}", path: input.n}}'
    assert play(machine_of(states), lambda *_: None, {"n": 3})[0].result == {"text": 3, "path": 3}
    assert play(machine_of(states, version="1.1.0"), lambda *_: None, {"n": 3})[0].result == {"text": "3", "path": 3}


EACH = {
    "each machine": 'foreach: "{{ range(2) }}", machine: c,',
    "each launch": 'foreach: "{{ range(context.n) }}", launch: c,',
    "each action": 'foreach: "{{ [context.n, 2] }}", as: x, key: "{{ x }}", action: a,',  # fails if two keys are one
}


@st.composite
def graphs(draw: st.DrawFn) -> str:
    names = [f"s{i}" for i in range(draw(st.integers(1, 6)))]
    lines = []
    for name in names:
        kind = draw(st.sampled_from([*("final", "pass", "action", "wait", "launch", "any", "agent"), *EACH]))
        targets = draw(
            st.lists(
                st.sampled_from([*names, "nowhere"] if draw(st.integers(0, 20)) == 0 else names), min_size=1, max_size=3
            )
        )
        conditions = [
            draw(st.sampled_from(["context.n > 2", "context.n == 1", "output.x == null", "not context.done"]))
            for _ in targets
        ]
        ways = [f'{{to: {to}, condition: "{condition}"}}' for to, condition in zip(targets, conditions, strict=True)]
        if draw(st.booleans()):
            ways.append(f"{{to: {targets[0]}}}")
        doing = {
            "pass": "",
            "final": "",
            "action": "action: a,",
            "wait": "wait_for: ch,",
            "launch": 'launch: c, launch_input: {n: "{{ context.n + 1 }}"},',  # fails once n is no number
            "any": "machine: [c, d], mode: any,",
            "agent": "agent: critic, input: {text: Well?},",
            **EACH,
        }[kind]
        error = f"on_error: {draw(st.sampled_from(names))}," if draw(st.booleans()) else ""
        lines.append(
            f"{name}: {{type: final}}"
            if kind == "final"
            else f"{name}: {{{doing} {error} transitions: [{', '.join(ways)}]}}"
        )
    return "\n".join(lines)


@settings(max_examples=75)
@given(graphs(), st.integers(0, 2**32))
def test_what_is_checked_can_be_run_and_replayed(states: str, chance: int) -> None:
    """Every graph that the loader takes runs to an end, whatever its effects do; its checkpoints say where it is."""
    try:
        machine = machine_of(states, data="settings: {max_steps: 40}\ncontext: {n: 0}")
    except BadMachine:
        return
    dice = random.Random(chance)
    stepper = Stepper(machine, {}, ExecutionInfo("execution"))
    moved, before = stepper.begin(), None
    steps: list[tuple[str, str]] = []
    while True:
        steps.append((checkpoint_name(len(steps)), json.dumps(record(before, moved))))
        assert read_steps(steps)[0] == moved.to
        if moved.to.has_ended:
            break
        before = moved.to
        try:
            stepper.effect(before)
        except PROBLEMS as problem:
            moved = stepper.failed(before, failure_of(problem))
            continue
        moved = (
            stepper.succeeded(before, {"n": dice.choice([0, 1, 2, 3, "x"]), "done": dice.random() < 0.5})
            if dice.random() < 0.8
            else stepper.failed(before, failure(dice))
        )
    ended = moved.to
    assert ended.failure is not None or machine.states[ended.state].is_final
    assert [number for number, _ in read_steps(steps)[1]] == list(range(len(steps)))


def failure(dice: random.Random) -> Any:
    return failure_of(dice.choice([ValueError("v"), KeyError("k"), TimeoutError()]))


@pytest.mark.parametrize("states", ["start: {transitions: [{to: start}]}", "start: {action: a}"])
def test_a_machine_that_cannot_end_is_refused(states: str) -> None:
    with pytest.raises(BadMachine):
        machine_of(states)
