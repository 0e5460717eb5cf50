"""`holdfast scale`: how many workers a queue needs, for whatever starts them outside."""

from __future__ import annotations

import click

from holdfast.cli.options import ask, counted, json_option, over_cap, print_json, url_option
from holdfast.pools.size import WorkerPool
from holdfast.text import plural


@click.command()
@click.argument("queue")
@click.option("--min", "least", type=int, default=0, show_default=True, help="Fewest workers.")
@click.option("--max", "most", type=int, default=100, show_default=True, help="Most workers.")
@click.option(
    "--scale-up-threshold", type=int, default=1, show_default=True, help="Grow when so many jobs can be claimed."
)
@click.option("--slots", type=int, help="How many jobs each worker runs at once; default: the setting concurrency.")
@url_option
@json_option
def command(  # noqa: PLR0917  the options of the command
    queue: str,
    least: int,
    most: int,
    scale_up_threshold: int,
    slots: int | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Tell how many workers the queue QUEUE needs now. This needs no worker: it counts in the database."""
    policy = WorkerPool(min=least, max=most, scale_up_threshold=scale_up_threshold, slots=slots)
    demand = ask(url, lambda app: app.pools.demand(queue, policy))
    if as_json:
        print_json(demand)
    else:
        ready = plural(demand.pending, "job", more=over_cap(demand.pending))
        workers = plural(demand.desired, "worker")
        click.echo(f"{workers} for queue {queue}: {ready} can be claimed, {counted(demand.running)} run")
