"""What a tenant writes over HTTP, a WebSocket or the Redis protocol, and uses over another, shows nothing of others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import core_of
from holdfast.http.security.roles import TABLE
from holdfast.resp.client import KeyPrincipal, digest_of
from holdfast.resp.options import RespOptions
from holdfast.resp.server import RespServer
from tests.http.browsing import HTML
from tests.http.client import Client as Web
from tests.http.foreign import API, GATEWAY, Theirs, World, noun_of
from tests.http.talking import talk
from tests.http.test_foreign_ids import FOR_ALL
from tests.http.test_two_routes import bodies_with, client_of, poisoned
from tests.resp.test_tenants import CALLS, Names, opened
from tests.shape.tree import listed
from tests.support.apps import MakeApp, working

KEY, OWN = "ee" * 32, "own words"
READING = ("GET", "LIST", "STATUS", "STATS", "PEEK", "SEARCH", "KEYS", "SCAN", "METRICS", "INFO", "RANGE", "EVENTS")
LEAVING = {"QUIT", "RESET", "MULTI", "EXEC", "DISCARD", "AUTH", "HELLO"}


@pytest.fixture
def world(make_app: MakeApp, tmp_path: Path) -> World:
    return World(make_app(embedded=False), tmp_path, "tenant")


class Attack:
    """Eve, over each face. What anybody is told is looked through for what is acme's."""

    def __init__(self, world: World, theirs: Theirs, mine: Theirs) -> None:
        self.world, self.theirs, self.mine = world, theirs, mine
        self.poison = poisoned(theirs)
        self.problems: list[str] = []
        self.asked = 0
        self.own: set[str] = set()  # who told her of what is hers

    def look(self, what: str, told: str) -> None:
        """Names that eve has written herself are no secret; what acme has written is one."""
        self.asked += 1
        written = f"{what} {self.poison}"
        self.own |= {what.partition(" ")[0]} if OWN in told or "my-talk" in told else set()
        found = [each for each in self.theirs.telling if each in told and each not in written]
        if found or "internal error" in told:
            self.problems.append(f"{what[:300]} tells {found}: {told[:300]}")

    async def ask(self, client: Web, method: str, path: str, body: Any = None) -> None:
        answer = await client.call(method, path, body)
        self.look(f"{method} {path} {body}", answer.body.decode(errors="replace") + str(answer.headers))
        if answer.status >= 500:
            self.problems.append(f"{method} {path} {body} is answered with {answer.status}")

    def places(self, path: str, *more: str) -> list[str]:
        parameters = re.findall(r"{\w+(?::\w+)?}", path)
        if not parameters:
            return [path]
        return [path.replace(parameters[0], id) for id in (*self.mine.by_noun[noun_of(path)], *more)]


async def write_over_the_gateway(attack: Attack, client: Web) -> None:
    """Sessions whose ids, users and folders are acme's; turns that say they are acme's."""
    theirs, eve = attack.theirs, attack.world.client("eve")
    body = {"user_id": "eve", "session_id": "my-other", "workspace_dir": "/etc"}
    for name, rule in TABLE.items():
        method, _, path = name.partition(" ")
        if path.startswith(GATEWAY) and method == "POST" and not rule.fleet:
            for place in attack.places(path, theirs.by_field["session_id"][0], theirs.session):
                for each in bodies_with(body if path.endswith("/sessions") else {}, attack.poison, theirs):
                    await attack.ask(client, method, place, each)
                await attack.ask(client, method, place, {"user_id": "acme", "input_id": theirs.by_field["input_id"][0]})
    for id in ("my-talk", "my-diary", "their-talk", theirs.session):
        said = [
            {"type": "input_response", "data": {"input_id": each, "response": "yes"}}
            for each in theirs.by_noun["inquiries"]
        ]
        said += [{"type": "cancel", "data": {"session_id": theirs.session, "run_id": theirs.run}}, {"type": "ping"}]
        await _talk(attack, eve, id, said)
        turn = {"user_input": "Pay it.", "client_turn_id": "their-turn", "metadata": attack.poison}
        await _talk(attack, eve, id, [{"type": "execute", "data": turn}])


