"""The matrix of access: every route and page, in every role, bound in every way, about one's own things and others'.

What each cell must answer follows from the one table of rules. A route that has no rule, or of which it is not known
how to call it so that it succeeds, is an error of the matrix itself.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from starlette.routing import BaseRoute

import holdfast
from holdfast import Holdfast
from holdfast.access.principals import ROLES, Principal, Role
from holdfast.http.app import served
from holdfast.http.pages.serving import ROUTES
from holdfast.http.security.roles import METRICS, TABLE, Rule
from holdfast.kernel.retry import RetryPolicy
from holdfast.models.script import Script, call, say
from tests.http.browsing import HTML
from tests.http.client import Answer, Client
from tests.http.foreign import API, GATEWAY, Wish, World, noun_of, wishes
from tests.http.test_faces import PLAN
from tests.http.test_foreign_ids import FOR_ALL, bodies
from tests.http.test_hooks import SECRET as SIGNING
from tests.support.apps import PATIENCE, eventually, in_state, working

Binding = Literal["tenant", "pinned", "none", "elsewhere"]
Whose = Literal["own", "other"]
Made = Callable[[], Awaitable[str]]

HOST, WORKER, LANE = "fleet-host-77", "worker-7f3a", "lane-of-the-fleet"
BROKEN = """
spec: flatmachine
spec_version: "0.8.3"
data:
  name: broken
  states:
    begin:
      type: initial
      action: break
      transitions:
        - to: done
    done:
      type: final
"""
MINE = "what is said in the house of eve"
# What has no line in the table of rules: for everybody, for whoever is known, and for whom a signature speaks.
EVERYBODY = frozenset(
    (
        *("GET /healthz", "GET /readyz", "GET /login", "POST /login", "POST /logout"),
        *("GET /assets/{version}/{name}", f"GET {GATEWAY}/health"),
    )
)
KNOWN = frozenset(("GET /openapi.json",))
SIGNED = frozenset(("POST /hooks/{name}",))
_PAGES = {f"{each.method} {each.path}": each.name for each in ROUTES}


class Example(NamedTuple):
    """How to call a route about one's own: what is sent, and what it is about if not the usual."""

    body: Any = None
    query: Mapping[str, str] = {}
    made: Made | None = None
    refused: int = 0  # the status for what is in the wrong state here; it was found


class Cell(NamedTuple):
    """Who asks, and about whose. `elsewhere` is somebody of another tenant than the app is bound to."""

    binding: Binding
    role: Role | None
    whose: Whose

    def __str__(self) -> str:
        return f"{self.role or 'nobody'}, {self.binding}, {self.whose}"


@dataclass
class Totals:
    requests: int = 0
    wrong: list[str] = field(default_factory=list)
    by_status: Counter[int] = field(default_factory=Counter)

    def __str__(self) -> str:
        told = ", ".join(f"{status}: {times}" for status, times in sorted(self.by_status.items()))
        return f"{self.requests} requests, {len(self.wrong)} wrong ({told})"


def rule_of(method: str, path: str) -> Rule | None:
    """The line of the table for a route; None: it has none for a reason. `KeyError` if nobody has thought of it."""
    name = f"{method} {plain(path)}"
    if name in EVERYBODY | KNOWN | SIGNED:
        return None
    if name == "GET /metrics":
        return METRICS
    if path.startswith(GATEWAY):
        return TABLE[name]
    return TABLE[f"{method} {path.removeprefix(API)}" if path.startswith(API) else _PAGES[name]]


def plain(path: str) -> str:
    """A path with its parameters as the table has them."""
    return re.sub(r":\w+}", "}", path)


