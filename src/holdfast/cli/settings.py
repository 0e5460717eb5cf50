"""`holdfast settings`: what can be set, what it is now, what it means."""

from __future__ import annotations

from dataclasses import fields

import click

from holdfast.cli.options import json_option, print_json, url_option
from holdfast.cli.tables import Column, TableStyle, on_terminal, print_table, terminal_width, wide_option
from holdfast.cli.target import settings_for
from holdfast.values.queues import shown_setting

_SETTINGS = (Column("SETTING", least=20), Column("VALUE", least=8), Column("MEANING", "prose", least=20))


@click.command()
@url_option
@wide_option
@json_option
def command(url: str | None, as_json: bool, wide: bool) -> None:
    """List every setting, its value and what it means: those of your app, or else of the environment."""
    settings = settings_for(url)
    rows = [
        (f.name, shown_setting(f.name, getattr(settings, f.name)), str(f.metadata["doc"])) for f in fields(settings)
    ]
    if as_json:
        print_json([{"name": name, "value": value, "doc": doc} for name, value, doc in rows])
        return
    look = TableStyle(terminal=on_terminal(), width=terminal_width(), wide=wide)
    print_table(_SETTINGS, [(name, str(value), doc) for name, value, doc in rows], look, empty="")
