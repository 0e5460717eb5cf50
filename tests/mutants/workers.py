"""Planted bugs of workers, drivers and pools."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Code, Mutant, Words

SCRIPT: Final = "interleaving/test_scripts.py::test_a_script_holds"
WORKERS: Final = (
    Mutant(
        "renewal counted from its answer",
        "the thread that beats believes a lease to last from when the answer came",
        (
            Code(
                "holdfast.workers.lifeline:ThreadLifeline._beat",
                "self._heard, sent_at, answer",
                "self._heard, self._ports.clock.monotonic(), answer",
            ),
        ),
        ("workers/test_self_fencing.py::test_a_lease_is_renewed_from_when_the_heartbeat_was_begun",),
    ),
    Mutant(
        "claim without an answer kept",
        "a job that a claim took whose answer was lost waits for the end of its lease, although its holder lives",
        (Words("find_unanswered", "and k.claimed_at = n.claimed_at", "and false"),),
        (
            "workers/test_lost_claims.py::test_a_job_that_a_broker_took_without_hearing_of_it_goes_back",
            "resp/test_lost_jobs.py::test_a_job_whose_claim_was_never_answered_goes_back_at_once",
        ),
    ),
    Mutant(
        "claim known by its token alone",
        "a claim that was never committed takes the job away from who has it since",
        (Words("find_unanswered", "and k.claimed_at = n.claimed_at", ""),),
        ("workers/test_lost_claims.py::test_a_claim_that_was_never_committed_costs_nobody_the_job",),
    ),
    Mutant(
        "cancelled connection used again",
        "a connection whose call was cancelled goes back into the pool",
        (
            Code(
                "holdfast.kernel.drivers.postgres_pool:ConnectionPool.line",
                "line.connection.terminate() raise",
                "raise",
            ),
        ),
        ("workers/test_connections.py::test_a_connection_is_not_used_again_when_its_call_was_cancelled",),
    ),
    Mutant(
        "no quiet after a restart of the server",
        "presence is judged while everybody is still coming back",
        (
            Code(
                "holdfast.kernel.drivers.postgres_processes:PostgresPresence.absent",
                'row["up"] < self._quiet',
                'row["up"] < 0',
            ),
        ),
        ("workers/test_presence.py::test_nobody_is_judged_by_presence_right_after_the_server_has_started",),
    ),
    Mutant(
        "no quiet after a reconnect",
        "what cut our connections has cut everybody's, and they are judged at once",
        (
            Code(
                "holdfast.kernel.drivers.postgres_processes:PostgresPresence.absent",
                "self._database.seconds_since_reconnect() < self._quiet",
                "self._database.seconds_since_reconnect() < 0",
            ),
        ),
        (f"{SCRIPT}[nobody_is_judged_right_after_a_reconnect]",),
    ),
    Mutant(
        "one look is a verdict",
        "a worker whose presence was missed once is gone",
        (
            Code(
                "holdfast.workers.sweeper:Sweeper.gone",
                "now - missed.since >= grace",
                "now - missed.since >= 0 * grace",
            ),
        ),
        (f"{SCRIPT}[one_look_is_no_verdict]",),
    ),
    Mutant(
        "no self-fence",
        "a worker that cannot renew starts steps of an attempt whose lease may be over",
        (
            Code(
                "holdfast.workers.ledger:StoreLedger.require_lease",
                "self._ports.clock.monotonic() >= self._holding.fence_at",
                "self._ports.clock.monotonic() >= self._holding.fence_at + 3600",
            ),
        ),
        ("workers/test_self_fencing.py::test_no_new_step_begins_once_the_lease_may_be_gone[sqlite]",),
    ),
    Mutant(
        "leap of the clock taken for time",
        "leases end by time right after the store's clock leapt forward",
        (
            Code(
                "holdfast.workers.sweeper:Sweeper.sweep",
                "trusted = self._ports.clock.monotonic() >= self._held_until",
                "trusted = True",
            ),
        ),
        ("conformance/test_clocks.py::test_after_a_leap_forward_nothing_ends_by_time_for_one_ttl[sqlite]",),
    ),
    Mutant(
        "cancel that no heartbeat tells",
        "a job whose hint was lost does not hear of its cancel",
        (
            Code(
                "holdfast.workers.worker:Worker._on_beat",
                "renewed.cancel_requested_at is not None and holding.stop is None",
                "False",
            ),
        ),
        ("workers/test_cancel.py::test_a_cancel_comes_with_the_heartbeat_if_the_hint_is_lost[sqlite]",),
    ),
    Mutant(
        "drain that claims",
        "a worker that leaves takes another job",
        (
            Code("holdfast.workers.worker:Worker._claim", "while not self.leaving.is_set() and", "while"),
            Code("holdfast.workers.worker:Worker._accept", "self.leaving.is_set()", "False"),
        ),
        ("workers/test_drain.py::test_a_leaving_worker_takes_nothing_more[sqlite]",),
        ("AP-34", "UA-24"),
    ),
    Mutant(
        "step computed again",
        "a step whose result is stored is computed again",
        (Code("holdfast.workers.ledger:StoreLedger.find_step", "return self._steps.get(name)", "return None"),),
        ("workers/test_context.py::test_a_step_is_not_repeated_by_the_worker_that_takes_over[sqlite]",),
        ("UA-31",),
    ),
    Mutant(
        "children of a second set",
        "a parent that runs again starts other children",
        (
            Code(
                "holdfast.workers.context:JobContext.start",
                "derived_id(self.lease.id, step, self._started[step])",
                "derived_id(self.lease.id, step, self._started[step], self.lease.token)",
            ),
        ),
        ("workers/test_children.py::test_a_parent_that_runs_again_starts_no_second_set[sqlite]",),
    ),
    Mutant(
        "one slot too many",
        "a worker runs one attempt more than it has slots",
        (
            Code("holdfast.workers.slots:Slots.room", "return self.limit +", "return self.limit + 1 +"),
            Code("holdfast.workers.slots:Slots.next", "self.running >= self.limit", "self.running > self.limit"),
        ),
        ("workers/test_concurrency.py::test_no_more_handlers_at_once_than_slots[sqlite]",),
    ),
    Mutant(
        "call that sinks its group",
        "of calls that share a commit, one that the store refuses fails them all",
        (
            Code(
                "holdfast.client.intake:Grouping._accept",
                "await self._accept([call], notify=notify)",
                "call.answer.set_exception(problem)",
            ),
        ),
        ("workers/test_grouping.py::test_a_call_that_the_store_refuses_fails_alone[sqlite]",),
    ),
)
POOLS: Final = (
    Mutant(
        "pool beyond its maximum",
        "a pool starts more workers than it may have",
        (Code("holdfast.pools.size:needed_workers", "min(policy.max,", "max(policy.max,"),),
        ("pools/test_size.py::test_no_decision_leaves_the_limits",),
        ("UA-26",),
    ),
    Mutant(
        "pool below its minimum",
        "a pool retires workers that it must keep",
        (
            Code("holdfast.pools.size:needed_workers", "max(policy.min,", "max(0,"),
            Code("holdfast.pools.size:least_workers", "max(policy.min,", "max(0,"),
        ),
        ("pools/test_size.py::test_no_decision_leaves_the_limits",),
        ("UA-12", "UA-27"),
    ),
    Mutant(
        "busy worker retired",
        "a worker that holds a job is asked to leave",
        (
            Words("retire_worker", "and (select l.seq from holdfast.lease l where l.worker = :seq limit 1) is null"),
            Words("retire_worker", "and idle_since <= holdfast.now_us() - cast(:idle_us as bigint)"),
        ),
        ("pools/test_places.py::test_a_busy_worker_is_not_retired_and_an_idle_one_is[sqlite]",),
    ),
    Mutant(
        "place taken too late",
        "a process that came after another was started in its place works too",
        (Words("occupy", "and boot_by > holdfast.now_us()"),),
        ("pools/test_places.py::test_a_process_that_comes_too_late_is_refused[sqlite]",),
    ),
    Mutant(
        "keepers that do not take turns",
        "whoever asks for a turn has it: two keepers start what each saw missing",
        (Words("take_turn", "where duty.held_until <= holdfast.now_us() or duty.held_until > excluded.held_until"),),
        ("conformance/test_look.py::test_one_of_many_takes_the_turn_to_ask",),
    ),
)
MUTANTS: Final = (*WORKERS, *POOLS)
