"""Planted bugs of the kernel: fences, leases, claims, lanes, keys, waiting, cancelling, removing, duties, schedules.

A lock that is left out shows only beside another session: `tests/interleaving/mutants.py` has those.
"""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Code, Mutant, Words

REFUSED: Final = "conformance/test_fencing.py::test_whoever_else_writes_is_refused_and_changes_nothing"
SQLITE_LAPSED: Final = "and l.lease_until > holdfast.now_us() - max(:leap_us, 0)"
LAPSED: Final = "and k.lease_until > holdfast.now_us() - greatest(cast(:leap_us as bigint), 0)"

FENCES: Final = (
    Mutant(
        "renewal under any token",
        "a worker renews the lease that its successor has",
        (
            Words("renew", "k.token = h.token", "k.token > 0", on="postgres"),
            Words("renew", "l.token = h.token", "l.token > 0", on="sqlite"),
        ),
        (f"{REFUSED}[sqlite-renew]", f"{REFUSED}[postgres-renew]"),
    ),
    Mutant(
        "renewal of another worker's lease",
        "a worker renews a lease by its number and token alone",
        (
            Words("renew", "k.worker + 0 = h.worker", "true", on="postgres"),
            Words("renew", "l.worker = h.worker", "true", on="sqlite"),
        ),
        (f"{REFUSED}[sqlite-renew]", f"{REFUSED}[postgres-renew]"),
    ),
    Mutant(
        "renewal by a broker under any token",
        "a broker that lost its lease renews that of its successor",
        (Words("renew_each", "and k.token = h.token", "and k.token > 0"),),
        ("conformance/test_brokers.py::test_a_broker_renews_under_its_own_token_alone",),
    ),
    Mutant(
        "renewal by a broker that ignores the epoch",
        "a token of the epoch before renews a lease",
        (Words("renew_each", "and k.epoch = h.epoch", "and k.epoch > 0"),),
        ("conformance/test_brokers.py::test_a_broker_renews_under_its_own_token_alone",),
    ),
    Mutant(
        "renewal of a lease that ran out",
        "a lease that ran out is revived",
        (Words("renew", LAPSED, on="postgres"), Words("renew", SQLITE_LAPSED, on="sqlite")),
        ("conformance/test_leases.py::test_a_lease_that_has_run_out_is_lost",),
    ),
    Mutant(
        "renewal by a broker of a lease that ran out",
        "a lease that ran out is revived by its broker",
        (Words("renew_each", LAPSED),),
        ("conformance/test_brokers.py::test_each_lease_is_renewed_for_a_time_of_its_own",),
    ),
    Mutant(
        "no ceiling",
        "an attempt holds its lease for ever",
        (Words("renew", "l.claimed_at + :ceiling_us", "holdfast.now_us() + :ceiling_us"),),
        ("conformance/test_leases.py::test_no_attempt_holds_its_lease_beyond_the_ceiling",),
    ),
    Mutant(
        "renewal that shortens",
        "a renewal for a shorter time ends the lease earlier",
        (Words("renew", "case when cast(:leap_us as bigint) < 0 then 0 else l.lease_until end", "0"),),
        ("conformance/test_leases.py::test_a_renewal_never_shortens",),
    ),
    Mutant(
        "final ending under any token",
        "a worker that lost its job ends it for good",
        (
            Words("finish", "and token = (cast(:endings.token", "and 0 < (cast(:endings.token", on="postgres"),
            Words("finish", "l.token = value ->> :endings.token", "0 < value ->> :endings.token", on="sqlite"),
        ),
        (f"{REFUSED}[sqlite-done]", f"{REFUSED}[postgres-done]"),
        ("AP-36", "UA-16"),
    ),
    Mutant(
        "final ending by any worker",
        "an ending is accepted from a worker that does not have the job",
        (
            Words("finish", "and worker + 0 = (cast(:endings.worker", "and 0 < (cast(:endings.worker", on="postgres"),
            Words("finish", "l.worker = value ->> :endings.worker", "0 < value ->> :endings.worker", on="sqlite"),
        ),
        (f"{REFUSED}[sqlite-done]", f"{REFUSED}[postgres-done]"),
    ),
    Mutant(
        "final ending in any epoch",
        "a token that a lost server gave out ends a job",
        (
            Words("finish", "and epoch = (cast(:endings.epoch", "and 0 < (cast(:endings.epoch", on="postgres"),
            Words("finish", "l.epoch = value ->> :endings.epoch", "0 < value ->> :endings.epoch", on="sqlite"),
        ),
        (f"{REFUSED}[sqlite-fail]", f"{REFUSED}[postgres-fail]"),
    ),
    Mutant(
        "retry under any token",
        "a worker that lost its job puts it back",
        (
            Words("complete", "and token = (cast(:endings.token", "and 0 < (cast(:endings.token", on="postgres"),
            Words("complete", "l.token = value ->> :endings.token", "0 < value ->> :endings.token", on="sqlite"),
        ),
        (f"{REFUSED}[sqlite-retry]", f"{REFUSED}[postgres-snooze]"),
    ),
    Mutant(
        "park under any token",
        "a worker that lost its job lets it wait",
        (Words("park", "token = :token", "token < 1 + :token + 9"),),
        (f"{REFUSED}[sqlite-park]", f"{REFUSED}[postgres-park]"),
    ),
    Mutant(
        "step under any token",
        "a worker that lost its job stores a step of it",
        (Words("store_step", "token = :token", "token < 1 + :token + 9"),),
        (f"{REFUSED}[sqlite-step]",),
    ),
    Mutant(
        "progress in any epoch",
        "an attempt of the epoch before reports progress",
        (Words("report_progress", "epoch = :epoch", "epoch < 1 + :epoch"),),
        (f"{REFUSED}[sqlite-progress]",),
    ),
    Mutant(
        "write of any worker",
        "what only the holder may write is accepted from another worker",
        (Words("hold", "worker + 0 = :worker", "worker < 1 + :worker"),),
        (f"{REFUSED}[sqlite-children]",),
    ),
    Mutant(
        "token not raised",
        "two attempts of a job have one token",
        (
            Words("claim", "p.token + 1", "p.token", on="sqlite"),
            Words("claim_one", "p.token + 1", "p.token", on="sqlite"),
            Words("claim", "token + 1 as token", "token", on="postgres"),
            Words("claim_one", "token + 1 as token", "token", on="postgres"),
        ),
        ("conformance/test_claim.py::test_every_claim_has_a_higher_token",),
    ),
    Mutant(
        "token without an epoch",
        "a server that lost commits gives out tokens again",
        (
            Words("claim", "(select c.epoch from holdfast.cluster c)", "1"),
            Words("claim_one", "(select c.epoch from holdfast.cluster c)", "1"),
        ),
        ("conformance/test_claim.py::test_a_new_epoch_outranks_every_token_before_it",),
    ),
    Mutant(
        "epoch that stays",
        "another server behind the same address goes on counting where the other had been",
        (Words("adopt_identity", "else epoch + 1 end", "else epoch end"),),
        ("conformance/test_epoch.py::test_another_identity_begins_another_epoch",),
    ),
)

