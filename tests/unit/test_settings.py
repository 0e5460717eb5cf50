"""Settings: documented, read from the environment, and refused when they make no sense."""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, fields
from datetime import timedelta
from typing import Any

import pytest

from holdfast.errors import BadSetting
from holdfast.settings import Settings


def test_every_setting_has_a_default_and_a_sentence_about_it() -> None:
    assert [field.name for field in fields(Settings) if field.default is MISSING] == []
    docs: dict[str, str] = {field.name: field.metadata["doc"] for field in fields(Settings)}
    assert [name for name, doc in docs.items() if not doc.endswith((".", "…")) or len(doc) <= 20] == []


def test_the_defaults_are_those_of_the_design() -> None:
    settings = Settings()
    seconds = {
        "heartbeat": 15,
        "lease_ttl": 60,
        "worker_ttl": 60,
        "duty_ttl": 30,
        "cleanup_interval": 60,
        "poll_interval": 1,
        "sweep_interval": 1,
    }
    assert {name: getattr(settings, name).total_seconds() for name in seconds} == seconds
    assert (settings.max_rescues, settings.schema, settings.profile) == (5, "holdfast", "full")


def test_settings_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().batch = 5  # type: ignore[misc]


def test_the_environment_gives_every_kind_of_setting() -> None:
    environ = {
        "HOLDFAST_URL": "postgresql://there/db",
        "HOLDFAST_HEARTBEAT": "5s",
        "HOLDFAST_BATCH": "7",
        "HOLDFAST_POOLER": "yes",
        "HOLDFAST_PROFILE": "fast",
        "HOLDFAST_NOT_A_SETTING": "left alone",
        "PATH": "/bin",
    }
    settings = Settings.from_environment(environ)
    assert settings == Settings(
        url="postgresql://there/db", heartbeat=timedelta(seconds=5), batch=7, pooler=True, profile="fast"
    )


def test_a_variable_that_cannot_be_read_is_named() -> None:
    with pytest.raises(BadSetting, match=r"^HOLDFAST_CONCURRENCY: concurrency must be a whole number; got 'many'"):
        Settings.from_environment({"HOLDFAST_CONCURRENCY": "many"})


def test_variables_that_fit_only_together_are_taken_together() -> None:
    environ = {"HOLDFAST_HEARTBEAT": "50s", "HOLDFAST_LEASE_TTL": "200s", "HOLDFAST_WORKER_TTL": "200s"}
    assert Settings.from_environment(environ).heartbeat == timedelta(seconds=50)


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Settings.from_environment({}) == Settings()


@pytest.mark.parametrize(("text", "switch"), [("1", True), ("TRUE", True), ("on", True), ("0", False), ("No", False)])
def test_a_switch_is_written_in_many_ways(text: str, switch: bool) -> None:
    assert Settings(pooler=not switch).override({"pooler": text}).pooler is switch


def test_an_override_keeps_the_rest() -> None:
    base = Settings(batch=9, connections=2)
    assert base.override({"connections": "3"}) == Settings(batch=9, connections=3)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"heartbeet": "5s"}, "no setting 'heartbeet'.*Did you mean 'heartbeat'"),
        ({"heartbeat": "5"}, "not a duration"),
        ({"batch": "many"}, "batch must be a whole number"),
        ({"batch": "0"}, "batch must be at least 1"),
        ({"concurrency": "-1"}, "concurrency must be at least 1"),
        ({"pooler": "maybe"}, "pooler must be true or false"),
        ({"profile": "slow"}, 'profile must be "full" or "fast"'),
        ({"schema": "Hold fast"}, "plain lower-case name"),
        ({"schema": "Upper"}, "plain lower-case name"),
        ({"schema": "a;drop"}, "plain lower-case name"),
        ({"heartbeat": "31s"}, "at most half of lease_ttl"),
        ({"fence_margin": "50s"}, "fence_margin must be shorter"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(texts: dict[str, str], message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        Settings().override(texts)


@pytest.mark.parametrize("given", [{"max_attempts": 0}, {"payload_cap": 0}, {"result_cap": 0}, {"connections": 0}])
def test_limits_begin_at_one(given: dict[str, Any]) -> None:
    with pytest.raises(BadSetting, match="at least 1"):
        Settings(**given)
