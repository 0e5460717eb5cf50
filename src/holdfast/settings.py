"""Every interval, limit and size, with its default and its reason; nothing else takes one from the environment.

`holdfast worker --set name=value` comes first, then what the program gives to `Holdfast(url, settings=Settings(...))`;
a program that gives none takes them from the environment, as `HOLDFAST_NAME`. `docs/reference/settings.md` is made from
this file.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import cache
from typing import Any, Literal, Self

from holdfast import durations
from holdfast.errors import BadSetting
from holdfast.validation import did_you_mean, nearest

Profile = Literal["full", "fast"]
DEFAULT_URL = "sqlite:///.holdfast/holdfast.db"

log = logging.getLogger("holdfast.settings")

_PREFIX = "HOLDFAST_"
_OTHER_VARIABLES = frozenset({"AGW_KEY", "APP", "GIVEN_URL", "LOG_FORMAT"})  # what commands take beside settings
_FOR_TESTS = ("TEST_", "FUZZ_", "SIMULATION_", "LOCKSTEP_")  # of Holdfast's own suite
_OF_KUBERNETES = re.compile(r"(?:^|_)(?:SERVICE_HOST|SERVICE_PORT|PORT)(?:_|$)")  # of a Service named holdfast…


def _setting(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


def _time(text: str, doc: str) -> Any:
    return _setting(durations.duration(text), doc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    url: str = _setting(DEFAULT_URL, "Database, if the program names none: sqlite:///path or postgresql://…")
    direct_url: str = _setting("", "PostgreSQL URL that bypasses the pooler, for migrations.")
    schema: str = _setting("holdfast", "PostgreSQL schema, and prefix of the NOTIFY channels.")
    profile: Profile = _setting("full", "full: acknowledged = on disk. fast: an OS crash may lose the last moments.")
    pooler: bool = _setting(False, "A transaction pooler is in use: no LISTEN, no presence, no prepared statements.")
    connections: int = _setting(
        4, "PostgreSQL connections of a process; as many more for reads of the web, two for a worker."
    )
    busy_timeout: timedelta = _time("5s", "How long a SQLite writer waits for another process before StoreBusy.")
    store_patience: timedelta = _time("5s", "How long a call is repeated while the database cannot be reached.")
    web_patience: timedelta = _time(
        "5s", "How long one query may take that only reads, for the web or for an operator."
    )

    concurrency: int = _setting(20, "Jobs one worker process runs at once (its slots).")
    threads: int = _setting(0, "Threads for handlers that are not async; 0 = as many as slots.")
    batch: int = _setting(100, "Most jobs in one claim or completion statement.")
    prefetch: int = _setting(2, "Jobs claimed ahead per slot while the median attempt is shorter than 50 ms.")
    poll_interval: timedelta = _time("1s", "Pause between polls for work when no wake-up arrives.")
    sweep_interval: timedelta = _time("1s", "Pause between polls for due, overdue and orphaned jobs.")
    route_refresh: timedelta = _time("1m", "Pause between full reads of the routes this worker can serve.")

    heartbeat: timedelta = _time("15s", "Pause between heartbeats; leases are renewed with them.")
    lease_ttl: timedelta = _time("60s", "How long a claim holds without renewal.")
    lease_ceiling: timedelta = _time("24h", "The longest one attempt may hold its lease by renewing it.")
    fence_margin: timedelta = _time("1s", "How long before its lease ends a worker that could not renew stops itself.")
    tick: timedelta = _time("250ms", "Pause between the event loop's signs of life; a stuck loop gets no renewal.")
    loop_patience: timedelta = _time(
        "1s", "How long a handler may hold the event loop before its worker names it; 0s = it never does."
    )
    worker_ttl: timedelta = _time("60s", "A worker without a heartbeat for longer counts as lost.")
    presence_grace: timedelta = _time("1s", "A presence gone for longer than this expires the worker's leases.")
    presence_quiet: timedelta = _time("5s", "How long presence is ignored after a restart or reconnect.")
    duty_ttl: timedelta = _time("30s", "How long a duty is held without renewal; renewed at half.")
    cleanup_interval: timedelta = _time("1m", "Pause between clean-ups: lost workers, spent keys, empty routes.")
    vacuum_after: int = _setting(
        50_000, "Dead rows in ready, later or lease on PostgreSQL after which a worker vacuums it."
    )
    drain_grace: timedelta = _time("30s", "How long running jobs may continue after SIGTERM before they are returned.")
    reconnect_cap: timedelta = _time("5s", "Longest pause between attempts to reach the database again.")

    max_attempts: int = _setting(3, "Outcomes a job may have before a failure is final.")
    max_rescues: int = _setting(5, "Leases a job may lose before it fails as rescue_failed.")
    rescue_backoff: timedelta = _time("5s", "Pause after the second lost lease, doubled with each further one.")
    payload_cap: int = _setting(1_048_576, "Bytes of JSON a payload may have.")
    result_cap: int = _setting(1_048_576, "Bytes of JSON a result, step result or signal may have.")
    error_cap: int = _setting(16_384, "Bytes of an error's text and traceback that are kept.")
    progress_cap: int = _setting(16_384, "Bytes of JSON a progress report may have.")
    metadata_cap: int = _setting(16_384, "Bytes of JSON a job's metadata may have.")
    key_retention: timedelta = _time("7d", "How long an idempotency key is kept after its job ends or is removed.")
    signal_retention: timedelta = _time("7d", "How long a signal that no job takes is kept.")
    retention: timedelta = _time("7d", "How long finished jobs are kept, unless their queue sets its own age.")
    retention_jobs: int = _setting(1_000_000, "Most finished jobs kept in one queue, unless it sets its own number.")
    tool_output_cap: int = _setting(200_000, "Characters of a tool's result that the model is shown; the rest is cut.")
    prompt_cap: int = _setting(33_554_432, "Bytes of JSON a prompt may have, images and documents included.")

    tenant_tools: str = _setting(
        "", "Tools that agents of a tenant may name: names, with commas; empty = those shared."
    )
    tenant_models: str = _setting("", "Models that agents of a tenant may name; `scripted:*` is all that begin so.")

    max_concurrent_runs: int = _setting(10, "Runs in batch mode that one worker handles at once.")
    max_concurrent_streaming_runs: int = _setting(5, "Runs that one worker streams from a model at once.")
    max_concurrent_tools: int = _setting(50, "Tool calls that one worker runs at once.")
    stream_interval: timedelta = _time("100ms", "Pause between writes of a model's streamed output.")
    model_idle: timedelta = _time("2m", "A model that sends nothing for this long, not even a ping, counts as gone.")
    model_total: timedelta = _time("1h", "The longest one answer of a model may take.")
    provider_patience: timedelta = _time("1h", "How long a turn waits for a provider that is down.")
    provider_url: str = _setting("", "Base URL of the model provider; empty = the SDK's own.")
    script_pace: timedelta = _time("0s", "Pause between the pieces of what a scripted model says.")
    script_batch_time: timedelta = _time("0s", "How long a batch of a scripted model takes.")
    batch_wait: timedelta = _time("10s", "How long a batch gathers the turns of runs before it is submitted.")
    batch_poll_interval: timedelta = _time("30s", "Longest pause between polls of a provider's batch.")
    batch_grace: timedelta = _time("1m", "After a submit of unknown outcome, how long its batch may take to show up.")
    batch_least: timedelta = _time("1h", "A run with less time than this left of its `answer_within` is streamed.")
    batch_retention: timedelta = _time("7d", "How long ended batches and their requests are kept.")
    delta_retention: timedelta = _time("24h", "How long the deltas of ended runs are kept; 0s = for ever.")
    event_retention: timedelta = _time("30d", "How long all events of ended runs are kept; 0s = for ever.")
    inquiry_retention: timedelta = _time("90d", "How long people's decisions are kept after their run; 0s = for ever.")
    turn_retention: timedelta = _time("90d", "How long raw usage, errors and request ids are kept; 0s = for ever.")
    session_retention: timedelta = _time("0s", "How long sessions are kept after their last run; 0s = for ever.")
    script_witness: str = _setting("", "File in which scripted models record each call, to count what was bought.")
    rescue_timeout: timedelta = _time("5m", "A run without any progress for this long is taken from its worker.")
    rescue_interval: timedelta = _time("1m", "Pause between checks for runs without progress.")
    max_rescue_attempts: int = _setting(3, "Rescues of a run before it fails as rescue_failed.")
    public_topics: bool = _setting(True, "Announce changes of runs to other programs by NOTIFY.")
    topic_prefix: str = _setting("holdfast", "Prefix of the public NOTIFY channels; agentpg if you come from it.")

    worker_retention: timedelta = _time("1d", "How long the rows of stopped workers are kept.")

    def __post_init__(self) -> None:
        for each in fields(self):
            if isinstance(each.default, timedelta):  # written as people write it, or a timedelta
                object.__setattr__(self, each.name, durations.duration(getattr(self, each.name)))
        for name in ("concurrency", "batch", "connections", "max_attempts", "payload_cap", "result_cap"):
            if getattr(self, name) < 1:
                raise BadSetting(f"{name} must be at least 1; got {getattr(self, name)}.")
        for name in ("max_concurrent_runs", "max_concurrent_streaming_runs", "max_concurrent_tools", "tool_output_cap"):
            if getattr(self, name) < 1:
                raise BadSetting(f"{name} must be at least 1; got {getattr(self, name)}.")
        for name in ("threads", "prefetch", "max_rescues", "retention_jobs", "max_rescue_attempts"):
            if getattr(self, name) < 0:
                raise BadSetting(f"{name} must be at least 0; got {getattr(self, name)}.")
        waits = ("poll_interval", "sweep_interval", "heartbeat", "tick", "duty_ttl", "worker_ttl", "web_patience")
        for name in waits:
            if not getattr(self, name):
                raise BadSetting(f"{name} must be longer than 0s.")
        if self.profile not in ("full", "fast"):
            raise BadSetting(f'profile must be "full" or "fast"; got {self.profile!r}.')
        if not self.schema.isidentifier() or self.schema != self.schema.lower():
            raise BadSetting(f"schema must be a plain lower-case name; got {self.schema!r}.")
        self._check_intervals()

    def _check_intervals(self) -> None:
        if self.heartbeat * 2 > self.lease_ttl:
            raise BadSetting(
                f"heartbeat {self.heartbeat} must be at most half of lease_ttl {self.lease_ttl}, "
                f"or one lost renewal loses the lease."
            )
        if self.heartbeat * 2 > self.worker_ttl:
            raise BadSetting(f"heartbeat {self.heartbeat} must be at most half of worker_ttl {self.worker_ttl}.")
        if not self.presence_grace:
            raise BadSetting("presence_grace must not be zero, or one missed sign of life would end a worker.")
        if self.fence_margin >= self.lease_ttl - self.heartbeat:
            raise BadSetting("fence_margin must be shorter than lease_ttl - heartbeat.")

    @property
    def call_patience(self) -> float:
        """Seconds that a call may go without an answer from PostgreSQL.

        A heartbeat that meets a dead link, waits this long, and goes over a new one is still in time for its leases.
        """
        return (self.lease_ttl - self.heartbeat - self.fence_margin).total_seconds() / 2

    @property
    def statement_patience(self) -> float:
        """Seconds after which the server ends a statement. It gives up before the client does: a session whose client
        has hung up would continue waiting for its lock, unseen, and there would be another each time."""
        return self.call_patience * 0.9

    @property
    def lock_patience(self) -> float:
        """Seconds that a statement may wait for a lock; the shortest of the three, because its answer is clearest."""
        return self.call_patience * 0.8

    @property
    def announced(self) -> str:
        """The prefix of the channels on which changes of runs are announced; empty: they are not."""
        return self.topic_prefix if self.public_topics else ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """What `environ` says, or the environment of this process, whose misspelt variables are logged once."""
        if environ is None:
            environ = os.environ
            warn_of_unknown_variables()
        values: dict[str, Any] = {}
        for each in fields(cls):
            variable = f"{_PREFIX}{each.name.upper()}"
            if variable in environ:
                try:
                    values[each.name] = _parse(each.name, environ[variable], each.default)
                except BadSetting as problem:
                    raise BadSetting(f"{variable}: {problem}") from None
        return cls(**values)

    def override(self, texts: Mapping[str, str]) -> Self:
        """These settings with some replaced by their written form, as the command line gives them."""
        known = {f.name: f for f in fields(self)}
        values: dict[str, Any] = {}
        for name, text in texts.items():
            if name not in known:
                raise BadSetting(
                    f"there is no setting {name!r}; `holdfast settings` lists them.{did_you_mean(name, known)}"
                )
            values[name] = _parse(name, text, known[name].default)
        return replace(self, **values)


GIVEN_URL = "HOLDFAST_GIVEN_URL"


def environment_with(url: str | None) -> dict[str, str]:
    """The environment of a process that is to use this database, in place of its program's own.

    It is not told on the command line: everybody who is on the machine can read that, with the password in the URL.
    """
    kept = {name: value for name, value in os.environ.items() if name != GIVEN_URL}
    return kept if url is None else {**kept, GIVEN_URL: url}


def given_url() -> str | None:
    """The database that the process which started this one named. Processes that this one starts do not inherit it."""
    return os.environ.pop(GIVEN_URL, None)


def warn_of_unknown_variables() -> None:
    """Log once which variables in the environment are not settings, each with the setting of the most similar name."""
    _warn_of(tuple(sorted(name for name in os.environ if name.startswith(_PREFIX))))


@cache
def _warn_of(given: tuple[str, ...]) -> None:
    known = {each.name.upper() for each in fields(Settings)} | _OTHER_VARIABLES
    for name in (each.removeprefix(_PREFIX) for each in given):
        if name not in known and not name.startswith(_FOR_TESTS) and not _OF_KUBERNETES.search(name):
            close = nearest(name, known)
            hint = f"did you mean {_PREFIX}{close}?" if close else "`holdfast settings` lists them."
            log.warning("%s%s is not a setting of Holdfast and changes nothing: %s", _PREFIX, name, hint)


def _parse(name: str, text: str, default: object) -> object:
    if isinstance(default, timedelta):
        return durations.duration(text)
    if isinstance(default, bool):
        if text.lower() not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
            raise BadSetting(f"{name} must be true or false; got {text!r}.")
        return text.lower() in ("1", "true", "yes", "on")
    if isinstance(default, int):
        try:
            return int(text)
        except ValueError:
            raise BadSetting(f"{name} must be a whole number; got {text!r}.") from None
    return text
