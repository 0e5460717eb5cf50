"""A chat behind FastAPI: post a message, read the answer as server-sent events, reconnect without losing any.

uvicorn web:app
curl -X POST 'localhost:8000/chats/ann?text=Where+is+my+order+A1'
curl -N localhost:8000/runs/RUN/events
"""

from fastapi import FastAPI, HTTPException, Request, Response

from holdfast import Holdfast, Limits
from holdfast.errors import NotFound
from holdfast.http import sse
from holdfast.models import Script, call, say

hf = Holdfast()
hf.script("support", Script(call("find_order", number="A1"), say("Your order A1 is on its way.")))


@hf.tool(effect="read", timeout="10s")
async def find_order(number: str) -> dict[str, str]:
    """Look up an order by its number."""
    return {"number": number, "state": "shipped"}


support = hf.agent(
    "support",
    model="scripted:support",  # or claude-sonnet-5-5, with ANTHROPIC_API_KEY
    tools=[find_order],
    instructions="You help customers of a shop.",
    limits=Limits(cost="0.50", turns=12),
)

app = FastAPI(lifespan=hf.lifespan)


@app.post("/chats/{chat}")
async def send(chat: str, text: str) -> dict[str, str]:
    return {"run": (await support.enqueue(text, session=chat)).id}


@app.get("/runs/{run_id}/events")
async def events(run_id: str, request: Request) -> Response:
    return sse(hf.runs[run_id], request)  # continues after Last-Event-ID


@app.post("/runs/{run_id}/cancel")
async def cancel(run_id: str) -> dict[str, str]:
    try:
        return {"state": await hf.runs[run_id].cancel()}
    except NotFound as missing:
        raise HTTPException(404, str(missing)) from None
