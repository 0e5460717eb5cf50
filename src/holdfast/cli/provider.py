"""`holdfast provider`: a simulated model provider on loopback, and the witness of what it was asked for."""

from __future__ import annotations

import asyncio
import json
import runpy
from pathlib import Path

import click

from holdfast.cli.options import run_until_interrupted
from holdfast.errors import UsageError
from holdfast.models.script import Script
from holdfast.models.simulator import FaultRule, SimulatedProvider, read_rules

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8787, show_default=True, help="Port to listen on; 0 for any free one.")
@click.option("--seed", default=0, show_default=True, help="Seed for request ids, signatures and random choices.")
@click.option("--witness", type=click.Path(dir_okay=False, path_type=Path), help="File that gets a line per call.")
@click.option("--rules", type=_FILE, help="JSON: which calls fail, and how.")
@click.option("--script", type=_FILE, help="What it answers: a JSON script, or a .py file that defines `script`.")
@click.option("--pace", default=0.0, show_default=True, help="Seconds between the pieces of an answer.")
@click.option("--batch-time", default=0.0, show_default=True, help="Seconds until a batch of messages ends.")
def command(  # noqa: PLR0913  # one for each option
    *,
    host: str,
    port: int,
    seed: int,
    witness: Path | None,
    rules: Path | None,
    script: Path | None,
    pace: float,
    batch_time: float,
) -> None:
    """Run a provider simulator: it has the wire format and the checks of the real one, without a key or cost.

    Point a program at it with ANTHROPIC_BASE_URL and any ANTHROPIC_API_KEY. GET /_witness, /_stats and /_batches show
    what it was asked, POST /_rules replaces its rules.
    """
    simulator = SimulatedProvider(
        seed=seed,
        rules=_rules(rules),
        script=_script(script),
        witness=witness,
        pace=pace,
        batch_seconds=batch_time,
    )

    async def run() -> None:
        await simulator.start(host, port)
        click.echo(f"provider simulator on {simulator.url}; press Ctrl-C to stop")
        try:
            await asyncio.Event().wait()
        finally:
            await simulator.stop()

    run_until_interrupted(run())


def _rules(path: Path | None) -> list[FaultRule]:
    if path is None:
        return []
    try:
        return read_rules(json.loads(path.read_text()))
    except ValueError as problem:
        raise UsageError(f"{path} is not JSON: {problem}.") from problem


def _script(path: Path | None) -> Script | None:
    if path is None:
        return None
    if path.suffix != ".py":
        return Script.cassette(path)
    script = runpy.run_path(str(path)).get("script")
    if not isinstance(script, Script):
        raise UsageError(f"{path} defines no `script = Script(...)`.")
    return script
