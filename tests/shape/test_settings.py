"""Every setting is documented, read by somebody, and given in any of its ways."""

from __future__ import annotations

import ast
from dataclasses import fields
from datetime import timedelta
from functools import cache
from typing import Any

import pytest

from holdfast.errors import BadSetting
from holdfast.settings import Settings
from tests.shape.tree import SOURCE, modules, named, parsed, saying, source

SETTINGS = fields(Settings)


def unread(names: set[str]) -> set[str]:
    """Those that no module but the settings' own reads as an attribute, itself or by a property of them."""
    own = SOURCE / "settings.py"
    methods = [node for node in ast.walk(parsed(own)) if isinstance(node, ast.FunctionDef)]
    properties = [node for node in methods if any(ast.unparse(each) == "property" for each in node.decorator_list)]
    wanted = names | {node.name for node in properties}
    for path in modules():
        if path != own and any(f".{name}" in source(path) for name in wanted):
            wanted -= loaded(parsed(path))
    return (wanted & names).difference(*(loaded(node) for node in properties if node.name not in wanted))


@cache
def loaded(tree: ast.AST) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


def test_a_setting_nobody_reads_does_not_exist() -> None:
    assert unread({setting.name for setting in SETTINGS}) == set()
    assert unread({"heartbeat", "a setting that nobody reads"}) == {"a setting that nobody reads"}


# Who else looks at the environment: for what is no setting of ours.
READERS = {
    "cli/target.py",  # which app a command works on
    "machines/run.py",  # the same, for a process that plays one execution
    "models/anthropic.py",  # whether the provider's SDK will find a key there, and whose it is
    "models/chat_completions.py",  # the key of a provider, in a variable that the program names
    "cli/agw.py",  # the key of a worker, in a variable that its option names
    "cli/resp.py",  # the shared key, likewise
    "cli/logs.py",  # whether the terminal shows colours
    "kernel/drivers/sqlite_processes.py",  # where the system keeps sockets of a user
    "testing/databases.py",  # which server the tests use
    "facades/universal_agent/external.py",  # the token of a gateway, for programs that give none
    "facades/flatagents/environment.py",  # what the process that started this one says
}


def test_nothing_else_takes_a_setting_from_the_environment() -> None:
    looks = [path for path in saying("environ|getenv", modules()) if {"environ", "getenv"} & loaded(parsed(path))]
    assert {named(path) for path in looks} == READERS | {"settings.py"}


def test_a_setting_says_what_it_is() -> None:
    docs: dict[str, str] = {setting.name: setting.metadata["doc"] for setting in SETTINGS}
    short = [name for name, doc in docs.items() if len(doc) <= 15 or "\n" in doc]
    endless = [name for name, doc in docs.items() if not (doc.endswith(".") or "…" in doc)]
    assert (short, endless) == ([], [])


def test_the_defaults_are_the_designs() -> None:
    """DESIGN.md, 4.2."""
    settings = Settings()
    assert settings.heartbeat == timedelta(seconds=15)
    assert settings.lease_ttl == settings.worker_ttl == timedelta(seconds=60)
    assert settings.duty_ttl == timedelta(seconds=30)
    assert settings.cleanup_interval == timedelta(minutes=1)
    assert settings.poll_interval == settings.sweep_interval == timedelta(seconds=1)
    assert (settings.max_attempts, settings.max_rescues) == (3, 5)


def test_a_setting_is_given_in_code_or_in_writing() -> None:
    written: Any = "30s"
    assert Settings(poll_interval=written).poll_interval == timedelta(seconds=30)
    assert Settings(poll_interval=timedelta(seconds=30)) == Settings().override({"poll_interval": "30s"})
    environ = {"HOLDFAST_CONCURRENCY": "7", "HOLDFAST_POOLER": "yes", "HOLDFAST_NOTHING": "1", "PATH": "/"}
    given = Settings.from_environment(environ)
    assert (given.concurrency, given.pooler, given.threads) == (7, True, 0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1; got 0"),
        ({"prefetch": -1}, "prefetch must be at least 0; got -1"),
        ({"tick": "0s"}, "tick must be longer than 0s"),
        ({"poll_interval": 30}, "a duration must be text such as"),
        ({"poll_interval": "-1s"}, "is not a duration"),
        ({"profile": "slow"}, 'profile must be "full" or "fast"'),
        ({"schema": "My Schema"}, "schema must be a plain lower-case name"),
        ({"heartbeat": "31s"}, "must be at most half of lease_ttl"),
        ({"lease_ttl": "4s", "heartbeat": "2s", "fence_margin": "2s"}, "fence_margin must be shorter"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadSetting, match=reason):
        Settings(**changes)
