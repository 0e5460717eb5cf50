"""Webhooks: what other systems send, signed, becomes a job, a run or an execution of a machine.

A delivery counts only if somebody who knows the secret signed its id, its time and its bytes (Standard Webhooks). Its
id is the key of what it enqueues: delivered again, it is the same.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

from holdfast import validation
from holdfast.agents.api.agent import Agent
from holdfast.client.jobs import JobFunction
from holdfast.errors import BadPayload, UsageError
from holdfast.kernel import codec
from holdfast.machines.api import Machine

TOLERANCE_US = 300_000_000  # how old, or how far ahead, the time of a delivery may be
LARGEST = 1_048_576  # bytes of a delivery
_LEAST_SECRET = 16
_LONGEST_ID = 200
_PREFIX = "whsec_"


@dataclass(frozen=True, slots=True)
class Delivery:
    """What was delivered: its id, its JSON, and the tenant of its webhook ("": none)."""

    id: str
    body: Any
    tenant: str = ""


Target = JobFunction[Any, Any] | Agent[Any] | Machine[Any] | Callable[[Delivery], Awaitable[Any]]


class WebhookOptions(TypedDict, total=False):
    """The options of `hf.webhook`, beside its name, its target and its secret."""

    tenant: str
    using: Callable[[Any], Any] | None


class BadSignature(UsageError):
    """A delivery that nobody who knows the secret has signed, or not lately."""


class DeliveryOutcome(TypedDict):
    """What became of a delivery: the id of the job, run or execution, and whether this delivery made it."""

    id: str | None
    fresh: bool | None


@dataclass(frozen=True, slots=True)
class Webhook:
    name: str
    to: Target
    secrets: tuple[bytes, ...] = field(repr=False)
    tenant: str = ""
    using: Callable[[Any], Any] | None = None

    @property
    def target(self) -> tuple[str, str]:
        """What a delivery starts: a noun, and its name."""
        match self.to:
            case JobFunction():
                return "job", self.to.definition.kind
            case Agent():
                return "agent", self.to.name
            case Machine():
                return "machine", self.to.name
        return "function", getattr(self.to, "__name__", type(self.to).__name__)

    def read(self, headers: Mapping[str, str], raw: bytes, now_us: int) -> Delivery:
        """The delivery, if it is signed; `BadSignature` otherwise, `BadPayload` for what is not JSON."""
        id, sent = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        if not 1 <= len(id) <= _LONGEST_ID or not id.isprintable() or not (sent.isascii() and sent.isdigit()):
            raise BadSignature("a delivery needs the headers webhook-id, webhook-timestamp and webhook-signature.")
        if not self._is_signed(f"{id}.{sent}.".encode() + raw, headers.get("webhook-signature", "")):
            raise BadSignature("the signature of the delivery is not right.")
        if len(sent) > 12 or abs(now_us - int(sent) * 1_000_000) > TOLERANCE_US:
            raise BadSignature("the delivery was signed more than five minutes ago, or its sender's clock is wrong.")
        return Delivery(id, codec.decode_foreign(raw, what="a delivery"), self.tenant)

    def _is_signed(self, signed: bytes, header: str) -> bool:
        """Whether one of the signatures is of one of the secrets: both may be two, while a secret is replaced."""
        right = [
            base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode() for secret in self.secrets
        ]
        given = [each.removeprefix("v1,") for each in header.split(" ")[:10] if each.startswith("v1,")]
        matches = [hmac.compare_digest(each.encode(), made.encode()) for each in given for made in right]
        return any(matches)

    async def take(self, delivery: Delivery) -> DeliveryOutcome:
        """Enqueue what the delivery asks for, once."""
        made = delivery.body if self.using is None else self.using(delivery.body)
        key = f"webhook/{self.name}/{delivery.id}"
        if self.using is not None and made is None:
            return {"id": None, "fresh": None}
        match self.to:
            case JobFunction():
                job = await self.to.options(key=key, tenant=self.tenant).enqueue(**_mapping(made, self.name))
                return {"id": str(job.id), "fresh": job.fresh}
            case Agent():
                prompt = made if isinstance(made, str) else json.dumps(made, ensure_ascii=False)
                run = await self.to.enqueue(prompt, key=key, tenant=self.tenant or None)
                return {"id": run.id, "fresh": run.fresh}
            case Machine():
                named = f"webhook {self.name} {self.tenant} {delivery.id}"
                execution = await self.to.enqueue(_mapping(made, self.name), execution_id=named, tenant=self.tenant)
                return {"id": str(execution.id), "fresh": execution.fresh}
            case function:
                said = await function(Delivery(delivery.id, made, self.tenant))
                return {"id": None if said is None else str(said), "fresh": None}


class Webhooks:
    """The webhooks of one program."""

    def __init__(self) -> None:
        self._declared: dict[str, Webhook] = {}

    def declare(self, name: str, to: Target, secret: str | Sequence[str], **options: Unpack[WebhookOptions]) -> Webhook:
        validation.option_names(options, WebhookOptions, "webhook")
        if not name or len(name) > 100 or not all(each.isalnum() or each in "-_." for each in name):
            raise UsageError(f"the name of a webhook may have only letters, digits, - _ and .; got {name!r:.80}.")
        if name in self._declared:
            raise UsageError(f"there is a webhook {name!r} already.")
        if not callable(to) and not isinstance(to, Agent | Machine):
            raise UsageError("a webhook goes to a job, an agent, a machine, or an async function of a Delivery.")
        if isinstance(to, JobFunction) and to.is_unique:
            raise UsageError(
                f"webhook {name!r} cannot start {to.definition.kind}, which is unique or debounced: the id of a "
                f"delivery is the key of its job, and a job has one of the two. Give it an async function that "
                f"enqueues the job."
            )
        given = [secret] if isinstance(secret, str) else list(secret)
        made = Webhook(
            name,
            to,
            tuple(_secret(name, each) for each in given),
            codec.check_tenant(options.get("tenant", "")),
            options.get("using"),
        )
        if not given:
            raise UsageError(f"webhook {name!r} needs a secret.")
        self._declared[name] = made
        return made

    @property
    def declared(self) -> Sequence[Webhook]:
        return list(self._declared.values())

    def find(self, name: str) -> Webhook | None:
        return self._declared.get(name)


def _secret(name: str, text: str) -> bytes:
    """A secret as bytes: what stands behind `whsec_` is base64, another one is taken as it is."""
    try:
        secret = base64.b64decode(text[len(_PREFIX) :], validate=True) if text.startswith(_PREFIX) else text.encode()
    except (binascii.Error, ValueError):
        raise UsageError(f"the secret of webhook {name!r} is not base64 behind {_PREFIX}.") from None
    if len(secret) < _LEAST_SECRET:
        raise UsageError(f"the secret of webhook {name!r} has fewer than {_LEAST_SECRET} bytes.")
    return secret


def _mapping(made: Any, name: str) -> dict[str, Any]:
    if not isinstance(made, Mapping):
        raise BadPayload(f"webhook {name!r} needs a JSON object; using= can make one of what is delivered.")
    return {str(each): value for each, value in made.items()}
