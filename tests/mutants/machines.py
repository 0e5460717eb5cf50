"""Planted bugs of machines."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Code, Mutant

STEPPING: Final = "machines/test_flatagents_statements.py"
MUTANTS: Final = (
    Mutant(
        "launch under another id",
        "a launch that is repeated after a crash starts other machines",
        (
            Code(
                "holdfast.machines.engine:MachineAttempt._launch",
                'checkpoint_name(self._number, "launch")',
                'checkpoint_name(self._number, f"launch{self._ctx.lease.token}")',
            ),
        ),
        ("machines/test_crashes.py::test_a_machine_survives_a_crash_at_every_commit[sqlite]",),
        ("FA-32",),
    ),
    Mutant(
        "checkpoint before its parts",
        "a checkpoint in several parts is stored before they are",
        (
            Code(
                "holdfast.machines.engine:MachineAttempt._store",
                "for name, piece in parts:",
                "await self._ctx.ledger.store_step(checkpoint_name(self._number), own)\n    for name, piece in parts:",
            ),
        ),
        ("machines/test_crashes.py::test_a_checkpoint_in_parts_is_there_with_all_of_them_or_not_at_all[sqlite]",),
        ("FA-33",),
    ),
    Mutant(
        "look before the lock",
        "a machine looks how its children stand before it locks: it waits for one that has ended",
        (
            Code(
                "holdfast.machines.family:_park_unless_ended",
                "await waiting.lock_channel(tx, channel) wanted = set(ids) rows = await list_children(tx, lease.seq)",
                "wanted, rows = {*ids}, await list_children(tx, lease.seq)\n"
                "    await waiting.lock_channel(tx, channel)",
            ),
        ),
        ("interleaving/test_scripts.py::test_a_script_holds[a_machine_does_not_wait_for_a_child_that_has_ended]",),
    ),
    Mutant(
        "item done again",
        "an item whose output is stored is done again after a crash",
        (
            Code(
                "holdfast.machines.engine:MachineAttempt._act_for",
                "stored = await self._ctx.ledger.find_step(step)",
                "stored = None",
            ),
        ),
        ("machines/test_crashes.py::test_a_recorded_effect_is_not_repeated[sqlite]",),
        ("FA-33",),
    ),
    Mutant(
        "stored after a loss and done again",
        "a checkpoint that is stored is done again, if the one before it was lost",
        (
            Code(
                "holdfast.machines.engine:MachineAttempt.play",
                "stored = await self._stored(place)",
                "stored = None if vars(self).get('acted') else await self._stored(place)\n"
                "        self.acted = stored is None",
            ),
        ),
        ("machines/test_crashes.py::test_a_checkpoint_that_outlived_the_one_before_it_is_not_done_again[sqlite]",),
    ),
    Mutant(
        "foreach out of order",
        "the outputs of items come in another order than the items",
        (
            Code(
                "holdfast.machines.engine:MachineAttempt._run",
                "outputs = [_shown(each) for each in ended]",
                "outputs = [_shown(each) for each in reversed(ended)]",
            ),
        ),
        (f"{STEPPING}::test_fa_31_foreach_keeps_order_and_keys_and_shows_errors_as_values",),
        ("FA-31",),
    ),
    Mutant(
        "last transition taken",
        "of several transitions whose conditions hold the last is taken",
        (
            Code(
                "holdfast.machines.stepping:Stepper._chosen",
                "in self._state(at).transitions:",
                "in reversed(self._state(at).transitions):",
            ),
        ),
        (f"{STEPPING}::test_fa_28_the_first_transition_that_holds_is_taken_and_none_is_an_error",),
        ("FA-28",),
    ),
    Mutant(
        "error taken by default first",
        "an error goes to the default although a state names its class",
        (
            Code(
                "holdfast.machines.stepping:Stepper._failed",
                '(*failure.classes, "default")',
                '("default", *failure.classes)',
            ),
        ),
        (f"{STEPPING}::test_fa_30_an_error_is_taken_by_class_by_default_by_hooks_or_raised",),
        ("FA-30",),
    ),
    Mutant(
        "steps without a limit",
        "a machine that never ends enters one state more than it may, and more",
        (Code("holdfast.machines.stepping:Stepper._follow", "at.step >= most +", "at.step > 2 * most +"),),
        ("machines/test_stepping.py::test_an_endless_loop_is_an_error_that_a_state_can_take",),
    ),
    Mutant(
        "winner that leaves the others running",
        "the machines that lost a race run on",
        (
            Code(
                "holdfast.machines.engine:MachineAttempt._settled",
                'await family.cancel_children(self._ctx.database, still_open, f"another',
                'await family.cancel_children(self._ctx.database, [], f"another',
            ),
        ),
        ("machines/test_execution.py::test_any_takes_the_first_that_succeeds_and_cancels_the_others",),
    ),
    Mutant(
        "family without a limit",
        "machines that multiply are not counted",
        (Code("holdfast.machines.family:_count", "count > MOST_MACHINES", "count > 100 * MOST_MACHINES"),),
        ("machines/test_execution.py::test_machines_that_multiply_are_bounded_in_number",),
    ),
    Mutant(
        "launch beyond its cap",
        "a spawner starts one machine more than may live",
        (Code("holdfast.machines.family:_enqueue_some", "asked.most - len(alive)", "asked.most + 1 - len(alive)"),),
        ("facades/test_flatagents_machines.py::test_fa_19_no_more_workers_start_than_the_cap",),
        ("FA-19", "FA-22"),
    ),
)