class Matrix:
    """`hf` and its world, in which acme and eve have the same kinds of things."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.totals = Totals()
        self._folder = folder
        self._names = count()
        self._taken: set[str] = set()  # keys of others that a tenant has taken for itself: each has its own

    async def fill(self) -> None:
        """What acme has, what eve has of the same kinds, and of eve's what has failed and says where it stood."""
        self._declare()
        hf = self.world.hf
        self.theirs = await self.world.fill()
        self.mine = await self.world.fill("eve", MINE, "my")
        pinned = self.world.by == "metadata"
        tenant = "" if pinned else "eve"
        await hf.enqueue("kept", {}, lane=LANE, tenant=tenant)
        failed = [(await hf.enqueue("fails", {"text": "x"}, tenant=tenant)).id]
        session = await self.world.session("eve", "my-troubles")
        hf.tenant("eve").allow(tools=["fall"], models=["scripted:fails", "scripted:x"])
        helper = await self._part.agents.create("my-helper", model="scripted:fails", tools=["fall"])
        where: Any = {} if pinned else {"tenant": tenant}
        run = await (await self._part.agents.named("my-helper")).enqueue("Fall.", session=session, **where)
        machine = {"machine": "broken", "input": {}}
        if not pinned:
            failed.append((await self.world.client("eve").post(f"{API}/executions", machine)).json["id"])
        await (await hf.agents.named("treasurer")).enqueue(MINE, mode="batch", **where)
        talk = await self._part.agents.named("treasurer")
        turn = await talk.enqueue("Pay it.", session=(await self._part.sessions.get("my-talk")).id, **where)
        async with working(hf), hf.pool("our-pool", min=0, max=1):
            await run.result()
            await eventually(partial(hf.batches.list))
            for id in failed:
                await in_state(hf, id, "failed")
        noun = dict(self.mine.by_noun)
        noun |= {
            "tools": ["fall"],
            "agents": [helper.id],
            "runs": [*noun["runs"], run.id],
            "jobs": [*failed, *noun["jobs"]],
            "executions": [*noun["executions"], *failed[1:]],
        }
        noun |= {"calls": [*noun["calls"], (await run.calls())[0].id], "sessions": [*noun["sessions"], session]}
        self.mine = replace(self.mine, by_noun=noun | {"gateway runs": [turn.id]})
        self.ours = await self._ours()
        self.digest = (await hf.inquiries.list(run=self.mine.run))[0].digest
        self._fleet = {HOST, LANE, WORKER, str(Path(__file__).parent), str(Path(holdfast.__path__[0]))}
        self._fleet |= {str(self._folder / each) for each in ("greeter", "broken", "store")}
        self._fleet |= {each.id for each in await hf.batches.list()}
        self._fleet |= {each.id for each in await hf.workers.list(all=True)}

    def _declare(self) -> None:
        hf = self.world.hf

        for number in range(4):
            hf.schedule("0 3 * * *", name=f"spare-{number}")(_nothing(hf, number))
        self._spare = iter([f"spare-{number}" for number in range(4)])

        @hf.schedule("0 3 * * *", name="my-schedule")
        @hf.job(name="nightly", queue="nobodys")
        async def nightly() -> None: ...

        @hf.job(name="kept", concurrency=1, queue="nobodys")
        async def kept() -> None: ...

        @hf.job(name="fails", retry=RetryPolicy.none())
        async def fails(text: str) -> None:
            raise ValueError(text)

        @hf.tool(retry=RetryPolicy.none())
        def fall() -> str:
            """Fall."""
            raise ValueError("it fell")

        hf.script("fails", Script(call("fall"), say("It fell.")))
        hf.agent("falls", model="scripted:fails", tools=[fall])
        (self._folder / "broken.yml").write_text(BROKEN)
        hf.machine(self._folder / "broken.yml", hooks=_break)
        hf.webhook("my-hook", nightly, secret=SIGNING, tenant="" if self.world.by == "metadata" else "eve")

    async def _ours(self) -> dict[str, list[str]]:
        """What belongs to nobody, by the names that only who belongs to nobody may use."""
        if self.world.by == "metadata":
            return {}  # who has pinned metadata is asked about what belongs to sessions, and nobody else asks
        nobody = self._client(Cell("none", "admin", "own"))
        assert (await nobody.post(f"{API}/plans", {**PLAN, "plan_id": "our-plan"})).status == 201
        action = {"plan": "our-plan", "inputs": [1], "id": "our-action"}
        assert (await nobody.post(f"{API}/actions", action)).status == 201
        assert (await nobody.post(f"{GATEWAY}/sessions", {"user_id": "ann", "session_id": "our-talk"})).status == 201
        (batch,) = await self.world.hf.batches.list()
        ours = {"plans": ["our-plan"], "actions": ["our-action"], "pools": ["our-pool"], "batches": [batch.id]}
        return {**ours, "gateway sessions": ["our-talk"], "gateway runs": self.mine.by_noun["gateway runs"]}

    async def new_agent(self) -> str:
        made = await self._part.agents.create(f"spare-{next(self._names)}", model="scripted:x")
        return str(made.id)

    async def new_session(self) -> str:
        return await self.world.session("eve", f"spare-{next(self._names)}")

    async def new_plan(self) -> str:
        plan = {**PLAN, "plan_id": f"spare-{next(self._names)}"}
        for client in (self.world.client("eve"), self._client(Cell("none", "admin", "own"))):
            assert (await client.post(f"{API}/plans", plan)).status == 201
        return str(plan["plan_id"])

    async def new_schedule(self) -> str:
        return next(self._spare)

    async def new_budget(self) -> str:
        return (await self.world.hf.budgets.set("1.00", tenant=f"spare-{next(self._names)}")).id

    @property
    def _part(self) -> Any:
        return self.world.part("eve")

    def cells(self) -> Iterator[Cell]:
        bindings: tuple[Binding, ...] = ("pinned",) if self.world.by == "metadata" else ("tenant", "none", "elsewhere")
        for binding in bindings:
            yield Cell(binding, None, "own")
            for role in ROLES:
                yield Cell(binding, role, "own")
                if binding in ("tenant", "pinned"):
                    yield Cell(binding, role, "other")

    async def run(self, part: int = 0, of: int = 1) -> Totals:
        """Ask every route in every cell; with `of`, each cell asks every so many of the routes."""
        clients = {cell: (self._client(cell), self._client(cell, **HTML)) for cell in self.cells()}
        for index, (method, path, route) in enumerate(self.world.routes()):
            name, rule = f"{method} {plain(path)}", rule_of(method, path)
            refused = EXAMPLES[name](self).refused if name in EXAMPLES else 0
            for number, (cell, (program, browser)) in enumerate(clients.items()):
                if (index + number) % of != part:
                    continue
                client = browser if name in _PAGES else program
                async for wish in self._wishes(cell, rule, method, path, route):
                    client.address = f"10.0.{next(self._names) // 250 % 250}.{next(self._names) % 250}"
                    await self._ask(cell, rule, wish, client, refused)
        return self.totals

    def _client(self, cell: Cell, **headers: str) -> Client:
        options = self.world.options("eve")
        tenant = {"tenant": "eve", "elsewhere": "acme"}.get(cell.binding)

        def who(_: Any) -> Principal | None:
            name = f"{cell.role} {next(self._names)}"
            return None if cell.role is None else Principal(name, cell.role, tenant)

        bound_to = "eve" if cell.binding == "elsewhere" else None
        return Client(served(self.world.hf, replace(options, who=who, tenant=bound_to)), headers=headers)

    async def _wishes(
        self, cell: Cell, rule: Rule | None, method: str, path: str, route: BaseRoute
    ) -> AsyncIterator[Wish]:
        name = f"{method} {plain(path)}"
        if cell.whose == "other":
            for wish in () if path in FOR_ALL else wishes(method, path, route, self.theirs, bodies):
                if wish.id or wish.by_path:
                    yield wish
            return
        changes = method in ("POST", "PUT", "PATCH", "DELETE")
        example = EXAMPLES[name](self) if changes or name in EXAMPLES else Example()
        form = method == "POST" and not path.startswith((API, GATEWAY, "/hooks"))
        for place in await self._places(cell, rule, method, path, example):
            yield Wish(method, place, "", example.query, example.body, form)

    async def _places(self, cell: Cell, rule: Rule | None, method: str, path: str, example: Example) -> list[str]:
        """The paths by which one's own is named."""
        parameters = re.findall(r"{\w+(?::\w+)?}", path)
        if len(parameters) > 1:
            return ["/assets/x/holdfast.css"]
        if not parameters:
            return [path]
        if example.made and expected(cell, rule, f"{method} {path}", by_path=False) is None:
            return [path.replace(parameters[0], await example.made())]
        noun = noun_of(path)
        ids = self.mine.by_noun[noun]
        if cell.binding == "none":  # a key is that of a tenant: who has none uses ids, or what belongs to nobody
            ids = self.ours.get(noun) or [id for id in ids if not id.startswith("my-") or noun == "schedules"]
        return [path.replace(parameters[0], id) for id in (ids if method == "GET" else ids[:1])]

    async def _ask(self, cell: Cell, rule: Rule | None, wish: Wish, client: Client, refused: int) -> None:
        endless = (
            wish.method == "GET" and wish.path.startswith(API) and wish.path.endswith(("/stream", f"{API}/events"))
        )
        answer = await (glimpse(client, wish) if endless else wish.ask(client))
        status = 401 if "/login" in answer.headers.get("location", "") and wish.path != "/logout" else answer.status
        self.totals.requests += 1
        self.totals.by_status[status] += 1
        wanted = expected(cell, rule, f"{wish.method} {wish.path}", by_path=wish.by_path)
        named = cell.whose == "other" and status < 500  # in the query or in the body, where much is possible
        passed = named or status < 400 or status in (409, refused)
        text = answer.body.decode(errors="replace") + str(answer.headers)
        told = [each for each in self._secrets(cell) if each in text and each not in str(wish)]
        if (passed if wanted is None else status == wanted) and not told:
            self._taken |= {each for each in self.theirs.telling if wish.method != "GET" and each in str(wish)}
            return
        self.totals.wrong.append(
            f"{cell}: {wish.method} {wish.path} {wish.query} {wish.body} is answered with {status} instead of "
            f"{wanted or 'success'} and tells {told}: {answer.body[-300:]!r}"
        )

    def _secrets(self, cell: Cell) -> set[str]:
        """What no answer in this cell may contain, unless it was asked for."""
        if cell.role is None or cell.binding == "elsewhere":
            return self.theirs.telling | self.mine.telling | {MINE} | self._fleet
        return set() if cell.binding == "none" else (self.theirs.telling | self._fleet) - self._taken


