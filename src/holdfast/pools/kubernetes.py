"""Manifests for Kubernetes: workers as a Deployment or as Jobs, and KEDA, which scales them by what waits in the store.

They are plain data. KEDA asks the database itself, so the answer is right when no worker runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from holdfast.errors import UsageError
from holdfast.kernel.pools import load_question
from holdfast.pools.policy import WorkerPool

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
