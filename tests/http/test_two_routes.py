"""What a tenant writes by one route is used by another: nothing of somebody else changes or shows by the second."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.access.principals import Principal, Role
from holdfast.http.app import served
from holdfast.http.security.roles import TABLE
from tests.http.browsing import HTML
from tests.http.client import Client
from tests.http.foreign import API, Theirs, World, noun_of
from tests.http.test_faces import PLAN
from tests.http.test_foreign_ids import FOR_ALL, bodies
from tests.shape.tree import listed
from tests.support.apps import MakeApp, working

ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")


@pytest.fixture
def world(make_app: MakeApp, tmp_path: Path) -> World:
    return World(make_app(embedded=False), tmp_path, "tenant")


def client_of(world: World, role: Role, **headers: str) -> Client:
    """Somebody of the tenant eve, another one for each request."""
    names = iter(range(100_000))
    who = replace(world.options("eve"), who=lambda _: Principal(f"{role} {next(names)}", role))
    return Client(served(world.hf, who), headers=headers)


def poisoned(theirs: Theirs) -> dict[str, Any]:
    """Metadata, variables and options that name somebody else's things, and what the server itself may act on."""
    named = {name: ids[0] for name, ids in theirs.by_field.items()}
    inner = {"tenant": "acme", "run": theirs.run, "session": theirs.session, "model": "scripted:a", "tools": ["pay"]}
    paths = {"workspace_dir": "/etc", "workspace": "../..", "gateway": {"workspace_dir": "/etc"}}
    return {**named, **inner, **paths, "call": inner, "fork": {"tools": "live"}, "job": theirs.by_noun["jobs"][0]}


def bodies_with(body: Any, poison: dict[str, Any], theirs: Theirs) -> list[Any]:
    """A body as it is meant, and with every field poisoned that takes a name, a key or an object."""
    if not isinstance(body, dict):
        return [body]
    names = {
        field: theirs.by_field["agent"][0] for field in ("name", "key", "id", "user_id", "session_id") if field in body
    }
    made = [body, {**body, "metadata": poison}, {**body, "variables": poison}, {**body, **names}]
    return [*made, {**body, "fields": {"tools": ["pay"], "options": poison, "queue": "default"}}]


def writing() -> list[tuple[str, str]]:
    """The routes by which a tenant changes something, those that remove it last."""
    found = [
        (method, path) for method, _, path in (name.partition(" ") for name, rule in TABLE.items() if not rule.fleet)
    ]
    writes = [each for each in found if each[0] not in ("GET", "WS") and not each[1].startswith("/gateway")]
    return sorted(writes, key=lambda each: (each[0] == "DELETE", each[1].endswith("/cancel")))


def own_places(path: str, mine: Theirs) -> list[str]:
    """The route as it is asked about each of one's own things."""
    parameters = re.findall(r"{\w+(?::\w+)?}", path)
    return [path.replace(parameters[0], id) for id in mine.by_noun[noun_of(path)]] if parameters else [path]


@pytest.mark.sample(1)
@pytest.mark.parametrize("role", ROLES[::-1])
async def test_what_is_written_by_one_route_reaches_nothing_by_another(world: World, role: Role) -> None:
    """Every route that writes, with bodies that name what is another's; then a worker, and every route that reads."""
    theirs, mine = await world.fill(), await world.fill("eve", "own words", "my")
    before, poison = await world.state(theirs), poisoned(theirs)
    fleet = [await world.hf.queues.list(), await world.hf.schedules.list(), await world.hf.lanes.list()]
    client, browser = client_of(world, role), client_of(world, role, **HTML)
    problems, asked = [], 0

    async def ask(method: str, path: str, body: Any = None) -> None:
        nonlocal asked
        asked += 1
        answer = await (client if path.startswith("/api") or method != "GET" else browser).call(method, path, body)
        text = answer.body.decode(errors="replace")
        sent = str(body) + path
        told = [each for each in theirs.telling if each in text and each not in sent and each not in str(poison)]
        if told or answer.status >= 500:
            problems.append(
                f"{method} {path} {str(body)[:200]} is answered with {answer.status} and {told}: {text[:200]}"
            )

    for method, path in writing():
        for place in own_places(f"{API}{path}", mine):
            for body in bodies_with(bodies(method, f"{API}{path}"), poison, theirs):
                await ask(method, place, body)
    await ask("POST", f"{API}/plans", {**PLAN, "plan_id": "theirs", "plan_description": "x"})
    assert await world.state(theirs) == before
    async with working(world.hf):
        for run in [each.id for each in await world.hf.runs.list(tenant="eve")]:
            await world.hf.runs[run].cancel()
            for path in (f"{API}/runs/{run}", f"{API}/runs/{run}/why", f"{API}/runs/{run}/waterfall", f"/runs/{run}"):
                await ask("GET", path)
        for method, path, _ in world.routes():
            if (
                method == "GET"
                and "{" not in path
                and path not in FOR_ALL
                and not path.endswith(("/stream", "/events"))
            ):
                await ask("GET", path)
    assert not problems, listed(problems)
    assert asked > 200
    jobs = 7  # those of acme that waited for a worker: they are done now
    after = await world.state(theirs)
    assert [*after[:jobs], *after[jobs + 1 :]] == [*before[:jobs], *before[jobs + 1 :]]
    assert [await world.hf.queues.list(), await world.hf.schedules.list(), await world.hf.lanes.list()] == fleet
