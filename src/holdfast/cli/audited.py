"""What commands write into the audit: who typed a command that changes something, and what came of it.

One list of such commands, kept by the one function through which commands reach the store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import click

from holdfast.access.principals import Principal, os_user
from holdfast.app import Holdfast

CHANGING = frozenset(
    {
        "action submit",
        "budgets delete",
        "budgets set",
        "epoch bump",
        "jobs cancel",
        "jobs retry",
        "lanes open",
        "machine resume",
        "machine signal",
        "plan rm",
        "plan submit",
        "prune",
        "queues pause",
        "queues resume",
        "resp keys add",
        "resp keys revoke",
        "runs answer",
        "runs approve",
        "runs cancel",
        "runs deny",
        "runs fork",
        "runs retry",
        "schedules delete",
        "schedules pause",
        "schedules resume",
        "schedules run",
        "sessions compact",
        "sessions fork",
        "sessions prune",
        "sessions restore",
        "sessions retire",
        "tenants erase",
        "tenants retention",
        "tokens create",
        "tokens revoke",
        "tokens rotate",
        "workers drain",
        "workers forget",
    }
)
_REASON = "holdfast.reason"  # where a command keeps it
# Where and how, and what people and models say to each other: that has no place in an audit.
_LEFT_OUT = frozenset(
    {*("url", "app", "as_json", "wide", "yes"), *("changed", "inputs", "message", "prompt", "results", "text")}
)


def caller() -> Principal:
    """Who types: a command may do all that the user may do who opens the database."""
    return Principal(f"{os_user()} (command)", "admin")


def keep_reason(context: click.Context, _: click.Parameter, reason: str) -> None:
    """The callback of `--reason`: what a person says is for the audit, not for the command."""
    context.meta[_REASON] = reason


@asynccontextmanager
async def recorded(app: Holdfast, *, changes: bool = True) -> AsyncIterator[None]:
    """Around what the present command asks of the store: if it changes something, that is written."""
    context = click.get_current_context(silent=True)
    name = "" if context is None else context.command_path.partition(" ")[2]
    given = {} if context is None else context.params
    if not changes or name not in CHANGING or given.get("dry_run"):
        yield
        return
    why = {} if context is None else {"reason": context.meta.get(_REASON)}
    async with app.access.audit.recording(caller(), name, subject_of(given), detail=detail_of({**why, **given})):
        yield


def subject_of(given: Mapping[str, Any]) -> str:
    """What the command is about: its first argument."""
    found = next((given[name] for name in ("id", "ids", "name", "plan", "queue", "tenant") if given.get(name)), "")
    return " ".join(map(str, found)) if isinstance(found, tuple) else str(found)


def detail_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The words of the command, without those that are left out."""
    told = {name: value for name, value in given.items() if value not in (None, "", (), False)}
    return {name: str(value) for name, value in told.items() if name not in _LEFT_OUT}
