"""Somebody else's work of every kind, and requests that name it: for each route, page and stream that there is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Route, WebSocketRoute

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.agents.api.lists import Tenant
from holdfast.facades.universal_agent.in_process import InProcessGateway
from holdfast.http.app import framework, served
from holdfast.http.security.gate import Gate, WebOptions
from tests.http.browsing import treasurer
from tests.http.client import Answer, Client
from tests.http.test_faces import PLAN
from tests.http.test_hooks import MACHINE
from tests.http.test_hooks import SECRET as SIGNING
from tests.support.apps import PATIENCE, eventually, working

By = Literal["tenant", "metadata", "principal"]  # what binds who asks: the app, or who they are
Bodies = Callable[[str, str], Any]

SECRET = "nobody's business but theirs"
API = "/api/v1"
GATEWAY = "/gateway/api/v1"
# Query parameters that name nothing, or what the program has for everybody. A new one is an id until it stands here.
PLAIN = frozenset(
    (
        *("after", "limit", "count", "whole", "state", "mode", "since", "until", "archived", "partial", "wait", "by"),
        *("step", "of", "queue", "kind", "name", "metadata", "source", "all", "before", "value", "key", "machine"),
        *("error", "message", "system"),
    )
)
# Fields with which a body may name something, beyond those that it must have.
NAMING = {
    f"{API}/runs": {"session", "agent"},
    f"{API}/runs/retry": {"session", "agent", "after"},
    f"{API}/runs/cancel": {"session", "agent"},
    f"{API}/sessions": {"parent"},
    f"{API}/actions": {"plan"},
    f"{GATEWAY}/sessions": {"session_id"},
    "/runs/retry": {"session", "agent"},
    "/runs/cancel": {"session", "agent"},
}


@dataclass(frozen=True)
class Theirs:
    """Ids by the first word of the paths that take them, and by the fields that do.

    `shared` are such words whose things are there for everybody: they may be shown, and say no secret.
    """

    by_noun: Mapping[str, list[str]]
    by_field: Mapping[str, list[str]]
    shared: frozenset[str]
    run: str
    session: str

    @property
    def telling(self) -> set[str]:
        """What no answer may contain, unless it was asked for."""
        taken = [ids for name, ids in (*self.by_noun.items(), *self.by_field.items()) if name not in self.shared]
        ids = {id for ids in taken for id in ids}
        return {SECRET, *(id for id in ids if id.count("-") == 4 or id.startswith("their-"))}


@dataclass(frozen=True)
class Wish:
    """A request, and the id in it that is somebody else's."""

    method: str
    path: str
    id: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    form: bool = False
    by_path: bool = False  # it is about the thing itself, which then is not there

    def about(self, id: str) -> Wish:
        """The same wish about something else."""

        def said(value: Any) -> Any:
            return id if value == self.id else value

        path = "/".join(said(part) for part in self.path.split("/"))
        query = {name: said(value) for name, value in self.query.items()}
        body = {name: said(value) for name, value in self.body.items()} if isinstance(self.body, dict) else self.body
        return replace(self, path=path, query=query, body=body, id=id)

    async def ask(self, client: Client) -> Answer:
        async with asyncio.timeout(PATIENCE):  # a stream that is opened would not end
            if self.method == "WS":
                return await _knock(client, self.path)
            if not self.form:
                return await client.call(self.method, self.path, self.body, query=self.query)
            headers = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
            return await client.call(self.method, self.path, raw=urlencode(self.body).encode(), headers=headers)


async def _knock(client: Client, path: str) -> Answer:
    """Open a WebSocket; the status that its close code stands for, 101 if it was let in, and what was said."""
    sent: list[Any] = []
    headers = [(name.encode(), value.encode()) for name, value in {"host": "localhost", **client.headers}.items()]
    scope = {"type": "websocket", "path": path, "root_path": "", "headers": headers, "query_string": b""}
    coming = iter([{"type": "websocket.connect"}])

    async def receive() -> Any:
        for message in coming:
            return message
        return {"type": "websocket.disconnect", "code": 1005}

    async def send(message: Any) -> None:
        sent.append(message)

    await client.app({**scope, "client": (client.address, 1), "subprotocols": []}, receive, send)
    texts = "".join(str(each.get("text", "")) for each in sent)
    codes = [each["code"] for each in sent if each["type"] == "websocket.close"]
    status = {4004: 404, 4401: 401, 4003: 403, 4403: 403}.get(codes[-1] if codes else 0, 101)
    return Answer(status, {}, texts.encode())