LOSSES: Final = (
    Mutant(
        "rescue of a renewed lease",
        "a sweep takes back what was renewed since it was found",
        (
            Words("expire", "(lease_until <= holdfast.now_us() or", "(true or"),
            Words("expire", "(l.lease_until <= holdfast.now_us() or", "(true or", on="sqlite"),
        ),
        ("conformance/test_rescue.py::test_what_changed_after_it_was_found_is_left_alone",),
    ),
    Mutant(
        "one rescue too many",
        "a job that kills its workers gets one worker more than it may",
        (
            Words("expire", "g.rescues >= j.max_rescues", "g.rescues > j.max_rescues", on="postgres"),
            Words("expire", "l.rescues >= j.max_rescues", "l.rescues > j.max_rescues", on="sqlite"),
        ),
        ("conformance/test_rescue.py::test_at_the_limit_the_job_fails",),
        ("AP-38", "UA-20"),
    ),
    Mutant(
        "rescue that is not counted",
        "a job that kills its workers does so for ever",
        (Words("expire", "rescues + 1", "rescues"),),
        ("conformance/test_rescue.py::test_at_the_limit_the_job_fails",),
    ),
    Mutant(
        "orphans requeued against their queue's rule",
        "a queue that says on_orphan=fail has its orphans run again",
        (Words("expire", "= 'fail' then 'orphan'", "= 'never' then 'orphan'"),),
        ("conformance/test_rescue.py::test_a_queue_may_fail_its_orphans",),
    ),
    Mutant(
        "rescues without a growing pause",
        "a job that kills its workers comes back as soon after the tenth as after the second",
        (
            Words("expire", "case when l.rescues > 12 then 12 else l.rescues - 1 end", "0", on="sqlite"),
            Words("expire", "case when rescues > 12 then 12 else rescues - 1 end", "0", on="postgres"),
        ),
        ("conformance/test_rescue.py::test_later_losses_wait_twice_as_long_each_time_give_or_take_a_quarter",),
    ),
    Mutant(
        "unbounded sweep",
        "one transaction rescues everything that was lost",
        (Words("find_lapsed", "order by seq limit :limit", "order by seq limit :limit + 100"),),
        ("conformance/test_rescue.py::test_a_sweep_rescues_no_more_than_its_limit_oldest_first",),
    ),
    Mutant(
        "orphan revived after its cancel",
        "a job that was asked to stop runs again because its worker died",
        (
            Words("expire", "when g.cancel_requested_at is not null then 'cancelled'", on="postgres"),
            Words("expire", "when l.cancel_requested_at is not null then 'cancelled'", on="sqlite"),
        ),
        ("conformance/test_rescue.py::test_an_orphan_whose_cancel_was_requested_is_cancelled",),
        ("UA-23",),
    ),
    Mutant(
        "verdict on a worker that has beaten since",
        "a worker whose presence was missed is given up although it has beaten",
        (
            Words(
                "lose_workers",
                "(seq, heartbeat_at) in ( select m.seq, m.heartbeat_at from",
                "seq in (select m.seq from",
            ),
        ),
        ("conformance/test_workers.py::test_whoever_has_beaten_since_it_was_missed_is_not_given_up",),
    ),
    Mutant(
        "heartbeat that ignores a restored store",
        "a worker beats on as the one that an older snapshot knows by its number",
        (Words("heartbeat", "and (heartbeat_at >= :last_beat or holdfast.now_us() < :last_beat)"),),
        ("conformance/test_workers.py::test_a_store_that_does_not_know_the_last_heartbeat_gives_its_worker_up",),
    ),
    Mutant(
        "heartbeat for another incarnation",
        "a worker keeps its successor of the same number alive",
        (Words("heartbeat", "and incarnation = coalesce(cast(:incarnation as text), incarnation)"),),
        ("conformance/test_workers.py::test_a_heartbeat_is_of_one_incarnation",),
    ),
    Mutant(
        "id of a live worker taken over",
        "a worker that beat meanwhile loses its id to another",
        (Words("replace_worker", "and (:gone = 1 or heartbeat_at + ttl_us <= holdfast.now_us())"),),
        ("conformance/test_workers.py::test_a_namesake_that_has_beaten_since_it_was_found_silent_keeps_its_id",),
    ),
)

