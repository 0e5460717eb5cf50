"""Webhooks: what is signed is taken once; everything else is refused before the store hears of it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.access.webhooks import LARGEST, Delivery
from holdfast.app import core_of
from holdfast.errors import UsageError
from holdfast.http import web
from tests.http.client import Answer, Client
from tests.http.test_api import guide

SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes....").decode()
OTHER = "another secret, as plain text"
MACHINE = """
spec: flatmachine
spec_version: "0.8.3"
data:
  name: greeter
  states:
    greet:
      type: initial
      transitions:
        - to: done
    done:
      type: final
      output:
        greeting: "Hello {{ input.name }}"
"""


def signature(secret: str, id: str, sent: int, raw: bytes) -> str:
    key = base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()
    made = hmac.new(key, f"{id}.{sent}.".encode() + raw, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(made).decode()}"


class Sender:
    """Another system that knows a secret."""

    def __init__(self, hf: Holdfast, **options: Any) -> None:
        self._now = core_of(hf).ports.clock.wall_us
        self.client = Client(web(hf, **options))

    async def deliver(self, name: str, body: Any, id: str = "evt-1", **other: Any) -> Answer:
        """`secret`, `late` (seconds), `signed` (another body), or whole headers can be given otherwise."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = self._now() // 1_000_000 - other.get("late", 0)
        sign = signature(other.get("secret", SECRET), id, sent, other.get("signed", raw))
        headers = {"webhook-id": id, "webhook-timestamp": str(sent), "webhook-signature": sign}
        return await self.client.call("POST", f"/hooks/{name}", raw=raw, headers=headers | other.get("headers", {}))


async def test_a_delivery_becomes_one_job_however_often_it_comes(hf: Holdfast) -> None:
    @hf.job
    async def book(amount: int) -> None: ...

    hf.webhook("payments", book, secret=SECRET, tenant="acme")
    sender = Sender(hf)
    first = await sender.deliver("payments", {"amount": 5})
    assert (first.status, first.json["fresh"]) == (202, True), first.body
    again = await asyncio.gather(*(sender.deliver("payments", {"amount": 5}) for _ in range(5)))
    assert [(each.status, each.json) for each in again] == [(200, {"id": first.json["id"], "fresh": False})] * 5
    assert (await sender.deliver("payments", {"amount": 6})).status == 409
    (job,) = await hf.jobs.list()
    assert (job.id, job.tenant, job.payload) == (first.json["id"], "acme", {"amount": 5})
    rows = [(row.actor, row.action, row.tenant, row.status) for row in await hf.access.audit.list(limit=2)]
    assert rows == [
        ("webhook payments", "POST /hooks/{name}", "acme", 409),
        ("webhook payments", "POST /hooks/{name}", "acme", None),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"secret": OTHER},
        {"signed": b'{"amount":6}'},
        {"late": 301},
        {"late": -301},
        {"headers": {"webhook-signature": ""}},
        {"headers": {"webhook-signature": "v1,"}},
        {"headers": {"webhook-signature": "v1,ä"}},
        {"headers": {"webhook-signature": "v2,abc"}},
        {"headers": {"webhook-id": "evt-2"}},
        {"headers": {"webhook-id": ""}},
        {"headers": {"webhook-id": "x" * 201}},
        {"headers": {"webhook-timestamp": "now"}},
        {"headers": {"webhook-timestamp": "9" * 400}},
        {"headers": {"webhook-timestamp": "²"}},
    ],
    ids=str,
)
async def test_what_is_not_signed_lately_is_refused(hf: Holdfast, wrong: dict[str, Any]) -> None:
    hf.webhook("payments", _never, secret=SECRET)
    answer = await Sender(hf).deliver("payments", {"amount": 5}, **wrong)
    assert (answer.status, answer.json["error"]) == (401, "BadSignature"), answer.body
    assert await hf.access.audit.list() == []


async def _never(delivery: Delivery) -> None:
    pytest.fail(f"{delivery} was taken")


async def test_a_sender_whose_clock_is_a_little_wrong_is_heard(hf: Holdfast) -> None:
    heard: list[Delivery] = []

    async def hear(delivery: Delivery) -> str:
        heard.append(delivery)
        return "thanks"

    hf.webhook("clock", hear, secret=[OTHER, SECRET], tenant="acme")
    for late, secret in ((290, SECRET), (-290, OTHER)):
        answer = await Sender(hf).deliver("clock", [late], late=late, secret=secret)
        assert (answer.status, answer.json) == (202, {"id": "thanks", "fresh": None})
    assert heard == [Delivery("evt-1", [290], "acme"), Delivery("evt-1", [-290], "acme")]


