"""The JSON API mounted in an app of your own, which says who asks.

uvicorn ops:app
curl -H 'X-User: ann' localhost:8000/ops/api/v1/system
curl -H 'X-User: ann' --json '{"agent": "guide", "prompt": "Hello"}' localhost:8000/ops/api/v1/runs
"""

from fastapi import FastAPI, Request

from holdfast import Holdfast
from holdfast.http import Principal
from holdfast.models import Script, say

hf = Holdfast()
hf.script("guide", Script(say("Hello, I am the guide.")))
guide = hf.agent("guide", model="scripted:guide")

app = FastAPI(lifespan=hf.lifespan)  # with a worker of its own


logged_in: dict[str, str] = {}  # whom your own login has let in, by the secret in their cookie


def who(request: Request) -> Principal | None:
    """In a real app: the user of your own login. Never believe a header that a client may set itself."""
    match logged_in.get(request.cookies.get("session", "")):
        case "ann":
            return Principal("ann", "admin")
        case "bob":
            return Principal("bob", "viewer", tenant="acme")
        case _:
            return None


app.mount("/ops", hf.web(who=who))
