"""FA-27 to FA-36: what FlatAgents' document and its engine promise of machines, each shown on both databases."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.errors import RunFailed, UsageError
from holdfast.machines.api import execution_job, resume_execution
from holdfast.machines.problems import BadMachine
from holdfast.testing import Labs
from tests.machines.conftest import WriteMachine
from tests.machines.test_crashes import repeated_nothing
from tests.machines.test_execution import result

LATER = "start: {wait_for: go, transitions: [{to: done}]}\ndone: {type: final}"
CONDITIONS = {
    "context.none == null": True,
    "context.missing == null": True,
    "context.missing.deeper == null": True,
    "context.n > 2 and context.n < 4": True,
    "context.n > 5 or not (context.n == 4)": True,
    "context.n * 2 + 1 == 7 and context.n / 2 == 1.5 and context.n - 3 == 0": True,
    "context.names | length == 2": True,
    "context.names[1] == 'b'": True,
    "context.n == '3'": False,
    "not context.names": False,
}


@pytest.mark.parametrize(("condition", "holds"), CONDITIONS.items())
@pytest.mark.sample(3)
async def test_fa_27_a_condition_decides(
    hf: Holdfast, labs: Labs, write: WriteMachine, condition: str, holds: bool
) -> None:
    path = write(
        "m",
        f"""
        start: {{transitions: [{{condition: "{condition}", to: yes_state}}, {{to: no_state}}]}}
        yes_state: {{type: final, output: {{holds: true}}}}
        no_state: {{type: final, output: {{holds: false}}}}
        """,
        data="context: {n: 3, none: null, names: [a, b]}",
    )
    assert await result(hf, await labs.use(hf), path, None) == {"holds": holds}


def test_fa_27_a_condition_that_is_none_is_refused_at_load(hf: Holdfast, write: WriteMachine) -> None:
    path = write("m", 'start: {transitions: [{condition: "context.n >", to: done}]}\ndone: {type: final}')
    with pytest.raises(BadMachine, match=r"m\.yml:7:"):
        hf.machine(path)


async def test_fa_28_the_first_transition_that_holds_is_taken_and_none_is_an_error(
    hf: Holdfast, labs: Labs, write: WriteMachine
) -> None:
    path = write(
        "m",
        """
        start: {transitions: [{condition: "input.n > 5", to: big}, {condition: "input.n > 2", to: small}]}
        big: {type: final, output: {is: big}}
        small: {type: final, output: {is: small}}
        """,
    )
    lab = await labs.use(hf)
    assert await result(hf, lab, path, None, {"n": 9}) == {"is": "big"}, "both hold, and the first is taken"
    assert await result(hf, lab, path, None, {"n": 3}) == {"is": "small"}
    with pytest.raises(RunFailed) as failed:
        await result(hf, lab, path, None, {"n": 1})
    assert failed.value.error_type == "NoTransition"


async def test_fa_29_a_single_expression_keeps_its_type_and_mixed_text_is_text(
    hf: Holdfast, labs: Labs, write: WriteMachine
) -> None:
    path = write(
        "m",
        """
        start:
          type: final
          output:
            whole: "{{ input.n + 1 }}"
            list: "{{ input.names }}"
            flag: "{{ input.n > 2 }}"
            none: "{{ input.missing }}"
            mixed: "n is {{ input.n }}"
        """,
    )
    given = {"n": 3, "names": ["a", 1]}
    expected = {"whole": 4, "list": ["a", 1], "flag": True, "none": None, "mixed": "n is 3"}
    assert await result(hf, await labs.use(hf), path, None, given) == expected


class Raises:
    """Raises what the input names; the error of one state they take themselves."""

    def on_action(self, action: str, context: dict[str, Any]) -> Any:
        raise {"key": KeyError, "os": OSError, "value": ValueError}[context["what"]]("broken")

    def on_error(self, state: str, error: str, context: dict[str, Any]) -> Any:
        return "hooked" if context["what"] == "value" else None


async def test_fa_30_an_error_is_taken_by_class_by_default_by_hooks_or_raised(
    hf: Holdfast, labs: Labs, write: WriteMachine
) -> None:
    states = """
        start: {action: it, on_error: %s, transitions: [{to: done}]}
        by_class: {type: final, output: {took: class, e: context.last_error, t: context.last_error_type}}
        by_default: {type: final, output: {took: default, t: context.last_error_type, error: context.error}}
        hooked: {type: final, output: {took: hooks}}
        done: {type: final, output: {took: nobody}}
        never: {action: it, transitions: [{to: hooked}, {to: by_class}, {to: by_default}]}
        """
    states = states.replace("transitions: [{to: done}]", "transitions: [{condition: context.x, to: never}, {to: done}]")
    states = states.replace(
        "[{to: hooked}, {to: by_class}, {to: by_default}]",
        "[{condition: context.y, to: hooked}, {condition: context.z, to: by_class}, {to: by_default}]",
    )
    data = 'context: {what: "{{ input.what }}"}'
    both = write("both", states % "{KeyError: by_class, default: by_default}", data=data)
    some = write("some", states % "{KeyError: by_class}", data=data)
    lab = await labs.use(hf)
    taken = await result(hf, lab, both, Raises, {"what": "key"})
    assert taken == {"took": "class", "e": "'broken'", "t": "KeyError"}
    assert await result(hf, lab, both, Raises, {"what": "os"}) == {"took": "default", "t": "OSError", "error": "broken"}
    assert await result(hf, lab, some, Raises, {"what": "value"}) == {"took": "hooks"}
    with pytest.raises(RunFailed) as failed:
        await result(hf, lab, some, Raises, {"what": "os"})
    assert failed.value.error_type == "OSError"


async def test_fa_31_foreach_keeps_order_and_keys_and_shows_errors_as_values(
    hf: Holdfast, labs: Labs, write: WriteMachine
) -> None:
    def hooks(action: str, context: dict[str, Any]) -> Any:
        if context["n"] == 1:
            raise ValueError("one")

    child = "start: {action: a, transitions: [{to: done}]}\ndone: {type: final, output: {n: context.n}}"
    write("child", child, data='context: {n: "{{ input.n }}"}')
    path = write(
        "m",
        """
        start:
          foreach: "{{ range(3) }}"
          as: n
          machine: child
          output_to_context: {listed: "{{ output }}"}
          transitions: [{to: keyed}]
        keyed:
          foreach: [2, 0]
          as: n
          key: "k{{ n }}"
          machine: child
          output_to_context: {keyed: "{{ output }}"}
          transitions: [{to: empty}]
        empty: {foreach: [], machine: child, output_to_context: {none: "{{ output }}"}, transitions: [{to: done}]}
        done: {type: final, output: {listed: context.listed, keyed: context.keyed, none: context.none}}
        """,
    )
    assert await result(hf, await labs.use(hf), path, hooks) == {
        "listed": [{"n": 0}, {"_error": "one", "_error_type": "ValueError"}, {"n": 2}],
        "keyed": {"k2": {"n": 2}, "k0": {"n": 0}},
        "none": [],
    }


async def test_fa_31_any_returns_the_first(hf: Holdfast, labs: Labs, write: WriteMachine) -> None:
    write(
        "one",
        """
        start: {transitions: [{condition: input.n, to: never}, {to: done}]}
        never: {wait_for: x, transitions: [{to: done}]}
        done: {type: final, output: {n: input.n}}
        """,
    )
    path = write(
        "m",
        """
        start:
          foreach: [7, 0, 8]
          as: n
          mode: any
          machine: one
          output_to_context: {first: "{{ output }}"}
          transitions: [{to: done}]
        done: {type: final, output: {first: context.first}}
        """,
    )
    assert await result(hf, await labs.use(hf), path, None) == {"first": {"n": 0}}


async def test_fa_32_a_launch_does_not_wait_and_happens_once_under_its_own_ids(
    hf: Holdfast, labs: Labs, write: WriteMachine
) -> None:
    write("later", LATER)
    path = write(
        "m",
        """
        start:
          foreach: "{{ range(2) }}"
          launch: later
          output_to_context: {ids: "{{ output.execution_ids }}"}
          transitions: [{to: done}]
        done: {type: final, output: {ids: context.ids}}
        """,
    )
    ids = []
    for nth in (None, 1, 2):  # without a crash, and with one after a checkpoint: the same ids
        lab = await labs.use(hf)
        if nth is not None:
            lab.crash(after="store_step", nth=nth)
        execution = await hf.machine(path).enqueue(execution_id="the same")
        await lab.drain()
        ids.append((await execution.result())["ids"])
        launched = await hf.jobs.list(kind="machine:later")
        assert {job.state for job in launched} == {"waiting"}, "the launcher has ended, and they have not"
        assert sorted(job.id for job in launched) == sorted(ids[0])
        await labs.close_lab(lab)
    assert ids[0] == ids[1] == ids[2]


async def test_fa_33_a_kill_after_every_checkpoint_repeats_no_effect(
    hf: Holdfast, labs: Labs, write: WriteMachine
) -> None:
    await repeated_nothing(hf, labs, write)


async def test_fa_34_a_finished_execution_returns_its_output_without_running(
    hf: Holdfast, labs: Labs, write: WriteMachine
) -> None:
    ran: list[str] = []

    def hooks(action: str, context: dict[str, Any]) -> Any:
        ran.append(action)
        return {"n": len(ran)}

    states = "start: {action: a, transitions: [{to: done}]}\ndone: {type: final, output: {n: context.n}}"
    machine = hf.machine(write("m", states), hooks=hooks)
    lab = await labs.use(hf)
    for _ in range(2):
        execution = await machine.enqueue(execution_id="one")
        await lab.drain()
        assert await execution.result() == {"n": 1}
    with pytest.raises(UsageError, match="nothing to resume"):
        await resume_execution(core_of(hf), execution_job("one"), None, "default")
    assert ran == ["a"]


async def test_fa_35_of_two_resumes_one_proceeds(hf: Holdfast, labs: Labs, write: WriteMachine) -> None:
    broken, ran = [True], list[str]()

    def hooks(action: str, context: dict[str, Any]) -> Any:
        ran.append(action)
        if broken[0]:
            raise ValueError("broken")

    machine = hf.machine(write("m", "start: {action: a, transitions: [{to: done}]}\ndone: {type: final}"), hooks=hooks)
    lab = await labs.use(hf)
    failed = await machine.enqueue()
    await lab.drain()
    broken[0] = False
    both = [resume_execution(core_of(hf), failed.id, None, "default") for _ in range(2)]
    ended = await asyncio.gather(*both, return_exceptions=True)
    refused = [each for each in ended if isinstance(each, UsageError)]
    assert len(refused) == 1
    assert "was resumed already" in str(refused[0])
    await lab.drain()
    assert ran == ["a", "a"], "once before, and once more"


@pytest.mark.parametrize("before", [True, False])
async def test_fa_36_a_signal_wakes_the_one_that_it_is_for(
    hf: Holdfast, labs: Labs, write: WriteMachine, before: bool
) -> None:
    path = write(
        "m",
        """
        start: {wait_for: "ok/{{ input.n }}", output_to_context: {said: "{{ output }}"}, transitions: [{to: done}]}
        done: {type: final, output: {said: context.said}}
        """,
    )
    lab = await labs.use(hf)
    machine = hf.machine(path)
    one, other = [await machine.enqueue({"n": n}) for n in (1, 2)]
    if not before:
        await lab.drain()
    await hf.signal("ok/1", {"by": "ann"})
    await lab.drain()
    assert await one.result() == {"said": {"by": "ann"}}
    parked = await hf.jobs.get(other.id)
    assert (parked.state, parked.worker) == ("waiting", None), "no process has it"
