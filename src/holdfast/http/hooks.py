"""`POST /hooks/{name}`: deliveries of other systems. Their signature is judged, and nothing else of who sends them."""

from __future__ import annotations

import hashlib

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from holdfast.access.principals import Principal
from holdfast.app import core_of
from holdfast.changes import unnoted
from holdfast.errors import HoldfastError
from holdfast.http.api.answers import json_response
from holdfast.http.api.problems import status_of
from holdfast.http.api.routes import Endpoint
from holdfast.http.security.denials import Denied, absent, forbidden
from holdfast.http.security.gate import Gate, address_of
from holdfast.http.security.texts import check_texts, short_body
from holdfast.webhooks import LARGEST, Delivery, NotSigned, TakenDelivery, Webhook


async def take_delivery(request: Request, gate: Gate) -> Response:
    """Take a signed delivery for the webhook of this name: 202, and 200 for one that was delivered before."""
    gate.deliveries.take(address_of(request))
    hook = gate.hf.access.webhooks.find(request.path_params["name"])
    if hook is None or gate.options.tenant not in (None, hook.tenant) or gate.options.metadata:
        raise absent()  # what it enqueues belongs to no session, so it is not there where metadata are pinned
    if gate.options.read_only:
        raise forbidden("this is read-only.", "Use another server to change something.")
    raw = await short_body(request, LARGEST)
    delivery = _read(hook, request, raw, core_of(gate.hf).ports.clock.wall_us())
    check_texts(request, raw)
    taken = await _recorded(gate, hook, delivery, request, raw)
    return json_response(taken, 200 if taken["fresh"] is False else 202)


HOOK = Endpoint("hooks", "POST", "/hooks/{name}", take_delivery, root="")


def _read(hook: Webhook, request: Request, raw: bytes, now_us: int) -> Delivery:
    try:
        return hook.read(request.headers, raw, now_us)
    except NotSigned as problem:
        remedy = "Sign id, time and body with the secret of this webhook, as Standard Webhooks says."
        raise Denied(401, "NotSigned", str(problem), remedy) from None


async def _recorded(gate: Gate, hook: Webhook, delivery: Delivery, request: Request, raw: bytes) -> TakenDelivery:
    """What became of it, with what was to be done in the audit before it, and what came of it after."""
    audit, path = gate.hf.access.audit, request.url.path
    by = Principal(f"webhook {hook.name}", "operator", hook.tenant or None)
    detail = {"sha256": hashlib.sha256(raw).hexdigest(), "bytes": len(raw), "delivery": delivery.id}
    intent = await audit.add(by, HOOK.name, path, phase="intent", detail=detail)
    status = 500
    try:
        with unnoted():
            taken = await hook.take(delivery)
        status = 202
    except HoldfastError as problem:
        status = status_of(problem)
        raise
    finally:
        await audit.add(by, HOOK.name, path, phase="outcome", about=intent, status=status)
    return taken


def add_hooks(app: FastAPI, gate: Gate) -> None:
    async def deliver(request: Request) -> Response:
        return await take_delivery(request, gate)

    app.router.add_route(HOOK.place, deliver, methods=["POST"], include_in_schema=False)
