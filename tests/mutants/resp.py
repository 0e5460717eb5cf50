"""Planted bugs of the Redis-protocol gateway, and of the worker for Unix tools."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Code, Mutant, Swap, Words

GATEWAY: Final = (
    Mutant(
        "wrong keys without end",
        "an address may try as many keys as it likes",
        (Swap("holdfast.resp.gateway:FAILURES", 1_000),),
        ("resp/test_connecting.py::test_agx_02_six_wrong_keys_in_a_minute_are_throttled",),
        ("AGX-02",),
    ),
    Mutant(
        "answer before AUTH",
        "a client that has shown no key is answered",
        (Code("holdfast.resp.dispatch:dispatch", "if client.principal is None and (", "if False and ("),),
        ("resp/test_connecting.py::test_agx_01_nothing_is_answered_before_auth",),
        ("AGX-01",),
    ),
    Mutant(
        "identity from the message",
        "who reports about a job is who the message says",
        (
            Code(
                "holdfast.resp.jobs:update",
                "if claimed is not None and claimed != who.worker:",
                "if False:",
            ),
        ),
        ("resp/test_jobs.py::test_agx_22_only_the_claimant_reports",),
    ),
    Mutant(
        "id of another principal",
        "a key registers a worker under any id",
        (Code("holdfast.resp.client:KeyPrincipal.may_register", "return ANY in self.workers or", "return True or"),),
        ("resp/test_workers.py::test_a_key_registers_no_id_that_is_not_its_own",),
        ("AGX-08",),
    ),
    Mutant(
        "job of another tenant",
        "a key of one tenant reads the job of another",
        (Code("holdfast.resp.jobs:find", "if job.tenant == tenant else None", ""),),
        ("resp/test_tenants.py::test_what_belongs_to_another_tenant_does_not_exist",),
    ),
    Mutant(
        "queue of another key",
        "a key of one queue pops from another",
        (Code("holdfast.resp.call:queue_of", "if not call.client.principal.may_use(queue):", "if False:"),),
        ("resp/test_jobs.py::test_a_key_of_one_queue_sees_and_verifies_on_no_other",),
    ),
    Mutant(
        "command that the key may not call",
        "a key that is limited to some commands calls others",
        (Code("holdfast.resp.client:KeyPrincipal.may_call", "return self.commands is None or", "return True or"),),
        ("resp/test_connecting.py::test_a_key_may_be_limited_to_some_commands",),
    ),
    Mutant(
        "lease trusted too long",
        "an end is written without a question although the lease may be over",
        (Swap("holdfast.resp.pops:_SURE", 9.0), Swap("holdfast.resp.pops:_LONGEST_SURE", 40.0)),
        ("resp/test_cost.py::test_what_was_sent_is_sure_for_no_longer_than_its_lease",),
    ),
    Mutant(
        "renewal that ignores the epoch",
        "a server renews for a registration what an earlier one of its number was sent",
        (Code("holdfast.resp.server:keep", "if [row.epoch for row in alive] != [epoch]:", "if not alive:"),),
        ("resp/test_cost.py::test_a_lease_is_renewed_for_the_registration_that_it_was_sent_to",),
    ),
    Mutant(
        "more jobs than a worker may have",
        "what a worker holds is not counted",
        (
            Code("holdfast.resp.pops:claim_asked", "holder.slots - held.get(holder.seq, 0)", "holder.slots"),
            Words("claim_each", " and l.held < h.slots", "", "postgres"),
            Words("claim_each", "l where l.worker = w.seq) < w.slots", "l where l.worker = w.seq) >= 0", "sqlite"),
        ),
        ("resp/test_jobs.py::test_agx_26_a_worker_has_no_more_jobs_than_it_may",),
        ("AGX-26",),
    ),
    Mutant(
        "changed plan accepted",
        "another plan under the id of one that is there is taken for the same",
        (Code("holdfast.resp.plans:submit_plan", "there is not None and there.digest != digest", "False"),),
        ("resp/test_plans_and_actions.py::test_agx_15_the_same_plan_again_is_fine_and_another_is_refused",),
        ("AGX-15",),
    ),
    Mutant(
        "illegal transition accepted",
        "a report of a state that does not follow is taken",
        (Code("holdfast.resp.jobs:update", 'if status not in MOVES["running"]:', "if False:"),),
        ("resp/test_jobs.py::test_agx_23_transitions_are_checked_and_a_repeated_end_is_fine",),
        ("AGX-23",),
    ),
    Mutant(
        "job of who left kept",
        "what was claimed for a client that left meanwhile does not go back",
        (Code("holdfast.resp.pops:Pops.give_back", "if popped:", "if False:"),),
        ("resp/test_lost_jobs.py::test_agx_20_a_job_claimed_for_somebody_who_left_meanwhile_goes_back_at_once",),
        ("AGX-20",),
    ),
    Mutant(
        "report under a lease that ran out",
        "a report counts although its lease is over",
        (
            Code("holdfast.resp.jobs:update", "or owned.lease_until <= row.now"),
            Code("holdfast.resp.commands.leases:_NamedLease.lease", "or owned.lease_until <= row.now"),
            Words("standing_leases", "and l.lease_until > holdfast.now_us()"),
        ),
        ("resp/test_lost_jobs.py::test_agx_22_a_report_under_a_lease_that_ran_out_changes_nothing",),
        ("AGX-22",),
    ),
    Mutant(
        "pop that hears no hint",
        "a parked pop gets its job at the next look",
        (Code("holdfast.resp.pops:Pops._hear", 'if subject in ("route", LOOKED):', "if False:"),),
        ("resp/test_jobs.py::test_agx_18_a_parked_pop_hears_of_a_job_without_a_look",),
        ("AGX-18",),
    ),
    Mutant(
        "heartbeat for the connection alone",
        "a heartbeat of a worker renews none of its leases",
        (
            Code(
                "holdfast.resp.workers:beat_all",
                "for each in known if each.worker in lasting]",
                "for each in known if False]",
            ),
        ),
        ("resp/test_jobs.py::test_agx_27_a_heartbeat_keeps_a_worker_and_its_job",),
        ("AGX-27",),
    ),
    Mutant(
        "lease longer than the job may run",
        "a job under a long lease runs beyond its time limit",
        (
            Words("take_for", "least(a.ttl_us, coalesce(j.timeout_us, a.ttl_us))", "a.ttl_us", "postgres"),
            Words(
                "take_for",
                "min(value ->> :takings.ttl_us, coalesce(j.timeout_us, value ->> :takings.ttl_us))",
                "(value ->> :takings.ttl_us)",
                "sqlite",
            ),
        ),
        ("resp/test_jobs.py::test_agx_24_no_lease_is_longer_than_its_job_may_run",),
        ("AGX-24",),
    ),
    Mutant(
        "renewal beyond the time of the job",
        "heartbeats keep a job that has run for too long",
        (
            Words(
                "renew_each",
                "coalesce((select j.timeout_us from holdfast.job j where j.seq = l.seq), :ceiling_us)",
                ":ceiling_us",
            ),
        ),
        ("resp/test_jobs.py::test_agx_24_no_renewal_passes_the_time_of_the_job",),
        ("AGX-24",),
    ),
    Mutant(
        "silent worker that keeps its job",
        "what a silent worker holds waits for the end of its lease",
        (Code("holdfast.resp.workers:give_up_silent", "if not silent:", "if True:"),),
        ("resp/test_lost_jobs.py::test_a_silent_workers_lease_ends_with_the_worker",),
        ("AGX-21",),
    ),
    Mutant(
        "worker given up too early",
        "a worker that was silent for a minute loses what it holds",
        (Words("silent_holders", "w.heartbeat_at + w.ttl_us", "w.heartbeat_at + w.ttl_us / 2"),),
        ("resp/test_lost_jobs.py::test_agx_10_agx_11_a_silent_workers_job_is_done_by_another_once",),
        ("AGX-10",),
    ),
    Mutant(
        "AUTH between MULTI and EXEC",
        "what was queued under one key is called under another",
        (Swap("holdfast.resp.dispatch:_NOT_IN_MULTI", frozenset()),),
        ("resp/test_connecting.py::test_nothing_that_was_queued_under_one_key_is_called_under_another",),
    ),
)

AGW: Final = (
    Mutant(
        "command out of the allowlist",
        "a plan runs a program that the worker was not given",
        (
            Code(
                "holdfast.agw.execution:UnixTools.path_of",
                "path = self.paths.get(command)",
                "path = self.paths.get(command) or shutil.which(command)",
            ),
        ),
        ("resp/test_plans_run.py::test_agx_33_a_command_that_is_not_allowed_stops_the_plan_before_it_begins",),
        ("AGX-33",),
    ),
    Mutant(
        "programs by an option",
        "a worker whose owner names no tools has one that runs what a plan says",
        (Swap("holdfast.agw.execution:TEXT_TOOLS", ("grep", "sort", "wc")),),
        ("resp/test_agw.py::test_without_a_list_of_tools_it_has_the_text_tools_that_are_there",),
    ),
    Mutant(
        "letters of options from the input",
        "a field of the input behind a hyphen is an option",
        (Code("holdfast.resp.plan:_task", "if not options:", "if False:"),),
        ("resp/test_plans_run.py::test_letters_of_options_in_front_of_a_field_are_refused_unless_the_plan_says_so",),
    ),
    Mutant(
        "value of the input unchecked",
        "what an input puts into an argument is not looked at",
        (Code("holdfast.resp.plan:UnixTask.arguments", "_check_argument(each,", "(lambda *_: None)(each,"),),
        ("resp/test_plans_run.py::test_agx_33_values_from_the_input_are_checked_and_fail_the_job_alone",),
        ("AGX-33",),
    ),
    Mutant(
        "process group left alive",
        "a task whose time is over is not told to end",
        (
            Code("holdfast.agw.processes:_terminate", "_signal(process, signal.SIGTERM)", "return"),
            Code("holdfast.agw.processes:_settle", "_signal(process, signal.SIGQUIT)", "return"),
        ),
        ("resp/test_plans_run.py::test_agx_31_a_timeout_ends_the_whole_process_group",),
        ("AGX-31",),
    ),
    Mutant(
        "plan that goes on after a failure",
        "the tasks behind one that failed are run",
        (Code("holdfast.agw.execution:execute", "if ran.exit_code != 0:", "if ran.exit_code > 255:"),),
        ("resp/test_plans_run.py::test_agx_30_a_task_that_fails_stops_the_rest",),
        ("AGX-30",),
    ),
    Mutant(
        "output without a cap",
        "whatever a tool writes is kept",
        (Code("holdfast.agw.processes:_OutputHead.add", "room = self._cap - len(self.data)", "room = 1 << 40"),),
        ("resp/test_plans_run.py::test_agx_34_output_over_the_cap_is_cut_with_a_flag",),
        ("AGX-34",),
    ),
    Mutant(
        "environment of the worker for tools",
        "a tool finds what is in the environment of its worker",
        (Code("holdfast.agw.processes:_environment", "return {", "return {**os.environ,"),),
        ("resp/test_plans_run.py::test_a_tool_sees_nothing_of_ours",),
    ),
    Mutant(
        "jobs kept by who left",
        "a drain that takes too long does not hand its jobs back",
        (Code("holdfast.agw.worker:AgwWorker._drain", '*(["FORCE"] if left else [])', "*[]"),),
        ("resp/test_agw.py::test_agx_35_a_drain_that_takes_too_long_hands_the_job_back",),
        ("AGX-35",),
    ),
    Mutant(
        "reconnect without a growing pause",
        "a worker whose gateway is away asks as often after an hour as after a second",
        (Code("holdfast.agw.worker:AgwWorker._serve", "pause = min(pause * 2, LAST_PAUSE)", "pass"),),
        ("resp/test_agw.py::test_agx_28_while_the_gateway_is_away_it_waits_longer_and_longer",),
        ("AGX-28",),
    ),
)

MUTANTS: Final = (*GATEWAY, *AGW)