def _nothing(hf: Holdfast, number: int) -> Any:
    @hf.job(name=f"spare-{number}", queue="nobodys")
    async def nothing() -> None: ...

    return nothing


def _break(action: str, context: dict[str, Any]) -> Any:
    raise ValueError("it broke")


def expected(cell: Cell, rule: Rule | None, name: str, *, by_path: bool) -> int | None:
    """The status that the rule demands in this cell; None: the request is let through."""
    if rule is None:
        return _without_rule(cell, name)
    if cell.role is None:
        return 401
    bound = cell.binding != "none"
    if (rule.fleet and bound) or (not rule.sessions and cell.binding == "pinned"):
        return 404
    if rule.scope not in ("api", "scale") or ROLES.index(cell.role) < ROLES.index(rule.role):
        return 403
    return 404 if by_path or cell.binding == "elsewhere" else None


def _without_rule(cell: Cell, name: str) -> int | None:
    """What is answered where no line of the table speaks."""
    if name == "GET /openapi.json":
        return 401 if cell.role is None else None
    if name.startswith("POST /hooks/"):
        return 404 if cell.binding == "pinned" else 401
    return 401 if name in ("POST /login", "GET /login") else None  # neither token nor link


def _examples() -> dict[str, Callable[[Matrix], Example]]:
    """For each route that changes something, or that needs more than a path."""

    def mine(name: str, index: int = 0) -> Callable[[Matrix], str]:
        return lambda matrix: (matrix.mine.by_noun.get(name) or matrix.mine.by_field[name])[index]

    run, session, plan = mine("runs"), mine("sessions"), mine("plans")
    talk: dict[str, Any] = {"agent": "treasurer", "prompt": "Pay it."}
    fixed: dict[str, Example] = {
        "POST /api/v1/runs": Example(talk),
        "POST /api/v1/runs/{id}/steer": Example({"prompt": "Wait."}, refused=422),
        "POST /api/v1/sessions": Example({"metadata": {"topic": "cats"}}),
        "PATCH /api/v1/sessions/{id}": Example({"metadata": {"topic": "dogs"}}),
        "POST /api/v1/sessions/{id}/send": Example(talk),
        "POST /api/v1/agents": Example({"name": "poet", "model": "scripted:x"}),
        "PATCH /api/v1/agents/{id}": Example({"description": "writes"}),
        "POST /api/v1/jobs/retry": Example({"dry_run": True}),
        "POST /api/v1/jobs/cancel": Example({"dry_run": True, "queue": "nobodys"}),
        "PUT /api/v1/budgets": Example({"cost": "2.00", "tenant": "eve"}),
        "POST /api/v1/executions": Example({"machine": "greeter", "input": {"name": "x"}}),
        "POST /api/v1/plans": Example({**PLAN, "plan_id": "another"}),
        "POST /api/v1/queues/{name}/pause": Example({"reason": "a release"}),
        "GET /api/v1/sessions/values": Example(query={"key": "note"}, refused=422),
        "POST /gateway/api/v1/sessions": Example({"user_id": "eve"}),
        "POST /login": Example({"token": "hft_wrong"}),
        "POST /hooks/{name}": Example({}),
        "POST /runs/{id}/steer": Example({"prompt": "Wait."}, refused=422),
        "POST /jobs/retry": Example({"queue": "nobodys"}),
        "POST /jobs/cancel": Example({"queue": "nobodys"}),
        "POST /sessions": Example({"prompt": "Pay it.", "agent": "treasurer"}),
        "POST /sessions/{id}/send": Example(talk),
        "POST /queues/{name}/pause": Example({"reason": "a release"}),
        "POST /machines/{name}/start": Example({"input": '{"name": "x"}'}),
        "POST /plans/{id}/apply": Example({"inputs": "a\nb"}),
        "POST /budgets": Example({"cost": "3.00", "scope": "tenant", "tenant": "eve"}),
        "GET /jobs/cancel": Example(query={"queue": "nobodys"}),
        "GET /why": Example(query={"id": ""}),
    }
    of_mine: dict[str, Callable[[Matrix], Example]] = {
        "POST /api/v1/runs/retry": lambda m: Example({"dry_run": True, "session": session(m)}),
        "POST /api/v1/runs/cancel": lambda m: Example({"dry_run": True, "session": session(m)}),
        "POST /runs/retry": lambda m: Example({"agent": "nobody", "session": session(m)}),
        "POST /runs/cancel": lambda m: Example({"agent": "nobody", "session": session(m)}),
        "GET /runs/retry": lambda m: Example(query={"session": session(m)}),
        "GET /runs/cancel": lambda m: Example(query={"session": session(m)}),
        "GET /api/v1/runs/compare": lambda m: Example(query={"a": run(m), "b": run(m)}),
        "GET /runs/compare": lambda m: Example(query={"a": run(m), "b": run(m)}),
        "GET /find": lambda m: Example(query={"q": run(m)}),
        "GET /api/v1/system/search": lambda m: Example(query={"q": run(m)}),
        "POST /api/v1/sessions/{id}/preserve": lambda m: Example({"message": m.mine.by_field["message"][0]}),
        "POST /api/v1/actions": lambda m: Example({"plan": plan(m), "inputs": [{"file": "x"}]}),
        "POST /gateway/api/v1/sessions/{id}/resume": lambda m: Example({"input_id": m.mine.by_field["input_id"][0]}),
        "POST /sessions/{id}/stop": lambda m: Example({"run": run(m)}, refused=422),
        "DELETE /api/v1/schedules/{name}": lambda m: Example(made=m.new_schedule),
        "POST /schedules/{name}/delete": lambda m: Example({}, made=m.new_schedule),
        "DELETE /api/v1/agents/{id}": lambda m: Example(made=m.new_agent),
        "DELETE /api/v1/sessions/{id}": lambda m: Example(made=m.new_session),
        "POST /sessions/{id}/delete": lambda m: Example({}, made=m.new_session),
        "DELETE /api/v1/plans/{id}": lambda m: Example(made=m.new_plan),
        "POST /plans/{id}/delete": lambda m: Example({}, made=m.new_plan),
        "DELETE /api/v1/budgets/{id}": lambda m: Example(made=m.new_budget),
        "POST /budgets/{id}/delete": lambda m: Example({}, made=m.new_budget),
        "POST /agents/{id}/start": lambda m: Example({"prompt": "Pay it."}),
    }
    decided = {"approve": {}, "deny": {}, "answer": {"answer": "yes"}}
    for root, (verb, said) in product((API, ""), decided.items()):
        of_mine[f"POST {root}/inquiries/{{id}}/{verb}"] = partial(_decision, said)
    # What is in another state than these take: it was found, and stays as it was.
    refusing = {"runs/{id}": ("interrupt", "retry"), "executions/{id}": ("resume",), "sessions/{id}": ("restore",)}
    fixed |= {name: Example(body, refused=422) for name, body in _verbs(refusing)}
    fixed[f"GET {API}/runs/{{id}}/export"] = Example(refused=422)
    # Nothing of this kind is closed, or at work.
    absent = {"lanes/{name}": ("open",), "workers/{id}": ("drain",)}
    fixed |= {name: Example(body, refused=404) for name, body in _verbs(absent)}
    # These take nothing but what they are about.
    bare = {
        "runs/{id}": ("cancel", "fork"),
        "sessions/{id}": ("compact", "fork"),
        "jobs/{id}": ("cancel", "retry"),
        "executions/{id}": ("cancel",),
        "schedules/{name}": ("pause", "resume", "run"),
        "queues/{name}": ("resume",),
    }
    fixed |= {name: Example(body) for name, body in _verbs(bare)}
    fixed |= {"DELETE /gateway/api/v1/sessions/{id}": Example(), "POST /api/v1/system/prune": Example()}
    fixed["POST /logout"] = Example({})
    return {**{name: partial(_same, each) for name, each in fixed.items()}, **of_mine}