async def _talk(attack: Attack, client: Web, id: str, said: list[Any]) -> None:
    path = f"{GATEWAY}/sessions/{id}/stream"
    told = await talk(client, path, [json.dumps(each) for each in said])
    attack.look(f"WS {path} {said}", told)
    assert ("4004" in told) == (not id.startswith("my-")), told


async def write_over_redis(attack: Attack, server: RespServer, names: Names) -> None:
    """Every command with acme's names, and with JSON that says it is about acme."""
    async with opened(server, KEY) as eve:
        for name, asked in CALLS.items():
            if name in LEAVING:
                continue
            given = asked(names)
            attack.look(f"RESP {name} {given}", await eve.text(name, *given))
            for at, word in enumerate(given):
                if word.startswith("{"):
                    said = {**json.loads(word), **attack.poison, "metadata": attack.poison, "tags": attack.poison}
                    changed = [*given[:at], json.dumps(said), *given[at + 1 :]]
                    attack.look(f"RESP {name} {changed}", await eve.text(name, *changed))


async def read_everything(attack: Attack, server: RespServer, names: Names) -> None:
    """Each route that reads, about each of one's own and of what was just written; and each command that does."""
    program, browser = client_of(attack.world, "admin"), client_of(attack.world, "admin", **HTML)
    written = {"runs": [each.id for each in await attack.world.hf.runs.list(tenant="eve", limit=40)]}
    written["sessions"] = [each.id for each in await attack.world.hf.sessions.list(tenant="eve", limit=40)]
    for method, path, _ in attack.world.routes():
        if method != "GET" or path in FOR_ALL or path.endswith(("/stream", "/events")):
            continue
        more = written.get(noun_of(path), []) if "{" in path and path.startswith((API, GATEWAY)) else []
        for place in attack.places(path, *more) if path != "/assets/{version}/{name}" else ():
            await attack.ask(program if path.startswith(("/api", "/gateway")) else browser, method, place)
    async with opened(server, KEY) as eve:
        for name, asked in CALLS.items():
            if any(each in name for each in READING) and not name.startswith("JOB.ENQ"):
                attack.look(f"RESP {name} {names}", await eve.text(name, *asked(names)))


@pytest.mark.sample(1)
async def test_what_is_written_over_one_face_reaches_nothing_over_another(world: World) -> None:
    """Acme has the same kinds of things as eve. Eve names acme's in all that she may write, then reads all she may."""
    theirs, mine = await world.fill(), await world.fill("eve", OWN, "my")
    before = await world.state(theirs)
    key = KeyPrincipal("fox", digest_of(KEY.encode()), ("fox",), tenant="eve")
    (job,) = [each.id for each in await world.hf.jobs.list(tenant="acme") if each.kind.startswith("machine")][:1]
    names = Names("their", "their-plan", "their-action", job, "1.9", "default", theirs.run, "their-")
    options = RespOptions(bind="127.0.0.1:0", principals=(key,))
    attack = Attack(world, theirs, mine)
    async with RespServer(core_of(world.hf), options) as server:
        await write_over_redis(attack, server, names)
        for role in ("viewer", "operator", "admin"):
            await write_over_the_gateway(attack, client_of(world, role))
        assert await world.state(theirs) == before
        async with working(world.hf):
            for run in await world.hf.runs.list(tenant="eve"):
                await world.hf.runs[run.id].cancel()
        await read_everything(attack, server, names)
    assert not attack.problems, listed(attack.problems)
    assert attack.asked > 400
    assert attack.own == {"GET", "POST", "WS", "RESP"}
    jobs = 7  # those of acme that waited for a worker: they are done now
    after = await world.state(theirs)
    assert [*after[:jobs], *after[jobs + 1 :]] == [*before[:jobs], *before[jobs + 1 :]]
