"""What is somebody else's is as if it were not there, through every route, page and stream that there is."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast.http.pages.serving import ROUTES
from holdfast.http.security.roles import TABLE
from tests.http.browsing import HTML, Seen
from tests.http.client import Answer, Client
from tests.http.foreign import API, GATEWAY, Theirs, Wish, World, wishes
from tests.http.test_security import ENDPOINTS, body_of
from tests.shape.tree import listed
from tests.support.apps import MakeApp

CHANGING = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+|eve \d+")  # the time, and who asks
NUMBERS = count(16)
PLACES = {(each.method, each.place): each for each in ENDPOINTS}
FORM = {"prompt": "x", "agent": "treasurer", "state": "pending", "digest": "d", "id": "x", "answer": "x", "inputs": "1"}
# For everybody, whoever asks: health, metrics, logging in and out, the program's own files.
FOR_ALL = {
    *("/healthz", "/readyz", "/metrics", "/openapi.json", "/login", "/logout", "/assets/{version}/{name}"),
    f"{GATEWAY}/health",
}


def bodies(method: str, path: str) -> Any:
    endpoint = PLACES.get((method, path))
    body = FORM if endpoint is None else body_of(endpoint)
    return {**body, "agent": "treasurer"} if isinstance(body, dict) and "agent" in body else body


@pytest.fixture
def world(request: pytest.FixtureRequest, make_app: MakeApp, tmp_path: Path) -> World:
    return World(make_app(embedded=False), tmp_path, request.param)


bound = pytest.mark.parametrize("world", ["tenant", "metadata", "principal"], indirect=True)


@pytest.mark.sample(1)
@bound
async def test_whoever_names_what_is_anothers_is_told_what_nobody_has(world: World) -> None:
    """404, the same words as for an id that nobody has, and nothing of theirs changes. A new route fails here until
    it is known what it may name."""
    theirs = await world.fill()
    before = await world.state(theirs)
    program, browser = world.client("eve"), world.client("eve", **HTML)
    asked, problems = 0, []
    for method, path, route in world.routes():
        if path in FOR_ALL:
            continue
        is_page = (method, path) not in PLACES and not path.startswith((GATEWAY, "/hooks"))
        for wish in wishes(method, path, route, theirs, bodies):
            problems.append(await wrong(browser if is_page else program, wish, theirs))
            asked += 1
    assert not any(problems), listed([each for each in problems if each])
    assert asked > 200
    assert await world.state(theirs) == before


async def wrong(client: Client, wish: Wish, theirs: Theirs) -> str | None:
    """What is wrong with the answer to a wish; None: nothing."""
    answer = await wish.ask(client)
    told = [each for each in theirs.telling if each in text_of(answer, wish.id) and each not in str(wish)]
    if told or answer.status >= 500 or (wish.by_path and answer.status != 404):
        return f"{wish} is answered with {answer.status} and {told}: {answer.body[-300:]!r}"
    return await _told_apart(client, wish, answer) if wish.id else None


async def _told_apart(client: Client, wish: Wish, answer: Answer) -> str | None:
    unknown = wish.about(nobodys(wish.id))
    other = await unknown.ask(client)
    if answer.status in (404, 422) and other.status == 201 and "their-" in wish.id:
        return None  # a key that is taken cannot be taken again
    said, expected = text_of(answer, wish.id), text_of(other, unknown.id)
    if answer.status == other.status and (said == expected or (wish.method != "GET" and answer.status < 400)):
        return None
    return f"{wish}: {answer.status} {said[-300:]!r}, and for nobody's {other.status} {expected[-300:]!r}"


def nobodys(id: str) -> str:
    """An id of the same form that nobody has, another one each time."""
    return f"{id[:-4]}{next(NUMBERS):04x}"


def text_of(answer: Answer, id: str) -> str:
    """What an answer says, without the id that was asked for, the time, who asks, and the hash of the assets."""
    text = CHANGING.sub("", answer.body.decode(errors="replace") + answer.headers.get("location", ""))
    text = re.sub(r"/assets/[0-9a-f]+/", "/assets/", text)  # four of its digits may be a made-up id
    return re.sub(re.escape(id), "…", text, flags=re.IGNORECASE) if id else text


@bound
@pytest.mark.sample(1)
async def test_what_belongs_to_the_fleet_has_no_page_and_no_link(world: World) -> None:
    await world.fill()
    eve = world.client("eve", **HTML)
    absent = [
        each for each in ROUTES if TABLE[each.name].fleet or (world.by == "metadata" and not TABLE[each.name].sessions)
    ]
    places = {each.path for each in absent if each.method == "GET" and "{" not in each.path}
    assert {"/queues", "/workers", "/audit"} <= places
    for place in places:
        assert (await eve.get(place)).status == 404, place
    for route in ROUTES:
        if route.method == "GET" and "{" not in route.path and route.path not in places:
            page = Seen((await eve.get(route.path)).body.decode())
            assert not places & {link.partition("?")[0] for link in page.links}, route.path


@bound
@pytest.mark.sample(1)
async def test_who_asks_about_their_own_reaches_nothing_else(world: World) -> None:
    """What else a request about one's own session names is not there either."""
    theirs = await world.fill()
    before = await world.state(theirs)
    await world.session("eve", "mine")
    eve, browser = world.client("eve"), world.client("eve", **HTML)
    assert (await eve.post(f"{GATEWAY}/sessions", {"user_id": "eve", "session_id": "my-talk"})).status == 201
    started = await eve.post(f"{API}/runs", {"agent": "treasurer", "prompt": "x", "session": "mine"})
    own, field = started.json["id"], theirs.by_field
    for wish in (
        Wish("POST", f"{API}/sessions/mine/preserve", field["message"][0], body={"message": field["message"][0]}),
        Wish("POST", f"{API}/sessions/mine/fork", field["message"][0], body={"at": field["message"][0]}),
        Wish("GET", f"{API}/runs/compare", theirs.run, {"a": own, "b": theirs.run}),
        Wish("GET", f"{API}/runs/compare", theirs.run, {"a": theirs.run, "b": own}),
        Wish(
            "POST", f"{GATEWAY}/sessions/my-talk/resume", field["input_id"][0], body={"input_id": field["input_id"][0]}
        ),
        Wish("POST", "/sessions/mine/stop", theirs.run, body={"run": theirs.run}, form=True),
        Wish("GET", "/runs/compare", theirs.run, {"a": own, "b": theirs.run}),
    ):
        client = browser if not wish.path.startswith((API, GATEWAY)) else eve
        assert await wrong(client, wish, theirs) is None
    assert await world.state(theirs) == before


@bound
@pytest.mark.sample(1)
async def test_a_key_that_another_has_used_is_free(world: World) -> None:
    """An Idempotency-Key is that of a scope: who is bound otherwise is not given another's answer."""
    acme, eve = world.client("acme"), world.client("eve")
    body = {"metadata": {"note": "x"}}
    first = await acme.post(f"{API}/sessions", body, idempotency_key="k")
    other = await eve.post(f"{API}/sessions", body, idempotency_key="k")
    assert (first.status, other.status) == (201, 201)
    assert first.json["id"] != other.json["id"]
    again = await acme.post(f"{API}/sessions", body, idempotency_key="k")
    assert (again.status, again.json) == (200, first.json)


async def test_a_route_that_nobody_has_thought_of_is_noticed(make_app: MakeApp, tmp_path: Path) -> None:
    world = World(make_app(embedded=False), tmp_path, "tenant")
    theirs = await world.fill()
    (show,) = [route for method, path, route in world.routes() if (method, path) == ("GET", f"{API}/runs/{{id}}")]
    with pytest.raises(KeyError):
        list(wishes("GET", f"{API}/novelties/{{id}}", show, theirs, bodies))
