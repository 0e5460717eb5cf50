"""Planted bugs of the facades: Universal Agent's runs, FlatAgents' pools of work and registries."""

from __future__ import annotations

import os
from typing import Final

from tests.mutants.planting import Code, Mutant, Swap, Words

RUNS: Final = "holdfast.facades.universal_agent.runs"
LEASES: Final = "facades/test_leases.py"
OPERATORS: Final = "facades/test_operators.py"
UNIVERSAL_AGENT: Final = (
    Mutant(
        "workspace from the metadata",
        "a confined session works in the folder that a client has written into its metadata",
        (
            Code(
                "holdfast.facades.universal_agent.in_process:InProcessGateway._takes", "None if self._confined else", ""
            ),
        ),
        ("http/test_gateway.py::test_a_session_has_the_workspace_of_its_own_id_whatever_clients_write",),
    ),
    Mutant(
        "workspace for everybody",
        "who else has an account reads what a session does",
        (Code("holdfast.facades.universal_agent.workspaces:_open_below", "name, 0o700, dir_fd", "name, dir_fd"),),
        ("e2e/test_private_files.py::test_the_workspaces_of_sessions_and_runs",),
    ),
    Mutant(
        "link in the place of a workspace",
        "what a tool has put in the place of its folder is followed",
        (Swap("holdfast.facades.universal_agent.workspaces:_FOLDER", os.O_RDONLY | os.O_DIRECTORY),),
        ("http/test_gateway.py::test_a_tool_that_puts_a_link_in_the_place_of_its_workspace_leads_no_note_out",),
    ),
    Mutant(
        "lease of another owner",
        "whoever knows a run may extend, end and release it",
        (Words("find_lease", "and w.id = :owner", "and length(cast(:owner as text)) > 0"),),
        (
            f"{LEASES}::test_ua_07_a_heartbeat_of_another_changes_nothing",
            f"{LEASES}::test_ua_09_a_release_frees_at_once_and_only_the_owners",
        ),
        ("UA-07", "UA-08", "UA-09"),
    ),
    Mutant(
        "run of another request",
        "the id of a run stands for any request",
        (Code("holdfast.facades.universal_agent.runs:Runs.queue", "if alias.digest != digest:", "if False:"),),
        (f"{LEASES}::test_ua_10_the_same_id_is_the_same_run_and_no_other_request",),
        ("UA-10",),
    ),
    Mutant(
        "operator who writes",
        "SQLite runs whatever statement an operator's query is",
        (Code("holdfast.kernel.drivers.sqlite_file:SqliteFile.ask", "else apsw.SQLITE_DENY", "else apsw.SQLITE_OK"),),
        (f"{OPERATORS}::test_ua_37_a_query_that_writes_is_refused_and_nothing_is_changed[sqlite]",),
        ("UA-37",),
    ),
    Mutant(
        "session as an operator left it",
        "what an operator's query sets or locks stays in the session",
        (Swap("holdfast.kernel.drivers.postgres_transaction:_UNDO", "select 1"),),
        (f"{OPERATORS}::test_ua_37_a_query_ends_after_its_time_and_leaves_nothing_behind[postgres]",),
        ("UA-37",),
    ),
    Mutant(
        "run revived",
        "a run that runs is started again",
        (Code(f"{RUNS}:queue_again", "if seen is None or not seen.ended:", "if seen is None:"),),
        (f"{LEASES}::test_ua_19_attempts_are_numbered_without_gaps_across_requeues",),
    ),
    Mutant(
        "run taken from a live owner",
        "a lease that has not run out is given to another",
        (
            Code(f"{RUNS}:acquire", "job.state == State.RUNNING and (job.lease_until or 0) >", "False and 0 >"),
            Words("seek", "and l.lease_until <= holdfast.now_us()", "and true"),
            Words("expire", "(lease_until <= holdfast.now_us() or", "(true or"),
            Words("expire", "(l.lease_until <= holdfast.now_us() or", "(true or", on="sqlite"),
        ),
        (f"{LEASES}::test_ua_02_a_live_lease_is_refused_to_others_and_to_its_owner",),
        ("UA-02", "UA-05"),
    ),
    Mutant(
        "cancel that nobody asked for",
        "an owner ends a run as cancelled without being asked",
        (Code(f"{RUNS}:end", "or (asked and held.cancel_requested_at is None)"),),
        (f"{LEASES}::test_ua_22_a_running_run_is_asked_and_ends_once",),
        ("UA-22",),
    ),
    Mutant(
        "attempts numbered anew",
        "the attempts of a run that is queued again begin at 1",
        (Code(f"{RUNS}:attempts", "enumerate(rows, alias.attempts + 1)", "enumerate(rows, 1)"),),
        (f"{LEASES}::test_ua_19_attempts_are_numbered_without_gaps_across_requeues",),
        ("UA-19",),
    ),
    Mutant(
        "failure without its class",
        "a run that failed says that its handler did",
        (
            Code(
                "holdfast.facades.universal_agent.runs:Runs.fail",
                "error_json(failure_class, reason,",
                "error_json(HANDLER_FAILED, reason,",
            ),
        ),
        (f"{LEASES}::test_ua_18_a_failure_has_its_class",),
        ("UA-18",),
    ),
    Mutant(
        "lost leases that do not count",
        "a run that kills its workers is queued for ever",
        (Code("holdfast.facades.universal_agent.runs:declare", "Queue(lost_counts=True)", "Queue(lost_counts=False)"),),
        (f"{LEASES}::test_ua_20_a_run_whose_leases_are_lost_too_often_needs_a_review",),
        ("UA-20",),
    ),
    Mutant(
        "checkpoint of the first life",
        "a run that was queued again begins after the last checkpoint of its first life",
        (
            Code(
                "holdfast.facades.universal_agent.runs:last_checkpoint",
                "newest, number = found, number + found.number",
                "newest, number = newest or found, number + found.number",
            ),
        ),
        ("facades/test_leases.py::test_ua_30_every_life_of_a_run_starts_after_the_last_checkpoint",),
        ("UA-30",),
    ),
)

