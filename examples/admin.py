"""The pages of Holdfast inside an app of your own, behind its login: support staff see their tenant, admins everything.

uvicorn admin:app
open http://localhost:8000/login?name=ann, and then http://localhost:8000/admin/
"""

import secrets

from fastapi import FastAPI
from fastapi.responses import RedirectResponse, Response
from starlette.requests import HTTPConnection

from holdfast import Holdfast
from holdfast.http import Principal
from holdfast.models import Script, say

hf = Holdfast()
hf.script("support", Script(say("Your order is on its way.")))
support = hf.agent("support", model="scripted:support")

app = FastAPI(lifespan=hf.lifespan)
people = {"ann": Principal("ann", "admin"), "bob": Principal("bob", "operator", tenant="acme")}
logged_in: dict[str, Principal] = {}  # yours is in a database, and asks for a password


@app.get("/login")
async def log_in(name: str) -> Response:
    if name not in people:
        return Response("Nobody of this name works here.", 403)
    secret = secrets.token_hex()
    logged_in[secret] = people[name]
    onward = RedirectResponse("/admin/", 303)
    onward.set_cookie("staff", secret, httponly=True, samesite="lax")
    return onward


def who(connection: HTTPConnection) -> Principal | None:
    """Who asks, as this app knows them."""
    return logged_in.get(connection.cookies.get("staff", ""))


app.mount("/admin", hf.web(who=who))