class World:
    """One app with the work of two who must not see each other: tenants, or users of one tenant."""

    def __init__(self, hf: Holdfast, folder: Path, by: By) -> None:
        self.hf = hf
        self.by = by
        self._names = count()
        self._gateway = InProcessGateway(hf, agent="treasurer", workspace_base=folder / "work", confined=True)
        (folder / "greeter.yml").write_text(MACHINE)
        hf.machine(folder / "greeter.yml")
        self._agent = treasurer(hf, None)

        @hf.job
        async def book(amount: int) -> None: ...

        hf.webhook("their-hook", book, secret=SIGNING, tenant="" if by == "metadata" else "acme")

    def part(self, who: str) -> Holdfast | Tenant:
        return self.hf if self.by == "metadata" else self.hf.tenant(who)

    def client(self, who: str, **headers: str) -> Client:
        return Client(served(self.hf, self.options(who)), headers=headers)

    def options(self, who: str) -> WebOptions:
        """Each request is another principal's, so that none asks too often."""
        tenant = who if self.by == "principal" else None
        return WebOptions(
            who=lambda _: Principal(f"{who} {next(self._names)}", "admin", tenant),
            tenant=who if self.by == "tenant" else None,
            metadata={"user": who} if self.by == "metadata" else {},
            gateway=self._gateway,
        )

    def routes(self) -> list[tuple[str, str, BaseRoute]]:
        """Every method and path that the framework answers: those that read first, and what makes sessions last."""
        found: list[tuple[str, str, BaseRoute]] = []
        for route in framework(Gate(self.hf, self.options("eve"))).routes:
            if isinstance(route, WebSocketRoute):
                found.append(("WS", route.path, route))
            elif isinstance(route, Route):
                found += [(method, route.path, route) for method in (route.methods or set()) - {"HEAD"}]
            else:
                raise AssertionError(f"{route} is of a kind that these tests do not know")
        return sorted(found, key=lambda each: (each[0] != "GET", each[1] == f"{API}/runs", each[1], each[0]))

    async def session(self, who: str, key: str) -> str:
        metadata = {"user": who, "note": SECRET if who == "acme" else ""}
        return (await (await self.part(who).session(key, metadata=metadata)).refresh()).id

    async def fill(self, who: str = "acme", said: str = SECRET, prefix: str = "their") -> Theirs:
        """What acme has, or another. It says the secret wherever there is room for a text."""
        theirs, session = self.client(who), await self.session(who, f"{prefix}-chat")
        await self.session(who, f"{prefix}-notes")  # a tenant may have a session of this key, and then it is theirs
        where: Any = {} if self.by == "metadata" else {"tenant": who}
        async with working(self.hf):
            run = await self._agent.enqueue(said, session=session, metadata={"note": said}, **where)

            async def asked() -> bool:
                return bool(await self.hf.inquiries.list(run=run.id))

            await eventually(asked)
            worker = (await self.hf.workers.list())[0]
        (inquiry,), (call,) = await run.inquiries(), await run.calls()
        message = (await self.hf.sessions[session].messages())[0].id
        for name in (f"{prefix}-talk", f"{prefix}-diary"):
            made = await theirs.post(f"{GATEWAY}/sessions", {"user_id": who, "session_id": name})
            assert made.status == 201, made.body
        about = "" if self.by == "metadata" else said  # an agent belongs to no session
        self.hf.tenant(who).allow(models=["scripted:x"])
        agent = await self.part(who).agents.create(f"{prefix}-agent", model="scripted:x", description=about)
        execution, budget = await self._fill_tenant(theirs, who, said, prefix)
        by_noun = {
            "runs": [run.id],
            "sessions": [session, f"{prefix}-chat"],
            "agents": [agent.id, f"{prefix}-agent"],
            "jobs": [run.id, execution],
            "inquiries": [inquiry.id, call.id, run.id],
            "calls": [call.id],
            "tools": ["pay"],
            "machines": ["greeter"],
            "executions": [execution, f"{prefix}-trip"],
            "plans": [f"{prefix}-plan"],
            "actions": [f"{prefix}-action"],
            "budgets": [budget],
            "tenants": [who],
            "pools": ["default"],
            "queues": ["default"],
            "lanes": [f"tenant:{who}"],
            "workers": [worker.id],
            "schedules": [f"{prefix}-schedule"],
            "batches": [f"{prefix}-batch"],
            "scale": ["default"],
            "hooks": [f"{prefix}-hook"],
            "gateway sessions": [f"{prefix}-talk"],
            "gateway runs": [run.id],
        }
        by_field = {
            "session": [session, f"{prefix}-notes"],
            "session_id": [f"{prefix}-diary"],
            "parent": [run.id, session],
            **{name: [run.id] for name in ("run", "root", "a", "b")},
            "id": [run.id, execution],
            "q": [run.id, session, f"{prefix}-chat", f"{prefix}-agent"],
            "agent": [agent.id],
            "tenant": [who],
            "plan": [f"{prefix}-plan"],
            "message": [message],
            "input_id": [inquiry.id],
        }
        everybodys = {"agents", "agent", "tools", "q"} if self.by == "metadata" else {"hooks"} & {self._unbound}
        return Theirs(by_noun, by_field, frozenset({"machines", *everybodys}), run.id, session)

    @property
    def _unbound(self) -> str:
        """Deliveries have no principal: only an app that is bound has no webhooks of others."""
        return "hooks" if self.by == "principal" else ""

    async def _fill_tenant(self, theirs: Client, who: str, said: str, prefix: str) -> tuple[str, str]:
        """What belongs to a tenant and to no session."""
        if self.by == "metadata":
            return "019a0000-0000-7000-8000-000000000001", "none"
        wanted = {"machine": "greeter", "input": {"name": said}, "execution_id": f"{prefix}-trip"}
        execution = await theirs.post(f"{API}/executions", wanted)
        plan = {**PLAN, "plan_id": f"{prefix}-plan", "plan_description": said}
        assert (await theirs.post(f"{API}/plans", plan)).status == 201
        action = {"plan": f"{prefix}-plan", "inputs": [{"file": said}], "id": f"{prefix}-action"}
        assert (await theirs.post(f"{API}/actions", action)).status == 201
        return execution.json["id"], (await self.hf.budgets.set("1.00", tenant=who)).id

    async def state(self, theirs: Theirs) -> list[Any]:
        """All that acme has, as it is."""
        hf, session = self.hf, self.hf.sessions[theirs.session]
        return [
            await hf.runs.get(theirs.run),
            await hf.runs.list(session=theirs.session),
            await session.refresh(),
            await session.messages(),
            await hf.inquiries.list(run=theirs.run),
            await hf.agents.versions(theirs.by_noun["agents"][0]),
            await hf.sessions.get((await self.part("acme").sessions.get("their-talk")).id),
            [] if self.by == "metadata" else await hf.jobs.list(tenant="acme"),
            await hf.budgets.list(),
        ]


