"""Planted bugs of agents: turns, tools, people, money, batches, sessions, compaction."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Code, Mutant, Words

RUNS: Final = (
    Mutant(
        "drawing for a picture",
        "a drawing with a script in it is stored as a picture",
        (Code("holdfast.agents.content:_problem", "media_type not in PICTURES", "not media_type"),),
        ("http/test_hostile_attachments.py::test_an_attachment_that_no_model_takes_is_refused",),
    ),
    Mutant(
        "message without an end",
        "an MCP server that never ends a line takes all memory",
        (Code("holdfast.agents.mcp.sessions:Lines._check", "if len(self._part) > self._most:", "if False:"),),
        ("agents/test_hostile_mcp.py::test_lines_are_cut_once_and_have_a_length",),
    ),
    Mutant(
        "message of millions of values",
        "an MCP server makes the event loop parse JSON for seconds",
        (Code("holdfast.agents.mcp.sessions:check_message", "and codec.is_wide(bytes(text))", "and False"),),
        ("agents/test_hostile_mcp.py::test_a_long_message_has_so_many_values",),
    ),
    Mutant(
        "packed answer of an MCP server",
        "a few bytes of an MCP server become gigabytes",
        (Code("holdfast.agents.mcp.sessions:bound_answer", '.lower() != "identity"', '.lower() == ""'),),
        ("agents/test_hostile_mcp.py::test_an_answer_over_http_has_a_length",),
    ),
    Mutant(
        "stale answer taken for a repeat",
        "an answer that another attempt has stored is recognised as one's own without its token",
        (
            Code(
                "holdfast.agents.runs.turn:_fence",
                "(turn.state, turn.epoch, turn.token) == stored",
                "turn.state == stored[0]",
            ),
        ),
        ("agents/test_transitions.py::test_an_answer_that_another_attempt_has_stored_is_no_repeat",),
        ("AP-36", "AP-37"),
    ),
    Mutant(
        "answer stored twice",
        "an answer that an earlier call has stored is stored and counted again",
        (
            Words(
                "end_turns",
                "and t.number = a.number and t.state <> 'completed'",
                "and t.number = a.number",
                on="postgres",
            ),
            Words("end_turns", "and t.state <> 'completed'", on="sqlite"),
        ),
        ("agents/test_transitions.py::test_an_answer_that_is_stored_again_is_counted_once",),
    ),
    Mutant(
        "answer bought again",
        "a turn whose answer is stored is asked again",
        (Words("begin_turn", "turn.state <> 'completed' and"),),
        ("agents/test_transitions_of_parts.py::test_a_verb_does_to_a_turn_what_the_table_says_or_nothing",),
    ),
    Mutant(
        "unknown calls not counted",
        "a call whose worker died is asked again as if it had never been made",
        (Words("begin_turn", "case when turn.state in ('calling', 'batched') then 1 else 0 end", "0"),),
        ("agents/test_waterfalls.py::test_a_killed_turn_has_a_dead_attempt_with_its_worker_and_an_unknown_purchase",),
    ),
    Mutant(
        "words of a late attempt",
        "what an attempt streams after it lost its run becomes part of it",
        (
            Words("add_deltas", "r.epoch = c.epoch and r.token = c.token and", on="sqlite"),
            Words(
                "add_deltas", "and r.epoch = value ->> :deltas.epoch and r.token = value ->> :deltas.token", on="sqlite"
            ),
            Words(
                "add_deltas",
                "on c.run = r.id and c.epoch = r.epoch and c.token = r.token",
                "on c.run = r.id",
                on="sqlite",
            ),
        ),
        ("agents/test_journal.py::test_a_late_attempt_says_nothing[sqlite]",),
    ),
    Mutant(
        "run taken that made progress",
        "a run that was found without progress is taken back although it has made some since",
        (
            Words("lapse", "and claimed_at < holdfast.now_us() - :timeout_us"),
            Words("lapse", "and r.progressed_at < holdfast.now_us() - :timeout_us", "and :timeout_us > 0"),
        ),
        ("agents/test_progress_of_runs.py::test_a_rescue_tests_claim_and_progress_where_it_takes_the_lease[sqlite]",),
        ("AP-37",),
    ),
    Mutant(
        "runs of a session that overlap",
        "a run begins while one before it in its session is under way",
        (Words("run_ahead", "and finalized_at is null", "and finalized_at < 0"),),
        ("agents/test_loop.py::test_runs_of_one_session_take_turns_in_accepted_order[sqlite]",),
        ("UA-34",),
    ),
    Mutant(
        "next run that nobody wakes",
        "the end of a run does not wake the one behind it",
        (Words("wake_next", "state, '') = 'waiting'", "state, '') = 'asleep'"),),
        ("agents/test_sessions.py::test_a_run_cancelled_while_it_waits_lets_the_next_one_go[sqlite]",),
    ),
    Mutant(
        "key that makes two runs",
        "a call with a key of a run that is there makes another",
        (Code("holdfast.agents.runs.create:create_run", "if new.key is not None and (other", "if False and (other"),),
        ("agents/test_conformance_sessions.py::test_ap_60_a_key_makes_two_calls_one_run[sqlite]",),
        ("AP-60",),
    ),
    Mutant(
        "session of another tenant",
        "a session is opened by its id whoever asks",
        (
            Code(
                "holdfast.agents.runs.create:open_session", "if row is None or row.tenant != tenant:", "if row is None:"
            ),
            Code(
                "holdfast.agents.runs.create:_session_of_id", "found is None or found.tenant != tenant", "found is None"
            ),
        ),
        ("agents/test_sessions.py::test_the_id_of_another_tenants_session_is_nobodys[sqlite]",),
    ),
    Mutant(
        "limit that is one too high",
        "a run takes one turn more than it may",
        (Code("holdfast.agents.money.limits:exceeded", "run.turns >= limits.turns", "run.turns > limits.turns"),),
        ("agents/test_limits.py::test_a_run_stops_at_its_limit",),
        ("AP-17",),
    ),
)

TOOLS: Final = (
    Mutant(
        "results in the order in which they came",
        "results of tools are not in the order of their calls",
        (Words("calls_of", "order by c.turn, c.ordinal", "order by c.turn, c.ordinal desc"),),
        ("agents/test_loop.py::test_calls_tools_in_parallel_and_answers_in_their_order[sqlite]",),
        ("AP-16",),
    ),
    Mutant(
        "call of an ended run that starts",
        "a run that ended leaves calls without a result",
        (Words("skip_calls", "where run = :run and state is null", "where run = :run and state = 'never'"),),
        (
            "agents/test_conformance_recovery.py::test_ap_41_a_run_that_ends_in_the_middle_of_its_tools_leaves_a_session_that_the_provider_takes",
        ),
        ("AP-41",),
    ),
    Mutant(
        "once-tool started twice",
        "a call that may be started once starts again after its worker died",
        (
            Code(
                "holdfast.agents.runs.decision:Decider._tool_call",
                'max_rescues=0 if tool.effect == "once" else settings.max_rescues',
                "max_rescues=settings.max_rescues",
            ),
        ),
        ("agents/test_people.py::test_a_once_call_of_unknown_outcome_waits_for_review[sqlite]",),
        ("UA-32",),
    ),
    Mutant(
        "call that nobody approved",
        "a call that a person must approve runs without being asked about",
        (
            Code(
                "holdfast.agents.runs.decision:Decider._inquiry",
                "elif tool.approve and self._approving(tool, row.id):",
                "elif False:",
            ),
        ),
        ("agents/test_people.py::test_a_call_below_the_threshold_runs_and_one_above_waits[sqlite]",),
    ),
)

PEOPLE: Final = (
    Mutant(
        "approval of other arguments",
        "what a person approves need not be what the person saw",
        (
            Code(
                "holdfast.agents.people.inquiries:_check",
                "wish.digest is not None and wish.digest != row.digest",
                "False",
            ),
        ),
        ("agents/test_people.py::test_what_was_seen_is_what_is_approved_and_once[sqlite]",),
    ),
    Mutant(
        "approval after its time",
        "an inquiry whose time is over is approved",
        (Words("decide_inquiry", "or expires_at > holdfast.now_us()", "or expires_at > 0"),),
        ("agents/test_deciding_too_late.py::test_an_expired_approval_is_not_approved_though_no_worker_has_noticed",),
    ),
    Mutant(
        "changed arguments lost",
        "a call runs with the arguments of the model although a person changed them",
        (
            Code(
                "holdfast.agents.people.inquiries:_follow_call",
                "edited = None if said.input is None else _json(said.input)",
                "edited = None",
            ),
        ),
        ("agents/test_people.py::test_changed_arguments_run_and_the_models_own_block_stays[sqlite]",),
    ),
    Mutant(
        "decision of another tenant",
        "whoever knows its id decides an inquiry of another tenant",
        (Code("holdfast.agents.people.inquiries:_sees", "wish.tenant in (None, row.tenant)", "True"),),
        ("agents/test_people.py::test_what_was_seen_is_what_is_approved_and_once[sqlite]",),
    ),
    Mutant(
        "approved call that waits on",
        "a cancelled run leaves its inquiries open",
        (Words("withdraw_inquiries", "where run = :run and state = 'open'", "where run = :run and state = 'never'"),),
        ("agents/test_people.py::test_a_cancelled_run_withdraws_what_it_asked[sqlite]",),
    ),
)

MONEY: Final = (
    Mutant(
        "reservations not counted",
        "calls at the same time spend the same money",
        (
            Code(
                "holdfast.agents.money.budgets:_first_over",
                "use.spent_nano + use.reserved_nano + nano",
                "use.spent_nano + nano",
            ),
        ),
        ("agents/test_default_budgets.py::test_runs_at_once_do_not_overspend_a_default[sqlite]",),
    ),
    Mutant(
        "call that is not counted itself",
        "a call that does not fit into its budget is made",
        (
            Code(
                "holdfast.agents.money.budgets:_first_over",
                "use.spent_nano + use.reserved_nano + nano",
                "use.spent_nano + use.reserved_nano",
            ),
        ),
        ("agents/test_budgets.py::test_a_run_ends_when_the_next_call_does_not_fit",),
    ),
    Mutant(
        "reservation kept after the answer",
        "what was reserved for a call stays reserved when it has its answer",
        (Words("settle", "reserved_nano = u.reserved_nano - s.nano,"),),
        ("agents/test_budgets.py::test_a_run_ends_when_the_next_call_does_not_fit",),
    ),
    Mutant(
        "dead worker's reservation",
        "what a worker reserved that died is reserved twice",
        (
            Code(
                "holdfast.agents.money.budgets:reserve",
                "await settle(tx, [(run, each, 0) for each in sorted({SUMMARY, turn})])",
            ),
        ),
        ("agents/test_budgets.py::test_what_a_dead_worker_reserved_is_reserved_once",),
    ),
    Mutant(
        "money of another tenant",
        "a run spends from the budgets of every tenant",
        (Words("budgets_of", "(b.scope = 'tenant' and b.subject = :tenant)", "b.scope = 'tenant'"),),
        ("agents/test_budgets.py::test_a_run_ends_when_the_next_call_does_not_fit",),
    ),
)

BATCHES: Final = (
    Mutant(
        "batch result applied twice",
        "a result that comes again is applied again",
        (
            Words("apply_requests", "and batch_request.state in ('waiting', 'sent')"),
            Words("find_requests", "and q.state in ('waiting', 'sent')"),
        ),
        ("agents/test_transitions_of_parts.py::test_a_verb_does_to_a_request_what_the_table_says_or_nothing",),
        ("AP-40",),
    ),
    Mutant(
        "answer to a run that waits no more",
        "an answer from a batch is given to a run that is at another turn",
        (Code("holdfast.agents.batches.results:_RequestResult.wanted", "return waits and", "return True or"),),
        (
            "agents/test_batches_on_bad_days.py::test_an_answer_that_comes_while_a_person_is_asked_about_the_time_is_accounted[sqlite]",
        ),
    ),
    Mutant(
        "second batch after a lost answer",
        "a submit whose answer was lost is made again without a look",
        (
            Code(
                "holdfast.agents.batches.job:_BatchJob._search",
                "found = await model.list_batches(row.intent_at - _SKEW_US)",
                "found = []",
            ),
        ),
        ("agents/test_batches.py::test_ap_40_a_worker_that_dies_around_the_submit_leaves_no_second_batch",),
        ("AP-40",),
    ),
    Mutant(
        "one batch of the provider taken twice",
        "of two that look for theirs, both take one that has no results",
        (
            Words("take_batch", "and not exists (select 1 from holdfast.batch o where o.provider_id = :provider_id)"),
            Words("offer_batch", "and not exists (select 1 from holdfast.batch o where o.provider_id = :provider_id)"),
        ),
        ("agents/test_batches.py::test_a_batch_without_results_is_taken_by_one_of_two_that_look_for_theirs",),
    ),
    Mutant(
        "batch without results taken too soon",
        "a batch that has no results is taken, though one that still runs may have the answers",
        (Code("holdfast.agents.batches.job:_BatchJob._search", "if empty and not waiting:", "if empty:"),),
        ("agents/test_batches.py::test_a_batch_without_results_is_not_taken_while_another_may_be_ours",),
    ),
)

HISTORY: Final = (
    Mutant(
        "pair split by a compaction",
        "a call goes into the summary and its result stays, as each stands for itself",
        (
            Code(
                "holdfast.agents.compaction.partition:_belongs",
                "return bool(uses(before.blocks)) and _has_results(message)",
                "return False",
            ),
            Code("holdfast.agents.compaction.partition:_category", "if fits or unit.is_open:", "if fits:"),
        ),
        ("agents/test_compaction_property.py::test_whatever_is_taken_out_pairs_stay_whole",),
        ("AP-53",),
    ),
    Mutant(
        "marked message compacted",
        "a message that is to be preserved goes into a summary",
        (
            Code(
                "holdfast.agents.compaction.partition:_category",
                "if any(message.preserved for message in unit.messages):",
                "if False:",
            ),
        ),
        ("agents/test_compaction.py::test_a_marked_message_stays_until_the_mark_is_taken_away[sqlite]",),
        ("AP-52",),
    ),
    Mutant(
        "thinking of another request sent",
        "thinking is sent to a model or under tools for which it was not made",
        (
            Code(
                "holdfast.agents.runs.history:_is_stale",
                'row.fingerprint not in ("", fingerprint)',
                "False",
            ),
        ),
        ("agents/test_storing.py::test_signed_thinking_goes_back_as_it_came_until_the_agent_changes[sqlite]",),
    ),
    Mutant(
        "neighbours unmerged",
        "two messages of one role follow each other",
        (Code("holdfast.agents.runs.history:merged", "if joined and joined[-1].role == message.role:", "if False:"),),
        ("agents/test_conformance_loop.py::test_ap_24_neighbours_of_one_role_are_sent_as_one_message[sqlite]",),
        ("AP-24",),
    ),
    Mutant(
        "refused exchange sent again",
        "what a provider refused stays in the history",
        (Words("retire_messages", "set live = 0", "set live = 1"),),
        ("agents/test_refused_content.py::test_a_refused_attachment_spoils_its_run_and_not_the_session[sqlite]",),
    ),
    Mutant(
        "refusal sent again",
        "an exchange that a model refused is sent again with the next message",
        (Words("retire", "set live = 0", "set live = 1"),),
        ("agents/test_bad_days.py::test_a_refused_exchange_is_kept_and_never_sent_again[sqlite]",),
    ),
    Mutant(
        "event skipped on resuming",
        "a reader that comes back misses the event behind the last that it saw",
        (Words("events_after", "seq > c.after", "seq > c.after + 1"),),
        ("agents/test_loop.py::test_streams_from_any_point[sqlite]",),
    ),
    Mutant(
        "live run pruned",
        "a session with a run under way is deleted",
        (
            Words(
                "delete_session",
                "and not exists ( select 1 from holdfast.run r where r.session = :id and r.finalized_at is null)",
            ),
        ),
        ("agents/test_deleted_sessions.py::test_a_session_with_an_open_run_is_not_deleted",),
    ),
)

MUTANTS: Final = (*RUNS, *TOOLS, *PEOPLE, *MONEY, *BATCHES, *HISTORY)