CLAIMS: Final = (
    Mutant(
        "claim from a paused queue",
        "a pause is not looked at",
        (
            Words("claim", "where q.paused_at is not null", "where q.paused_at < 0", on="sqlite"),
            Words("claim", "where p.paused_at is not null", "where p.paused_at < 0", on="postgres"),
            Words("claim_one", "where q.paused_at is not null", "where q.paused_at < 0"),
        ),
        ("conformance/test_queues.py::test_nothing_of_a_paused_queue_is_claimed",),
    ),
    Mutant(
        "claim from a paused queue in lanes",
        "a pause does not hold for jobs of lanes",
        (Words("candidates", "where q.paused_at is not null", "where q.paused_at < 0"),),
        ("conformance/test_queues.py::test_a_pause_holds_for_jobs_in_lanes_too",),
    ),
    Mutant(
        "row in two places",
        "a claim leaves the job where others can claim it",
        (
            Words(
                "claim_one",
                "delete from holdfast.ready where (",
                "delete from holdfast.ready where false and (",
                on="sqlite",
            ),
        ),
        ("conformance/test_claim.py::test_a_claim_leases_the_job_to_its_worker[sqlite]",),
    ),
    Mutant(
        "job of another tenant shared out",
        "who asks for the jobs of one tenant gets those of another",
        (
            Words(
                "offers",
                "(w.tenant is null or (select j.tenant from holdfast.job j where j.seq = r.seq) = w.tenant)",
                "true",
                on="sqlite",
            ),
            Words(
                "offers",
                "(w.tenant is null or (select j.tenant from holdfast.job j where j.seq = k.seq) = w.tenant)",
                "true",
                on="postgres",
            ),
            Words(
                "offers",
                "(quota.tenant is null or (select j.tenant from holdfast.job j where j.seq = k.seq) = quota.tenant)",
                "true",
                on="postgres",
            ),
        ),
        ("conformance/test_brokers.py::test_who_asks_for_a_tenant_gets_no_job_of_another",),
    ),
    Mutant(
        "job given to a holder that drains",
        "a holder that was told to drain is given one more job",
        (Words("take_for", "and w.status = 'active'"),),
        ("conformance/test_brokers.py::test_a_holder_that_drains_or_was_given_up_takes_nothing",),
    ),
    Mutant(
        "last place of a holder given twice",
        "one statement gives out places by a count that is older than its lock",
        (
            Words(
                "claim_each",
                "h.version = (select s.xmin from holdfast.worker s where s.seq = h.seq)",
                "true",
                "postgres",
            ),
        ),
        ("conformance/test_brokers.py::test_two_servers_do_not_both_give_out_the_last_place",),
    ),
    Mutant(
        "one for each although it drains",
        "who drains gets one more job among many that ask for the same",
        (
            Words("claim_each", "w.status = 'active' and", "", "postgres"),
            Words("claim_each", "w.status = 'active' and", "", "sqlite"),
        ),
        ("conformance/test_brokers.py::test_who_has_no_place_or_is_not_alive_gets_none_of_them",),
    ),
    Mutant(
        "one for each of an earlier owner",
        "who names an owner's number gets its jobs, whichever registration it is",
        (
            Words("claim_each", "h.seq = a.worker and h.incarnation = a.incarnation", "h.seq = a.worker", "postgres"),
            Words("claim_each", " and w.incarnation = a.value ->> :askers.incarnation", "", "sqlite"),
        ),
        ("conformance/test_brokers.py::test_who_has_no_place_or_is_not_alive_gets_none_of_them",),
    ),
    Mutant(
        "lane passed by one for each",
        "jobs of lanes are given out by a statement that does not ask their lanes",
        (
            Words("claim_each", " and not exists (select 1 from pick l where l.lane is not null)", "", "postgres"),
            Words("claim_each", " where o.lane is null", "", "postgres"),
            Words("claim_each", " and not p.laned", "", "sqlite"),
        ),
        ("conformance/test_brokers.py::test_jobs_of_lanes_are_left_to_who_asks_step_by_step",),
    ),
    Mutant(
        "lease moved to a holder that left",
        "leases move to a holder that is not active any more",
        (Words("transfer_leases", "and w.status = 'active'"),),
        ("conformance/test_brokers.py::test_nothing_moves_to_a_holder_that_is_not_active",),
    ),
)

