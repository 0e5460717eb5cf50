"""`holdfast settings`: what can be set, what it is now, what it means."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import click

from holdfast.cli.options import json_option, print_json, print_table
from holdfast.durations import microseconds, show
from holdfast.settings import Settings


@click.command()
@json_option
def command(as_json: bool) -> None:
    """List every setting, its value and what it means."""
    settings = Settings.from_environment()
    rows = [(f.name, written(getattr(settings, f.name)), str(f.metadata["doc"])) for f in fields(settings)]
    if as_json:
        print_json([{"name": name, "value": value, "doc": doc} for name, value, doc in rows])
        return
    print_table(["SETTING", "VALUE", "MEANING"], rows, empty="")


def written(value: Any) -> Any:
    return show(microseconds(value)) if isinstance(value, timedelta) else value
