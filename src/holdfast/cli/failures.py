"""Failures on a terminal: what was raised, as text, with the user's lines last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.errors import NotFound
from holdfast.shown_text import first_line, shown, shown_lines
from holdfast.values.jobs import AttemptRecord


def print_failure(title: str, error: Any) -> None:
    """A stored error: its type and message in one line, then the traceback; nothing when there is no error."""
    if not isinstance(error, dict):
        return
    message = str(error.get("message", ""))
    click.echo(f"\n{title}: {shown(error.get('type', ''))}: {shown(first_line(message))}")
    if rest := error.get("trace") or (message if "\n" in message else ""):
        click.echo(shown_lines(rest))


def print_attempts_failures(error: Any, attempts: Sequence[AttemptRecord]) -> None:
    """Why a job failed, and why earlier attempts failed where their reason was another one."""
    last = error if isinstance(error, dict) else None
    for attempt in reversed(attempts):
        if isinstance(attempt.error, dict) and (last is None or attempt.error != last):
            print_failure(f"attempt {attempt.token} {attempt.outcome}", attempt.error)
            last = attempt.error
    print_failure("error", error)


async def raised_by(app: Holdfast, job: str) -> Any:
    """The stored error of the job behind a run or a call; None when it has none, or retention removed it."""
    try:
        return (await app.jobs.get(job)).error
    except NotFound:
        return None
