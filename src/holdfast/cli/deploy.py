"""`holdfast deploy`: manifests for what runs workers elsewhere. It prints them and changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import click

from holdfast.cli.options import json_option
from holdfast.cli.worker import names_in
from holdfast.durations import duration
from holdfast.pools.kubernetes import Deployment, as_deployment, as_jobs
from holdfast.pools.policy import WorkerPool
from holdfast.settings import Settings

_PLAIN = re.compile(r"[A-Za-z/][\w./-]*")  # text that YAML takes as text without quotes
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


@click.group()
def command() -> None:
    """Print manifests that run and scale workers elsewhere."""


@command.command()
@click.argument("target", metavar="MODULE:APP")
@click.option("--image", required=True, help="Container image that has your program and Holdfast.")
@click.option("--name", default="holdfast-worker", show_default=True, help="Name of what is made.")
@click.option("--namespace", default="default", show_default=True, help="Kubernetes namespace.")
@click.option("--secret", default="holdfast", show_default=True, help="Secret with the database URL under the key url.")
@click.option("--min", "least", type=int, default=0, show_default=True, help="Fewest workers.")
@click.option("--max", "most", type=int, default=8, show_default=True, help="Most workers.")
@click.option(
    "--scale-up-threshold", type=int, default=1, show_default=True, help="Grow when so many jobs can be claimed."
)
@click.option("--slots", type=int, default=20, show_default=True, help="How many jobs each worker runs at once.")
@click.option("--scale-down-idle", default="300s", show_default=True, help="How long an idle fleet stays before zero.")
@click.option("--queues", help="Only these queues, separated by commas; default: every queue.")
@click.option("--capabilities", help="Extra capabilities of the workers, separated by commas.")
@click.option("--grace", default="30s", show_default=True, help="How long a worker may take to drain.")
@click.option("--jobs", is_flag=True, help="A Job for each worker, which ends when nothing is left.")
@json_option
def kubernetes(  # noqa: PLR0913, PLR0917  the options of the command
    target: str,
    image: str,
    name: str,
    namespace: str,
    secret: str,
    least: int,
    most: int,
    scale_up_threshold: int,
    slots: int,
    scale_down_idle: str,
    queues: str | None,
    capabilities: str | None,
    grace: str,
    jobs: bool,
    as_json: bool,
) -> None:
    """Print a Deployment of workers for the app MODULE:APP, and a KEDA ScaledObject that scales it by its queues.

    KEDA asks PostgreSQL itself, so the fleet may go to zero. Apply them with `kubectl apply -f -`.
    """
    policy = WorkerPool(
        min=least,
        max=most,
        scale_up_threshold=scale_up_threshold,
        slots=slots,
        scale_down_idle=scale_down_idle,
        queues=names_in(queues),
        capabilities=names_in(capabilities) or (),
    )
    asked = Deployment(
        app=target,
        image=image,
        policy=policy,
        name=name,
        namespace=namespace,
        secret=secret,
        schema=Settings.from_environment().schema,
        grace=round(duration(grace).total_seconds()),
    )
    manifests = as_jobs(asked) if jobs else as_deployment(asked)
    if as_json:
        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}, indent=2))
    else:
        click.echo(
            "---\n".join("".join(f"{line}\n" for line in yaml_lines(manifest)) for manifest in manifests), nl=False
        )


def yaml_lines(value: Any, indent: str = "") -> Iterator[str]:
    """Plain data as YAML: mappings, lists, text and numbers."""
    items = value.items() if isinstance(value, dict) else ((None, each) for each in value)
    for key, each in items:
        head = f"{indent}-" if key is None else f"{indent}{_scalar(key)}:"
        if not isinstance(each, dict | list) or not each:
            yield f"{head} {_scalar(each)}"
        elif key is None:
            first, *rest = yaml_lines(each, indent + "  ")
            yield f"{head} {first.strip()}"
            yield from rest
        else:
            yield head
            yield from yaml_lines(each, indent + "  ")


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
