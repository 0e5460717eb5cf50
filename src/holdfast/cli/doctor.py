"""`holdfast doctor`: findings about a database and the work in it, the worst last."""

from __future__ import annotations

import asyncio

import click

from holdfast.cli.options import app_for, json_option, print_json, url_option
from holdfast.clock import Ports
from holdfast.kernel.doctor import Finding, examine
from holdfast.kernel.drivers import connect

_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "red"}


@click.command()
@url_option
@json_option
@click.pass_context
def command(ctx: click.Context, url: str | None, as_json: bool) -> None:
    """Say what is wrong with the database, its settings or the work in it; exit code 1 if there is a problem.

    It looks at versions, durability, the clock, wake-ups, connections, VACUUM, and at work that is stuck: jobs nobody
    alive can run, leases nobody took back, lanes and duties nobody looks after.
    """
    findings = sorted(asyncio.run(_examine(url)), key=lambda finding: list(_COLOURS).index(finding.level))
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            level = click.style(f"{finding.level:8}", fg=_COLOURS[finding.level], bold=finding.level == "problem")
            click.echo(f"{level} {finding.check:12} {finding.sentence}")
            if finding.remedy:
                click.echo(f"{'':21} {finding.remedy}")
    ctx.exit(1 if any(finding.level == "problem" for finding in findings) else 0)


async def _examine(url: str | None) -> list[Finding]:
    app, ports = app_for(url), Ports()
    database = connect(app.url, app.settings, ports)
    try:
        return await examine(database, app.settings, ports)
    finally:
        await database.close()