ITEMS: Final = "holdfast.facades.flatagents.work"
WORKERS: Final = "holdfast.facades.flatagents.registration"
BACKENDS: Final = "facades/test_flatagents_backends.py"
FLATAGENTS: Final = (
    Mutant(
        "late result taken",
        "what a worker says that was given up counts",
        (Code(f"{ITEMS}:end", "worker is not None and worker.status != WorkerState.LOST and"),),
        (f"{BACKENDS}::test_fa_15_a_late_result_is_ignored_and_reported",),
        ("FA-15",),
    ),
    Mutant(
        "one try too many",
        "an item is tried once more than it may be",
        (Code(f"{ITEMS}:_ending", "job.attempts + 1 >= job.max_attempts", "job.attempts >= job.max_attempts"),),
        (f"{BACKENDS}::test_fa_12_an_item_that_fails_too_often_is_poisoned",),
        ("FA-12", "FA-26"),
    ),
    Mutant(
        "release that costs a try",
        "an item that is handed back unworked has one try less",
        (Code(f"{ITEMS}:_ending", "RELEASED, State.PENDING, 0, 0, None", "RELEASED, State.PENDING, 0, 1, None"),),
        (f"{BACKENDS}::test_fa_14_a_reaped_try_counts_and_a_release_does_not",),
        ("FA-14",),
    ),
    Mutant(
        "reaped try that costs nothing",
        "an item that kills its workers is tried for ever",
        (Code(f"{WORKERS}:take_back", "charge=charge", "charge=False"),),
        (f"{BACKENDS}::test_fa_14_a_reaped_try_counts_and_a_release_does_not",),
        ("FA-14", "FA-18"),
    ),
    Mutant(
        "items of another pool released",
        "what a worker has in other pools goes back too",
        (Code(f"{ITEMS}:release_by_worker", "queue=queue_of(pool)", "queue=None"),),
        (f"{BACKENDS}::test_fa_13_only_that_workers_claims_in_that_pool_are_released",),
        ("FA-13",),
    ),
    Mutant(
        "item claimed from another pool",
        "a claim of one pool takes the item of another",
        (Code(f"{ITEMS}:queue_of", '"{QUEUE}{pool}"', '"{QUEUE}{pool[:0]}"'),),
        (f"{BACKENDS}::test_fa_07_pools_are_found_by_name_and_are_apart",),
        ("FA-07",),
    ),
    Mutant(
        "live id registered again",
        "a second worker takes the id of one that lives",
        (Code(f"{WORKERS}:register", "if before.now - before.heartbeat_at <= stale_us:", "if False:"),),
        (f"{BACKENDS}::test_fa_02_the_id_of_a_live_worker_is_taken",),
        ("FA-02",),
    ),
    Mutant(
        "heartbeat of a lost worker",
        "a worker that was given up hears nothing of it",
        (Code(f"{WORKERS}:_live", "or row.status not in ALIVE"),),
        (f"{BACKENDS}::test_fa_03_a_heartbeat_of_an_unknown_or_lost_worker_is_refused",),
        ("FA-03",),
    ),
    Mutant(
        "capability by a part of its name",
        "a worker with gpu2 is listed for gpu",
        (
            Code(
                f"{WORKERS}:_fits",
                "wanted.capability in json.loads(row.capabilities)",
                "wanted.capability in row.capabilities",
            ),
        ),
        (f"{BACKENDS}::test_fa_04_capabilities_match_as_whole_names",),
        ("FA-04",),
    ),
    Mutant(
        "terminated worker that is stale",
        "workers that have ended are listed as stale",
        (
            Code(f"{WORKERS}:_fits", "row.status in ALIVE and"),
            Code(f"{WORKERS}:list_records", "ended and wanted.stale_threshold_seconds is None", "ended"),
        ),
        (f"{BACKENDS}::test_fa_05_stale_workers_are_those_beyond_the_threshold",),
        ("FA-05",),
    ),
    Mutant(
        "stale too late",
        "a worker is stale after five heartbeats instead of two",
        (
            Code(
                "holdfast.facades.flatagents.registration:HoldfastRegistrationBackend.stale_threshold_seconds",
                "STALE_AFTER *",
                "5 *",
            ),
        ),
        (f"{BACKENDS}::test_fa_06_a_worker_is_stale_after_two_heartbeats",),
        ("FA-06",),
    ),
    Mutant(
        "push that fires nothing",
        "an item is there and what it triggers is not",
        (Code(f"{ITEMS}:push", "if fired:", "if False:"),),
        ("facades/test_flatagents_triggers.py::test_fa_37_a_push_fires_what_it_triggers_in_its_own_transaction",),
        ("FA-37",),
    ),
    Mutant(
        "heartbeats at a quarter of the pace",
        "a worker of a machine beats more rarely than its machine says",
        (Code("holdfast.facades.flatagents.hooks:_beat", "stop.wait(interval)", "stop.wait(4 * interval)"),),
        ("facades/test_flatagents_machines.py::test_fa_16_heartbeats_come_as_often_as_the_machine_says",),
        ("FA-16",),
    ),
    Mutant(
        "tick that runs twice what is due",
        "two ticks of one minute start a machine each",
        (Code("holdfast.facades.flatagents.triggers:Triggers.tick", 'f"{at}"', 'f"{moment}"'),),
        ("facades/test_flatagents_triggers.py::test_fa_37_a_tick_runs_what_is_due_once",),
        ("FA-37",),
    ),
)

MUTANTS: Final = (*UNIVERSAL_AGENT, *FLATAGENTS)