def _verbs(verbs: Mapping[str, Collection[str]]) -> Iterator[tuple[str, Any]]:
    """Routes of the API and of pages that take nothing, with the body that says so."""
    for root, (place, each) in product((API, ""), verbs.items()):
        yield from ((f"POST {root}/{place}/{verb}", None if root else {}) for verb in each)


def _decision(said: Mapping[str, Any], matrix: Matrix) -> Example:
    return Example({"digest": matrix.digest, **said})


def _same(example: Example, _: Matrix) -> Example:
    return example


EXAMPLES = _examples()


async def glimpse(client: Client, wish: Wish) -> Answer:
    """The first pieces of a stream, and then leave it."""
    parts: list[Any] = []
    enough = asyncio.Event()
    asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:
        for message in asked:
            return message
        await enough.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        parts.append(message)
        if b"data:" in message.get("body", b""):
            enough.set()

    headers = [(name.encode(), value.encode()) for name, value in {"host": "localhost", **client.headers}.items()]
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
    }
    scope |= {"path": wish.path, "raw_path": wish.path.encode(), "root_path": "", "query_string": b""}
    async with asyncio.timeout(PATIENCE):
        await client.app(
            {**scope, "headers": headers, "client": (client.address, 1), "server": ("x", 80)}, receive, send
        )
    told = {name.decode().lower(): value.decode() for name, value in parts[0]["headers"]}
    return Answer(parts[0]["status"], told, b"".join(each.get("body", b"") for each in parts[1:]))
