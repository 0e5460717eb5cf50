"""The lives of runs, turns, tool calls, batches, their requests, compactions and inquiries, each as one table.

The values of the enums are what the store holds; they never change. A new state, or a new way between two, begins here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from holdfast.kernel.states import Life, Move, moves


class RunState(StrEnum):
    PENDING = "pending"  # a worker may take it, or has taken it and not asked yet
    BATCH_SUBMITTING = "batch_submitting"  # its request waits for a batch to be submitted
    BATCH_PENDING = "batch_pending"  # the provider has its batch
    BATCH_PROCESSING = "batch_processing"  # the provider works on its batch
    STREAMING = "streaming"  # a worker asks the model
    PENDING_TOOLS = "pending_tools"  # it waits for its tool calls
    AWAITING_INPUT = "awaiting_input"  # it waits for a person
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


class RunVerb(StrEnum):
    BEGIN = "begin"
    GATHER = "gather"
    SUBMIT = "submit"
    PROCESS = "process"
    COMMIT = "commit"
    COLLECT = "collect"
    RETURN = "return"
    ASK = "ask"
    REVIEW = "review"
    DECIDE = "decide"
    RESUME = "resume"
    INTERRUPT = "interrupt"
    FINISH = "finish"
    CANCEL = "cancel"
    FAIL = "fail"


class TurnState(StrEnum):
    CALLING = "calling"  # a worker asks the model
    BATCHED = "batched"  # its request is in a batch
    COMPLETED = "completed"  # its answer is stored
    FAILED = "failed"  # its last attempt failed; it may be begun again


class TurnVerb(StrEnum):
    BEGIN = "begin"
    GATHER = "gather"
    COMPLETE = "complete"
    FAIL = "fail"
    REFUSE = "refuse"
    RETRY = "retry"
    ABANDON = "abandon"


class CallState(StrEnum):
    PENDING = "pending"  # no worker runs it
    RUNNING = "running"  # a worker runs it
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"  # its run ended first


class CallVerb(StrEnum):
    START = "start"
    RELEASE = "release"
    COMPLETE = "complete"
    ANSWER = "answer"
    FAIL = "fail"
    DENY = "deny"
    REVIEW = "review"
    SKIP = "skip"


class BatchState(StrEnum):
    GATHERING = "gathering"  # it takes requests
    SUBMITTING = "submitting"  # it takes no more, and the provider does not have it
    SEARCHING = "searching"  # whether the provider has it is not known
    SUBMITTED = "submitted"  # the provider has it
    PROCESSING = "processing"
    CANCELING = "canceling"  # nobody waits for it any more
    COLLECTING = "collecting"  # the provider has ended it; its results are read
    ENDED = "ended"
    FAILED = "failed"


class BatchVerb(StrEnum):
    CLOSE = "close"
    INTEND = "intend"
    REFUSE = "refuse"
    SEARCH = "search"
    TAKE = "take"
    OFFER = "offer"
    POLL = "poll"
    END = "end"
    FAIL = "fail"
    PRUNE = "prune"


class RequestState(StrEnum):
    WAITING = "waiting"  # the provider does not have it
    SENT = "sent"  # the provider has it
    ANSWERED = "answered"  # its answer is kept for a worker of its own program
    APPLIED = "applied"  # what the provider said of it is stored
    DROPPED = "dropped"  # nobody waits for it any more


class RequestVerb(StrEnum):
    SEND = "send"
    APPLY = "apply"
    KEEP = "keep"
    TAKE = "take"
    DROP = "drop"
    FORGET = "forget"


class CompactionState(StrEnum):
    CALLING = "calling"  # the summariser is asked, or the history is changed
    DONE = "done"  # the history is compacted
    FAILED = "failed"  # it may be begun again
    RESTORED = "restored"  # the history is as it was before


class CompactionVerb(StrEnum):
    BEGIN = "begin"
    END = "end"
    FAIL = "fail"
    RESTORE = "restore"


class InquiryState(StrEnum):
    OPEN = "open"
    APPROVED = "approved"
    DENIED = "denied"
    ANSWERED = "answered"
    EXPIRED = "expired"  # nobody decided in time: its default did
    WITHDRAWN = "withdrawn"  # what it was about ended first


class InquiryVerb(StrEnum):
    APPROVE = "approve"
    DENY = "deny"
    ANSWER = "answer"
    EXPIRE = "expire"
    WITHDRAW = "withdraw"
    PRUNE = "prune"


# The states as type checkers know them.
RunStateName = Literal[
    "pending",
    "batch_submitting",
    "batch_pending",
    "batch_processing",
    "streaming",
    "pending_tools",
    "awaiting_input",
    "completed",
    "cancelled",
    "failed",
]
TurnStateName = Literal["calling", "batched", "completed", "failed"]
CallStateName = Literal["pending", "running", "completed", "failed", "skipped"]
BatchStateName = Literal[
    "gathering",
    "submitting",
    "searching",
    "submitted",
    "processing",
    "canceling",
    "collecting",
    "ended",
    "failed",
]
RequestStateName = Literal["waiting", "sent", "answered", "applied", "dropped"]
CompactionStateName = Literal["calling", "done", "failed", "restored"]
InquiryStateName = Literal["open", "approved", "denied", "answered", "expired", "withdrawn"]

R, RV = RunState, RunVerb
_BATCHED = (R.BATCH_SUBMITTING, R.BATCH_PENDING, R.BATCH_PROCESSING)
_PLAYED = (R.PENDING, *_BATCHED, R.STREAMING)  # a worker may have its lease
_WAITS = (R.PENDING_TOOLS, R.AWAITING_INPUT)

RUN = Life(
    "run",
    RunState,
    RunVerb,
    born=(R.PENDING,),
    moves=(
        *moves(RV.BEGIN, _PLAYED, R.STREAMING, "a worker is about to ask the model"),
        *moves(RV.GATHER, _PLAYED, R.BATCH_SUBMITTING, "a worker stores its request for the next batch"),
        Move(RV.SUBMIT, R.BATCH_SUBMITTING, (R.BATCH_PENDING,), "the provider has its batch"),
        *moves(RV.PROCESS, _BATCHED[:2], R.BATCH_PROCESSING, "the provider works on its batch"),
        Move(RV.COMMIT, R.STREAMING, (R.STREAMING, R.PENDING, *_WAITS), "a worker stores the answer it streamed"),
        Move(RV.COMMIT, R.PENDING, (R.PENDING, *_WAITS), "a worker stores the answer that was kept for it"),
        *moves(RV.COLLECT, _BATCHED, (R.PENDING, *_WAITS), "its batch's job stores the answer"),
        *moves(RV.RETURN, _BATCHED, (R.PENDING, R.BATCH_SUBMITTING), "its batch brought no answer: it is asked again"),
        *moves(RV.ASK, _PLAYED, R.AWAITING_INPUT, "it reached a limit, and a person says whether it continues"),
        *moves(RV.REVIEW, _WAITS, R.AWAITING_INPUT, "nobody knows what a call did: a person reviews it"),
        Move(RV.DECIDE, R.AWAITING_INPUT, (R.PENDING, *_WAITS, R.COMPLETED), "a person decided an inquiry"),
        *moves(RV.RESUME, _WAITS, R.PENDING, "its last tool call has ended"),
        *(Move(RV.INTERRUPT, s, (R.COMPLETED, s), "someone ends it here; its worker stops first") for s in _PLAYED),
        *moves(RV.INTERRUPT, _WAITS, R.COMPLETED, "someone ends it here"),
        *moves(RV.FINISH, _PLAYED, R.COMPLETED, "its last answer ends it, or a limit does"),
        *(Move(RV.CANCEL, s, (R.CANCELLED, s), "someone cancelled it; its worker stops first") for s in _PLAYED),
        *moves(RV.CANCEL, _WAITS, R.CANCELLED, "someone cancelled it"),
        *moves(RV.FAIL, (*_PLAYED, *_WAITS), R.FAILED, "its job failed for good, or its deadline passed"),
    ),
    by_person=frozenset({RV.INTERRUPT, RV.CANCEL}),
)

T, TV = TurnState, TurnVerb
_OPEN_TURN = (T.CALLING, T.BATCHED, T.FAILED)

TURN = Life(
    "turn",
    TurnState,
    TurnVerb,
    born=(T.CALLING, T.BATCHED),
    moves=(
        *moves(TV.BEGIN, _OPEN_TURN, T.CALLING, "a worker asks again, under another token"),
        *moves(TV.GATHER, _OPEN_TURN, T.BATCHED, "a worker asks again, by a batch"),
        *moves(TV.COMPLETE, _OPEN_TURN, T.COMPLETED, "its answer is stored, with what it used and cost"),
        Move(TV.FAIL, T.CALLING, (T.FAILED,), "the provider gave no answer, and its worker says so"),
        Move(TV.REFUSE, T.BATCHED, (T.FAILED,), "the provider refused it, in a batch"),
        Move(TV.RETRY, T.BATCHED, (T.BATCHED,), "the batch brought no answer: the next one asks again"),
        Move(TV.ABANDON, T.CALLING, (T.FAILED,), "its run ended while the model was asked"),
    ),
)

C, CV = CallState, CallVerb
_OPEN_CALL = (C.PENDING, C.RUNNING)

CALL = Life(
    "tool_call",
    CallState,
    CallVerb,
    born=(C.PENDING, C.FAILED, C.SKIPPED),
    moves=(
        Move(CV.START, C.PENDING, (C.RUNNING,), "a worker claims its job"),
        Move(CV.RELEASE, C.RUNNING, (C.PENDING,), "its worker retries it later, hands it back, or was lost"),
        Move(CV.COMPLETE, C.RUNNING, (C.COMPLETED,), "the tool returned"),
        Move(CV.ANSWER, C.PENDING, (C.COMPLETED,), "a person answered in its place"),
        Move(CV.FAIL, C.RUNNING, (C.FAILED,), "the tool failed for good"),
        Move(CV.DENY, C.PENDING, (C.FAILED,), "a person denied it"),
        Move(CV.REVIEW, C.RUNNING, (C.PENDING,), "nobody knows what it did: a person says whether it runs again"),
        *moves(CV.SKIP, _OPEN_CALL, C.SKIPPED, "its run ended first"),
    ),
    derived=frozenset(_OPEN_CALL),
)

B, BV = BatchState, BatchVerb
_UNSURE = (B.SUBMITTING, B.SEARCHING)
_THERE = (B.SUBMITTED, B.PROCESSING, B.CANCELING)

BATCH = Life(
    "batch",
    BatchState,
    BatchVerb,
    born=(B.GATHERING, B.SUBMITTING, B.CANCELING),
    moves=(
        Move(BV.CLOSE, B.GATHERING, (B.SUBMITTING,), "it takes no more requests"),
        Move(BV.INTEND, B.SUBMITTING, (B.SUBMITTING,), "a worker is about to submit it"),
        *moves(BV.REFUSE, _UNSURE, B.SUBMITTING, "the provider does not have it: it may be submitted again"),
        *moves(BV.SEARCH, _UNSURE, B.SEARCHING, "whether the provider has it is not known"),
        *moves(BV.TAKE, _UNSURE, B.SUBMITTED, "the provider has it, under this id"),
        *moves(BV.OFFER, _UNSURE, B.SUBMITTED, "a worker that lost its lease knows the provider's id"),
        *moves(BV.POLL, _THERE, (B.PROCESSING, B.CANCELING, B.COLLECTING), "the provider says how far it is"),
        Move(BV.END, B.SUBMITTING, (B.ENDED,), "nobody waits for it any more"),
        Move(BV.END, B.COLLECTING, (B.ENDED,), "all its results are applied"),
        Move(BV.FAIL, B.SUBMITTING, (B.FAILED,), "the provider does not take it, for good or for too long"),
        *moves(BV.PRUNE, (B.ENDED, B.FAILED), (), "its retention time is over"),
    ),
)

Q, QV = RequestState, RequestVerb
_OPEN_REQUEST = (Q.WAITING, Q.SENT)

REQUEST = Life(
    "batch_request",
    RequestState,
    RequestVerb,
    born=(Q.WAITING,),
    moves=(
        Move(QV.SEND, Q.WAITING, (Q.SENT,), "the provider has its batch"),
        *moves(QV.APPLY, _OPEN_REQUEST, Q.APPLIED, "what the provider said of it is stored"),
        *moves(QV.KEEP, _OPEN_REQUEST, Q.ANSWERED, "its answer is kept for a worker of its own program"),
        Move(QV.TAKE, Q.ANSWERED, (Q.APPLIED,), "a worker of its own program stores the answer"),
        Move(QV.DROP, Q.WAITING, (Q.DROPPED,), "its run has ended, or asks again"),
        *moves(QV.FORGET, (*_OPEN_REQUEST, Q.ANSWERED), Q.DROPPED, "its session is deleted"),
    ),
)

K, KV = CompactionState, CompactionVerb

COMPACTION = Life(
    "compaction",
    CompactionState,
    CompactionVerb,
    born=(K.CALLING,),
    moves=(
        *moves(KV.BEGIN, (K.CALLING, K.FAILED), K.CALLING, "the summariser is asked again"),
        Move(KV.END, K.CALLING, (K.DONE,), "the history is changed"),
        Move(KV.FAIL, K.CALLING, (K.FAILED,), "there is no summary, or the history has changed meanwhile"),
        Move(KV.RESTORE, K.DONE, (K.RESTORED,), "someone wants the history back as it was"),
    ),
    by_person=frozenset({KV.RESTORE}),
)

INQUIRY = Life(
    "inquiry",
    InquiryState,
    InquiryVerb,
    born=(InquiryState.OPEN,),
    moves=(
        Move(
            InquiryVerb.APPROVE,
            InquiryState.OPEN,
            (InquiryState.APPROVED, InquiryState.EXPIRED),
            "a person approved it; after its time its default decides",
        ),
        Move(
            InquiryVerb.DENY,
            InquiryState.OPEN,
            (InquiryState.DENIED, InquiryState.EXPIRED),
            "a person denied it; after its time its default decides",
        ),
        Move(
            InquiryVerb.ANSWER,
            InquiryState.OPEN,
            (InquiryState.ANSWERED, InquiryState.EXPIRED),
            "a person answered; after its time its default decides",
        ),
        Move(InquiryVerb.EXPIRE, InquiryState.OPEN, (InquiryState.EXPIRED,), "nobody decided in time"),
        Move(InquiryVerb.WITHDRAW, InquiryState.OPEN, (InquiryState.WITHDRAWN,), "what it was about ended first"),
        *moves(
            InquiryVerb.PRUNE,
            tuple(InquiryState)[1:],
            (),
            "the retention time of its run is over",
        ),
    ),
    by_person=frozenset({InquiryVerb.APPROVE, InquiryVerb.DENY, InquiryVerb.ANSWER}),
)

IN_BATCH = frozenset(_BATCHED)  # states of a run that waits for a batch

LIVES: tuple[Life[Any, Any], ...] = (RUN, TURN, CALL, BATCH, REQUEST, COMPACTION, INQUIRY)
