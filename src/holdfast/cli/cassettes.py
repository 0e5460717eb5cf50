"""`holdfast runs cassette`: a stored run as a file that a script plays in tests."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.app import Holdfast
from holdfast.cli.options import ask, json_option, print_json, url_option
from holdfast.cli.short_ids import whole


@click.command()
@click.argument("id")
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Where to write it."
)
@url_option
@json_option
def cassette(id: str, output: Path, url: str | None, as_json: bool) -> None:
    """Record a run and the runs below it for Script.cassette(FILE), without anything that looks like a secret."""

    async def recorded(app: Holdfast) -> str:
        named = await whole(app, id, "run")
        await app.runs[named].cassette(output)
        return named

    id = ask(url, recorded)
    if as_json:
        print_json({"id": id, "cassette": str(output)})
    else:
        click.echo(f"{output} has run {id}; look through it before you share it")
