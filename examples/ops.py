r"""The JSON API mounted in an app of your own, which says who asks.

uvicorn ops:app
curl -c jar --json '{"name": "ann", "password": "red-tulip"}' localhost:8000/login
curl -b jar localhost:8000/ops/api/v1/system
curl -b jar -H 'Origin: http://localhost:8000' --json '{"agent": "guide", "prompt": "Hello"}' \
    localhost:8000/ops/api/v1/runs
"""

import secrets

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from holdfast import Holdfast
from holdfast.http import Principal
from holdfast.models import Script, say

hf = Holdfast()
hf.script("guide", Script(say("Hello, I am the guide.")))
guide = hf.agent("guide", model="scripted:guide")

app = FastAPI(lifespan=hf.lifespan)  # with a worker of its own


PASSWORDS = {"ann": "red-tulip", "bob": "blue-iris"}  # in a real app: the users of your own login
logged_in: dict[str, str] = {}  # who has logged in, by the secret in their cookie


class Login(BaseModel):
    name: str
    password: str


@app.post("/login")
async def log_in(login: Login) -> Response:
    if not secrets.compare_digest(PASSWORDS.get(login.name, secrets.token_hex()).encode(), login.password.encode()):
        return Response("wrong name or password", 401)
    session = secrets.token_urlsafe()
    logged_in[session] = login.name
    response = Response(status_code=204)
    response.set_cookie("session", session, httponly=True, samesite="strict")
    return response


def who(request: Request) -> Principal | None:
    """The user of your own login. Never believe a header that a client may set itself."""
    match logged_in.get(request.cookies.get("session", "")):
        case "ann":
            return Principal("ann", "admin")
        case "bob":
            return Principal("bob", "viewer", tenant="acme")
        case _:
            return None


app.mount("/ops", hf.web(who=who))