def wishes(method: str, path: str, route: BaseRoute, theirs: Theirs, bodies: Bodies) -> Iterator[Wish]:
    """Every way to name something of theirs to this route. `KeyError` if none is known: then it is not covered."""
    form = method == "POST" and not path.startswith((API, GATEWAY, "/hooks"))
    body = None if method in ("GET", "WS") else bodies(method, path)
    if parameters := re.findall(r"{\w+(?::\w+)?}", path):
        (parameter,), noun = parameters, noun_of(path)
        for id in theirs.by_noun[noun]:
            others = noun not in theirs.shared
            yield Wish(method, path.replace(parameter, id), id if others else "", {}, body, form, others)
        return
    yield Wish(method, path, "", {}, body, form)
    named = _query(route)
    for name in named - PLAIN:
        for id in theirs.by_field[name]:
            yield Wish(method, path, "" if name in theirs.shared else id, dict.fromkeys(named & {"a", "b", name}, id))
    for name in NAMING.get(path, set()) & set(theirs.by_field) if method != "GET" else ():
        for id in theirs.by_field[name]:
            yield Wish(method, path, "" if name in theirs.shared else id, {}, {**(body or {}), name: id}, form)


def noun_of(path: str) -> str:
    below = path.removeprefix(API).removeprefix(GATEWAY).split("/")[1]
    return f"gateway {below}" if path.startswith(GATEWAY) else below


def _query(route: BaseRoute) -> set[str]:
    return {each.alias for each in _asked_for(route.dependant)} if isinstance(route, APIRoute) else set()


def _asked_for(dependant: Any) -> Iterator[Any]:
    yield from dependant.query_params
    for each in dependant.dependencies:
        yield from _asked_for(each)
