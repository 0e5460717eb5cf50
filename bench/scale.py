"""How much of everything: a full run, and a quick one that shows that all works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    name: str
    rounds: int  # of everything that is compared
    long_rounds: int  # of what takes longer
    slow_rounds: int  # in which peers take part that are far behind, and of what hardly varies
    repeats: int  # how often a run is repeated that others disturbed
    most_thrown: int  # after so many, none is repeated any more: this machine is not quiet
    limit: float  # seconds that one process may take
    drain: int
    drain_two: int
    enqueue_one: int
    enqueue_bulk: int
    enqueue_client: int  # by each of the clients
    latency: int
    backlog_drain: int
    backlog_pending: int
    backlog_finished: int
    steady: int
    steady_part: int
    steady_ahead: int
    steady_rounds: int
    beside: int  # jobs beside an open transaction, in two halves
    beside_seconds: float  # how old the transaction is when the second half begins
    routes: int
    routes_blocked: int
    routes_claims: int
    sqlite: int
    sqlite_four: int
    idle_seconds: float
    idle_workers: int
    startup: int
    bursts: int
    flood: int
    calm: int
    agent_runs: int
    agent_turns: int
    agent_tool_runs: int
    agent_streams: int
    batch_turns: int
    machine_states: int
    resp_jobs: int  # over one connection; four times as many over several
    web_runs: int
    web_messages: int  # in one session
    web_looks: int  # at each list and aggregate
    web_readers: int  # of one run
    web_requests: int


FULL = Scale(
    name="full",
    rounds=5,
    long_rounds=3,
    slow_rounds=2,
    repeats=2,
    most_thrown=80,
    limit=1200,
    drain=30_000,
    drain_two=60_000,
    enqueue_one=2_000,
    enqueue_bulk=60_000,
    enqueue_client=300,
    latency=300,
    backlog_drain=30_000,
    backlog_pending=500_000,
    backlog_finished=1_000_000,
    steady=1_000_000,
    steady_part=100_000,
    steady_ahead=10_000,
    steady_rounds=1,
    beside=1_000_000,
    beside_seconds=600,
    routes=10_000,
    routes_blocked=100_000,
    routes_claims=50,
    sqlite=20_000,
    sqlite_four=40_000,
    idle_seconds=20,
    idle_workers=200,
    startup=5,
    bursts=20,
    flood=100_000,
    calm=150,
    agent_runs=400,
    agent_turns=100,
    agent_tool_runs=60,
    agent_streams=300,
    batch_turns=3_000,
    machine_states=2_000,
    resp_jobs=1_000,
    web_runs=1_000_000,
    web_messages=100_000,
    web_looks=60,
    web_readers=500,
    web_requests=2_000,
)
QUICK = Scale(
    name="quick",
    rounds=2,
    long_rounds=1,
    slow_rounds=1,
    repeats=1,
    most_thrown=20,
    limit=120,
    drain=8_000,
    drain_two=16_000,
    enqueue_one=600,
    enqueue_bulk=20_000,
    enqueue_client=100,
    latency=100,
    backlog_drain=5_000,
    backlog_pending=60_000,
    backlog_finished=60_000,
    steady=60_000,
    steady_part=15_000,
    steady_ahead=5_000,
    steady_rounds=1,
    beside=60_000,
    beside_seconds=10,
    routes=10_000,
    routes_blocked=100_000,
    routes_claims=20,
    sqlite=8_000,
    sqlite_four=12_000,
    idle_seconds=8,
    idle_workers=20,
    startup=3,
    bursts=5,
    flood=20_000,
    calm=60,
    agent_runs=200,
    agent_turns=30,
    agent_tool_runs=20,
    agent_streams=100,
    batch_turns=2_000,
    machine_states=300,
    resp_jobs=200,
    web_runs=20_000,
    web_messages=5_000,
    web_looks=20,
    web_readers=50,
    web_requests=300,
)
