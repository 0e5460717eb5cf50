"""A support chat behind FastAPI: the answer comes as server-sent events, and a person approves large refunds.

uvicorn support:app
curl -X POST 'localhost:8000/chats/ann?text=A1+never+came'
curl -N localhost:8000/runs/RUN/events                          # one of them is approval_requested
curl localhost:8000/inquiries
curl -X POST 'localhost:8000/inquiries/INQUIRY?approve=true&by=bob'

While the refund waits nothing runs. The server may be restarted meanwhile.
"""

from decimal import Decimal
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response

from holdfast import Holdfast, Limits
from holdfast.errors import NotFound
from holdfast.http import sse
from holdfast.models import Script, call, say
from holdfast.values import as_json

hf = Holdfast()
hf.script(
    "support",
    Script(call("find_order", number="A1"), call("refund", number="A1", amount="80"), say("You get 80 euros back.")),
)


@hf.tool(effect="read", timeout="10s")
async def find_order(number: str) -> dict[str, str]:
    """Look up an order by its number."""
    return {"number": number, "total": "80"}


@hf.tool(effect="idempotent", approve=lambda call: call.input["amount"] > 50, within="2d", otherwise="deny")
async def refund(number: str, amount: Decimal) -> str:
    """Refund an order, in euros."""
    return f"{amount} euros for {number}"


support = hf.agent(
    "support",
    model="scripted:support",  # or claude-sonnet-5-5, with ANTHROPIC_API_KEY
    tools=[find_order, refund],
    instructions="You help customers of a shop.",
    limits=Limits(cost="0.50", turns=12),
)

app = FastAPI(lifespan=hf.lifespan)


@app.post("/chats/{chat}")
async def send(chat: str, text: str) -> dict[str, str]:
    run = await hf.session(chat).send(text, support)
    return {"run": run.id}


@app.get("/runs/{run_id}/events")
async def events(run_id: str, request: Request) -> Response:
    return sse(hf.runs[run_id], request)


@app.get("/inquiries")
async def inquiries(after: str | None = None) -> Any:
    return as_json(await hf.inquiries.list(after=after))


@app.post("/inquiries/{inquiry_id}")
async def decide(inquiry_id: str, *, approve: bool, by: str) -> dict[str, str]:
    try:
        decided = await (hf.approve(inquiry_id, by=by) if approve else hf.deny(inquiry_id, by=by))
    except NotFound as missing:
        raise HTTPException(404, str(missing)) from None
    return {"state": decided.state}
