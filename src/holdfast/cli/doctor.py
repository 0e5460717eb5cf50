"""`holdfast doctor`: findings about a database and the work in it, the worst last."""

from __future__ import annotations

import asyncio

import click

from holdfast.agents.doctor import examine_app
from holdfast.app import core_of
from holdfast.cli.options import app_for, json_option, print_json, url_option
from holdfast.cli.target import database_label
from holdfast.kernel.doctor import Finding
from holdfast.text import shown

_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "red"}


@click.command()
@url_option
@json_option
@click.pass_context
def command(ctx: click.Context, url: str | None, as_json: bool) -> None:
    """Check the database, its settings and the work in it; exit code 1 if there is a problem.

    It checks versions, durability, the clock, wake-ups, connections and VACUUM. It also finds stuck work: jobs that no
    live worker can run, expired leases, lanes and duties without a worker, lanes that wait for a person.
    """
    app = app_for(url)
    label = database_label(app.settings)
    findings = sorted(asyncio.run(examine_app(core_of(app))), key=lambda finding: list(_COLOURS).index(finding.level))
    if as_json:
        where = Finding("database", "ok", label)
        print_json([finding._asdict() for finding in (where, *findings)])
    else:
        click.echo(f"database: {label}")
        for finding in findings:
            level = click.style(f"{finding.level:8}", fg=_COLOURS[finding.level], bold=finding.level == "problem")
            click.echo(f"{level} {finding.check:12} {shown(finding.sentence)}")
            if finding.remedy:
                click.echo(f"{'':21} {shown(finding.remedy)}")
    ctx.exit(1 if any(finding.level == "problem" for finding in findings) else 0)