LANES: Final = (
    Mutant(
        "one too many in a lane",
        "a lane of one runs two",
        (
            Code(
                "holdfast.kernel.lanes:_Gate.admits",
                "self._running >= lane.concurrency",
                "self._running > lane.concurrency",
            ),
        ),
        ("conformance/test_lanes.py::test_no_more_run_at_once_than_the_lane_allows",),
    ),
    Mutant(
        "overtaking in a lane",
        "a newcomer goes before those who are blocked",
        (
            Code(
                "holdfast.kernel.lanes:_Gate.admits", "lane.first is not None and lane.first < candidate.place", "False"
            ),
        ),
        ("conformance/test_lanes.py::test_a_newcomer_waits_behind_who_is_blocked_when_the_rate_has_room_again",),
    ),
    Mutant(
        "one start too many at a rate",
        "a lane starts one more than its rate allows",
        (Code("holdfast.kernel.lanes:_Gate.admits", "early > lane.now", "early > lane.now + lane.interval_us"),),
        ("conformance/test_lanes.py::test_starts_are_spaced_by_the_rate",),
    ),
    Mutant(
        "lane that nobody opens",
        "who ends a job of a lane lets nobody through",
        (
            Code(
                "holdfast.kernel.families:settle",
                "await free_lanes(tx, {job.lane for job in moved if job.lane is not None})",
            ),
        ),
        ("conformance/test_lanes.py::test_whoever_ends_lets_the_next_through",),
    ),
    Mutant(
        "lane that does not count what runs",
        "a claim forgets what already runs in its lane",
        (Words("lane_states", "(select count(*) from holdfast.lease l where l.lane = lane.name)", "0"),),
        ("conformance/test_lanes.py::test_whoever_ends_lets_the_next_through",),
    ),
)