async def test_a_body_that_is_too_large_or_no_json_is_refused(hf: Holdfast) -> None:
    @hf.job
    async def book(amount: int) -> None: ...

    hf.webhook("payments", book, secret=SECRET)
    sender = Sender(hf)
    assert (await sender.deliver("payments", b" " * (LARGEST + 1))).status == 413
    for body in (
        b"not json",
        b"[1]",
        b'{"amount":"many"}',
        b'{"other":1}',
        b'{"amount":5,"x":"\\u0000"}',
        b"[" * 100_000,
    ):
        answer = await sender.deliver("payments", body)
        assert answer.status == 422, (body[:30], answer.body)
    assert (await sender.deliver("nothing", {})).status == 404
    assert await hf.jobs.list() == []


async def test_a_webhook_stays_in_its_tenant(hf: Holdfast) -> None:
    hf.webhook("acmes", _never, secret=SECRET, tenant="acme")
    assert (await Sender(hf, tenant="evil").deliver("acmes", {})).status == 404
    assert (await Sender(hf, read_only=True).deliver("acmes", {})).status == 403


async def test_a_delivery_becomes_a_run_or_an_execution(hf: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "greeter.yml").write_text(MACHINE)
    hf.webhook("mail", guide(hf), secret=SECRET, tenant="acme", using=lambda body: body.get("text"))
    hf.webhook("greet", hf.machine(tmp_path / "greeter.yml"), secret=SECRET, tenant="acme")
    sender = Sender(hf)
    mailed = [await sender.deliver("mail", {"text": "Hello"}) for _ in range(2)]
    assert [each.status for each in mailed] == [202, 200], mailed
    run = await hf.runs.get(mailed[0].json["id"])
    assert (run.tenant, run.input[0]["text"]) == ("acme", "Hello")
    dropped = await sender.deliver("mail", {"other": 1}, "evt-2")
    assert (dropped.status, dropped.json["id"]) == (202, None)
    assert len(await hf.runs.list()) == 1
    greeted = [await sender.deliver("greet", {"name": "Ann"}) for _ in range(2)]
    assert [each.status for each in greeted] == [202, 200], greeted
    assert greeted[0].json["id"] == greeted[1].json["id"]
    assert (await sender.deliver("greet", {"name": "Bob"})).status == 409
    assert (await hf.jobs.get(greeted[0].json["id"])).tenant == "acme"


@pytest.mark.parametrize(
    ("name", "secret", "reason"),
    [
        ("a/b", SECRET, "the name of a webhook"),
        ("", SECRET, "the name of a webhook"),
        ("a", "short", "fewer than 16 bytes"),
        ("a", "whsec_!!!", "not base64"),
        ("a", [], "needs a secret"),
    ],
)
def test_a_webhook_that_is_declared_wrongly_is_refused(hf: Holdfast, name: str, secret: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        hf.webhook(name, _never, secret=secret)


def test_a_name_stands_for_one_webhook_and_secrets_are_not_shown(hf: Holdfast) -> None:
    hf.webhook("one", _never, secret=OTHER)
    with pytest.raises(UsageError, match="already"):
        hf.webhook("one", _never, secret=OTHER)
    assert OTHER not in repr(hf.access.webhooks.find("one"))


@pytest.mark.parametrize("options", [{"unique": "live"}, {"debounce": "5s"}])
async def test_a_webhook_to_a_unique_job_is_refused_when_it_is_declared(hf: Holdfast, options: dict[str, Any]) -> None:
    """Each of its deliveries would be refused, because the id of the delivery is the key of the job."""

    @hf.job(name="plain")
    async def plain(amount: int) -> None: ...

    @hf.job(name="book", **options)
    async def book(amount: int) -> None: ...

    for target in (book, book.options(priority=1), plain.options(**options)):
        with pytest.raises(UsageError, match=r"unique or debounced.*an async function"):
            hf.webhook("payments", target, secret=SECRET)

    async def take(delivery: Delivery) -> str:
        return (await book.enqueue(**delivery.body)).id

    hf.webhook("payments", take, secret=SECRET)
    sender = Sender(hf)
    ids = {(await sender.deliver("payments", {"amount": 5}, id=f"evt-{n}")).json["id"] for n in range(2)}
    assert len(ids) == 1
