"""`holdfast deploy`: manifests for what runs workers elsewhere. It prints them and changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from holdfast.cli.options import json_option
from holdfast.cli.worker import names_in
from holdfast.durations import duration
from holdfast.errors import UsageError
from holdfast.kernel.pools import load_question
from holdfast.pools.size import WorkerPool
from holdfast.settings import Settings

# Manifests for Kubernetes: workers as a Deployment or as Jobs, and KEDA, which scales them by what waits in the
# store.
#
# They are plain data. KEDA asks the database itself, so the answer is right when no worker runs.


Manifest = dict[str, Any]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?")
_SECRET_KEY = "url"
_POLL_SECONDS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What is to be deployed: `app` is MODULE:APP inside of `image`, `secret` has the database URL under the key url.

    `grace` is how many seconds a worker may take to drain. `schema` is that of Holdfast's tables.
    """

    app: str
    image: str
    policy: WorkerPool
    name: str = "holdfast-worker"
    namespace: str = "default"
    secret: str = "holdfast"
    schema: str = "holdfast"
    grace: int = 30

    def __post_init__(self) -> None:
        for what, value in (("name", self.name), ("namespace", self.namespace), ("secret", self.secret)):
            if not _NAME.fullmatch(value):
                raise UsageError(
                    f"Kubernetes takes no {what} {value!r}: use small letters, digits and hyphens, at most 53."
                )
        if ":" not in self.app or not self.image.strip():
            raise UsageError("a deployment needs MODULE:APP, as in app:hf, and the image that has it.")


def as_deployment(asked: Deployment) -> list[Manifest]:
    """Workers that stay: a Deployment, and a ScaledObject that says how many of them there are."""
    labels = {"app.kubernetes.io/name": asked.name}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(asked, labels),
        "spec": {
            "replicas": asked.policy.min,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _pod(asked)},
        },
    }
    scaled = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": _metadata(asked, labels),
        "spec": {
            "scaleTargetRef": {"name": asked.name},
            "pollingInterval": _POLL_SECONDS,
            "cooldownPeriod": asked.policy.idle_us // 1_000_000,
            "minReplicaCount": asked.policy.min,
            "maxReplicaCount": asked.policy.max,
            "triggers": [_trigger(asked)],
        },
    }
    return [deployment, _authentication(asked, labels), scaled]


def as_jobs(asked: Deployment) -> list[Manifest]:
    """Workers that end when nothing is left: a Job for each, which a ScaledJob starts. Nothing stops a busy one."""
    labels = {"app.kubernetes.io/name": asked.name}
    job = {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": 2,
        "ttlSecondsAfterFinished": 600,
        "template": {
            "metadata": {"labels": labels},
            "spec": {**_pod(asked, "--until-empty"), "restartPolicy": "Never"},
        },
    }
    single = {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(asked, labels, "-once"), "spec": job}
    scaled = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledJob",
        "metadata": _metadata(asked, labels),
        "spec": {
            "jobTargetRef": job,
            "pollingInterval": _POLL_SECONDS,
            "minReplicaCount": asked.policy.min,
            "maxReplicaCount": asked.policy.max,
            "triggers": [_trigger(asked)],
        },
    }
    return [single, _authentication(asked, labels), scaled]


def _metadata(asked: Deployment, labels: dict[str, str], suffix: str = "") -> Manifest:
    return {"name": asked.name + suffix, "namespace": asked.namespace, "labels": labels}


def _pod(asked: Deployment, *options: str) -> Manifest:
    policy = asked.policy
    command = ["holdfast", "worker", asked.app, "--id", "$(POD_NAME)", "--name", asked.name, *options]
    command += ["--concurrency", str(policy.slots)] if policy.slots is not None else []
    command += ["--queues", ",".join(policy.queues)] if policy.queues is not None else []
    command += ["--capabilities", ",".join(policy.capabilities)] if policy.capabilities else []
    url = {"secretKeyRef": {"name": asked.secret, "key": _SECRET_KEY}}
    pod = {"fieldRef": {"fieldPath": "metadata.name"}}
    container = {
        "name": "worker",
        "image": asked.image,
        "command": command,
        "env": [
            {"name": "HOLDFAST_URL", "valueFrom": url},
            {"name": "POD_NAME", "valueFrom": pod},
            {"name": "HOLDFAST_DRAIN_GRACE", "value": f"{asked.grace}s"},
        ],
    }
    return {"terminationGracePeriodSeconds": asked.grace + 10, "containers": [container]}


def _authentication(asked: Deployment, labels: dict[str, str]) -> Manifest:
    """What lets KEDA ask the database: the same secret."""
    parameter = {"parameter": "connection", "name": asked.secret, "key": _SECRET_KEY}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "TriggerAuthentication",
        "metadata": _metadata(asked, labels),
        "spec": {"secretTargetRef": [parameter]},
    }


def _trigger(asked: Deployment) -> Manifest:
    """As many workers as pending and running jobs need: the query's number, divided by the slots of one worker."""
    slots = asked.policy.slots or 1
    return {
        "type": "postgresql",
        "metadata": {
            "query": load_question(asked.policy.queues, asked.schema, threshold=asked.policy.scale_up_threshold),
            "targetQueryValue": str(slots),
            "activationTargetQueryValue": "0",
        },
        "authenticationRef": {"name": asked.name},
    }


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