KEYS: Final = (
    Mutant(
        "unique key let go too early",
        "a job that nobody has started loses its key",
        (Words("enqueue", "when 'pending' then n.token > 0", "when 'pending' then n.token >= 0"),),
        ("conformance/test_unique.py::test_a_second_one_is_the_first",),
    ),
    Mutant(
        "unique key of a running job let go",
        "a key that lives as long as its job is free once the job runs",
        (Words("enqueue", "when 'live' then n.finished_at is not null", "when 'live' then n.token > 0"),),
        ("conformance/test_unique.py::test_live_ends_with_the_job",),
    ),
    Mutant(
        "key taken over",
        "a repeated key names the newest job",
        (Words("take_key", "set key = excluded.key", "set job = excluded.job"),),
        ("conformance/test_enqueue.py::test_same_key_and_payload_is_the_same_job",),
        ("AP-60",),
    ),
    Mutant(
        "replacing what runs",
        "a newer call replaces what a worker has begun",
        (
            Words("replace", "and k.token = 0", on="postgres"),
            Words("replace", "and token = 0"),
            Code("holdfast.kernel.enqueue:enqueue_unique", "holder.token == 0 and"),
        ),
        ("conformance/test_transitions.py::test_what_was_claimed_once_is_not_replaced",),
    ),
)

WAITING: Final = (
    Mutant(
        "park beside a signal",
        "a job waits although its signal is there",
        (
            Words("park", "exists (select 1 from holdfast.signal s where s.channel = :channel)", "false", on="sqlite"),
            Words(
                "park", "exists (select 1 from holdfast.signal s where s.channel = :channel)", "false", on="postgres"
            ),
        ),
        ("conformance/test_waiting.py::test_a_signal_that_came_first_is_not_missed",),
    ),
    Mutant(
        "signal delivered twice",
        "a signal that is sent again after it was taken comes again",
        (Words("send_signal", "where not exists (select 1 from holdfast.step t where t.signal = :id)", "where true"),),
        ("conformance/test_signals_sent_again.py::test_a_signal_sent_again_after_it_was_taken_is_not_delivered_twice",),
    ),
    Mutant(
        "park after a cancel",
        "a job that was asked to stop waits instead",
        (
            Words("park", "and cancel_requested_at is null"),
            Words("park", "and l.cancel_requested_at is null", on="sqlite"),
        ),
        ("conformance/test_waiting.py::test_parking_is_refused_once_cancel_was_requested",),
    ),
    Mutant(
        "woken early",
        "a job is made due before its time",
        (Words("wake", "k.due_at <= holdfast.now_us()", "k.due_at <= holdfast.now_us() + 60000000"),),
        ("conformance/test_waiting.py::test_due_jobs_are_woken_in_order_and_bounded",),
    ),
    Mutant(
        "step overwritten",
        "a step that is stored a second time has another result",
        (Words("store_step", "do nothing", "do update set result = excluded.result"),),
        ("conformance/test_waiting.py::test_a_step_is_stored_once",),
    ),
    Mutant(
        "parent woken from another wait",
        "the end of its children wakes a parent that waits for a signal",
        (Words("wake_parent", "channel is null", "true"),),
        ("conformance/test_families.py::test_a_parent_that_waits_for_a_signal_is_not_woken_by_its_children",),
    ),
    Mutant(
        "children that end together counted once",
        "a parent waits for a child that has ended",
        (Code("holdfast.kernel.families:settle", "ended=count", "ended=1"),),
        ("conformance/test_families.py::test_children_that_end_together_are_counted_together",),
        ("AP-15",),
    ),
    Mutant(
        "parent without a hint",
        "nobody is told that a parent can go on",
        (Code("holdfast.kernel.families:settle", "await hint(tx, pending)"),),
        ("conformance/test_hints.py::test_a_parent_that_its_last_child_wakes_is_hinted",),
    ),
    Mutant(
        "overdue under the old token",
        "what an earlier attempt writes after the deadline counts",
        (
            Words("overdue", "t.token + 1", "t.token", on="sqlite"),
            Words("overdue", "token + 1", "token", on="postgres"),
        ),
        ("conformance/test_waiting.py::test_overdue_jobs_fail_bounded_and_under_a_new_token",),
    ),
)

ENDINGS: Final = (
    Mutant(
        "one attempt too many",
        "a job fails one attempt after its last",
        (
            Code(
                "holdfast.kernel.complete:ending",
                "lease.attempts + 1 >= lease.max_attempts",
                "lease.attempts >= lease.max_attempts",
            ),
        ),
        ("conformance/test_complete.py::test_the_last_attempt_that_fails_ends_the_job",),
    ),
    Mutant(
        "snooze that costs an attempt",
        "a job that waits for its turn uses up its attempts",
        (
            Code(
                "holdfast.kernel.complete:ending",
                "delay_us=outcome.delay_us, counted=0",
                "delay_us=outcome.delay_us, counted=1",
            ),
        ),
        ("conformance/test_complete.py::test_a_snooze_costs_nothing",),
        ("AP-28",),
    ),
    Mutant(
        "result that beats a cancel",
        "a job whose cancel was accepted ends as succeeded",
        (
            Words(
                "finish",
                "case when l.cancel_requested_at is null then value ->> :endings.state else 'cancelled' end",
                "value ->> :endings.state",
                on="sqlite",
            ),
            Words("finish", "case when g.cancel_requested_at is null then", "case when true then", on="postgres"),
        ),
        ("conformance/test_complete.py::test_a_cancel_that_was_accepted_meanwhile_wins",),
        ("UA-22",),
    ),
    Mutant(
        "cancel under the old token",
        "an earlier attempt writes after its job was cancelled",
        (
            Words("cancel", "t.token + 1", "t.token", on="sqlite"),
            Words("cancel", "token + 1", "token", on="postgres"),
        ),
        ("conformance/test_cancel.py::test_a_job_that_does_not_run_ends_at_once_under_a_new_token",),
    ),
    Mutant(
        "cancel that stops at an ended child",
        "the children of a child that had ended run on",
        (
            Words(
                "pass_cancellation",
                "where j.parent = any(cast(:parents as bigint[]))",
                "where false and j.parent = any(cast(:parents as bigint[]))",
            ),
        ),
        ("conformance/test_cancelled_families.py::test_a_cancel_reaches_the_children_of_a_child_that_had_ended",),
    ),
    Mutant(
        "repeat of any outcome",
        "an ending with another outcome is taken for a repeat",
        (
            Code(
                "holdfast.kernel.complete:repeated",
                "if (e.seq, e.epoch, e.token, e.outcome) in recorded",
                "if any((e.seq, e.epoch, e.token) == each[:3] for each in recorded)",
            ),
        ),
        ("conformance/test_complete.py::test_another_outcome_under_the_same_token_is_no_repeat",),
    ),
)

SCRIPT: Final = "interleaving/test_scripts.py::test_a_script_holds"
FAMILIES: Final = (
    Mutant(
        "sweep without the lock of a parent",
        "a sweep ends a child while its parent begins to wait: the parent waits for ever",
        (
            Code(
                "holdfast.kernel.families:try_lock_jobs",
                "seqs=lock_order(family))}",
                "seqs=sorted(job.seq for job in family))} | {job.parent for job in family}",
            ),
        ),
        (f"{SCRIPT}[a_parent_hears_of_a_child_that_the_sweep_ends]",),
    ),
    Mutant(
        "parents locked for final endings alone",
        "a child that was asked to stop and would be tried again ends unheard",
        (
            Code(
                "holdfast.kernel.complete:complete_and_settle",
                "if parents:",
                "if parents and all(e.state in TERMINAL for e in endings):",
            ),
        ),
        (f"{SCRIPT}[a_parent_hears_of_a_child_that_is_to_be_tried_again]",),
    ),
    Mutant(
        "layer that holds up nobody",
        "a sweep asks no layer whether its rows are free, and waits for who holds them",
        (
            Code(
                "holdfast.kernel.families:try_lock_jobs",
                "for layer in tx.layers if locked else ():",
                "for layer in ():",
            ),
        ),
        ("interleaving/test_liveness.py::test_nobody_waits_for_a_row_that_somebody_else_holds",),
    ),
)

REMOVING: Final = (
    Mutant(
        "child removed before its parent",
        "a parent that waits cannot read how its child ended",
        (
            Words(
                "find_prunable",
                "(select p.seq from holdfast.job p where p.seq = ("
                " select j.parent from holdfast.job j where j.seq = e.seq)) is null",
                "true",
            ),
        ),
        ("conformance/test_retention.py::test_a_child_goes_after_its_parent",),
    ),
    Mutant(
        "live family removed",
        "a parent goes while its children have not ended",
        (
            Words(
                "find_prunable",
                "coalesce((select f.open_children from holdfast.family f where f.job = e.seq), 0) = 0 and",
            ),
            Words(
                "prune", "and coalesce((select f.open_children from holdfast.family f where f.job = job.seq), 0) = 0"
            ),
        ),
        ("conformance/test_retention.py::test_a_parent_stays_while_a_child_of_it_lives",),
    ),
    Mutant(
        "live job removed",
        "a job that has not ended is removed when it is asked for",
        (Words("prune", "and (select e.seq from holdfast.ended e where e.seq = job.seq) is not null"),),
        ("conformance/test_retention.py::test_what_has_not_ended_is_not_removed_though_it_was_named",),
    ),
    Mutant(
        "key forgotten with its job",
        "a key that is sent again after its job was removed makes another",
        (Words("release_keys", "and freed_at is null", "and false"),),
        ("conformance/test_duties.py::test_a_key_outlives_its_job_by_a_week_however_early_that_was_removed",),
    ),
    Mutant(
        "holder of a duty that acts on",
        "a holder that was frozen past its term removes what it likes",
        (Words("hold_duty", "and held_until > holdfast.now_us()"),),
        ("conformance/test_duties.py::test_a_holder_that_was_frozen_past_its_term_does_no_harm",),
        ("AP-44",),
    ),
    Mutant(
        "clean-up without a look at its term",
        "a clean-up does not ask whether it still has the duty",
        (Code("holdfast.kernel.duties:clean_up", "await hold(tx, term, worker)"),),
        ("conformance/test_duties.py::test_a_holder_that_was_frozen_past_its_term_does_no_harm",),
    ),
    Mutant(
        "term that does not rise",
        "two holders of a duty have one term",
        (Words("acquire_duty", "duty.term + 1", "duty.term"),),
        ("conformance/test_duties.py::test_terms_only_rise",),
    ),
    Mutant(
        "duty renewed after its term",
        "a holder that came too late keeps a duty that is free",
        (Words("renew_duty", "and held_until > holdfast.now_us()"),),
        ("conformance/test_duties.py::test_a_term_that_ran_out_is_taken_over_and_cannot_be_renewed",),
    ),
    Mutant(
        "schedule advanced by two",
        "two who saw the same tick both fire it",
        (Words("advance_schedule", "and next_at = :seen and", "and :seen > 0 and"),),
        ("conformance/test_schedules.py::test_two_who_saw_the_same_tick_fire_it_once",),
    ),
    Mutant(
        "paused schedule that fires",
        "a pause of a schedule is not looked at",
        (Words("due_schedules", "paused_at is null", "true"), Words("advance_schedule", "and paused_at is null")),
        ("conformance/test_schedules.py::test_a_paused_schedule_fires_nothing_and_catches_nothing_up",),
    ),
)

SHORT: Final = (
    Mutant(
        "loop that waits for the writer",
        "a short write on SQLite keeps the event loop waiting for the connection",
        (
            Code(
                "holdfast.kernel.drivers.sqlite:Writer.commit_here",
                "self._using.acquire(blocking=False)",
                "self._using.acquire()",
            ),
        ),
        ("conformance/test_short_writes.py::test_the_loop_waits_for_nobody_who_uses_the_connection",),
    ),
    Mutant(
        "short write out of turn",
        "a short write on SQLite does not ask whether another process has its turn",
        (
            Code(
                "holdfast.kernel.drivers.sqlite_processes:WriterQueue.turn_at_once",
                "is_ours = is_next and _acquire(self._write, 0)",
                "is_ours = True",
            ),
        ),
        ("conformance/test_short_writes.py::test_the_loop_does_not_wait_for_another_process_that_writes",),
    ),
    Mutant(
        "loop that a slow disk holds up",
        "short writes stay on the event loop after one that took long",
        (Code("holdfast.kernel.drivers.sqlite:SqliteDatabase._commit_moment", "begun >= self._spared_until and"),),
        ("conformance/test_short_writes.py::test_after_a_slow_commit_the_loop_is_spared",),
    ),
    Mutant(
        "statement planned at each call",
        "SQLite plans a statement again whenever it gets a value",
        (
            Code(
                "holdfast.kernel.drivers.sqlite_file:SqliteFile.__init__",
                "self.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)",
                "pass",
            ),
        ),
        ("conformance/test_short_writes.py::test_a_statement_is_planned_once_whatever_its_values",),
    ),
)

MUTANTS: Final = (*FENCES, *LOSSES, *CLAIMS, *LANES, *KEYS, *WAITING, *ENDINGS, *FAMILIES, *REMOVING, *SHORT)
