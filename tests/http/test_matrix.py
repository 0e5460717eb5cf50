"""Who may do what: every route and page, in every role and however one is bound, answers as the table of rules says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.http.pages.serving import ROUTES
from tests.http.foreign import By, World
from tests.http.matrix import EXAMPLES, HOST, Matrix, plain, rule_of
from tests.http.test_row_security import LOGIN, login, turn
from tests.http.test_security import ENDPOINTS
from tests.shape.tree import listed
from tests.support.apps import MakeApp, settings_with

__all__ = ["login"]


PARTS = 6


@pytest.fixture(params=["principal", "metadata"])
def by(request: pytest.FixtureRequest) -> By:
    by: By = request.param
    return by


@pytest.fixture
def world(by: By, make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("socket.gethostname", lambda: HOST)
    return World(make_app(embedded=False), tmp_path, by)


@pytest.fixture
async def secured(
    by: By, postgres_url: str, login: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """The same on PostgreSQL, by a login that does not own the tables, while the server hides other tenants' rows."""
    monkeypatch.setattr("socket.gethostname", lambda: HOST)
    await turn(postgres_url, "on")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"grant holdfast_web to {LOGIN}")
    async with Holdfast(login, settings=settings_with(drain_grace="5s"), embedded=False) as app:
        yield World(app, tmp_path, by)
    await turn(postgres_url, "off")


async def asked(world: World, folder: Path, part: int) -> None:
    matrix = Matrix(world, folder)
    await matrix.fill()
    totals = await matrix.run(part, PARTS)
    print(f"{world.by}, part {part + 1} of {PARTS}: {totals}")
    assert not totals.wrong, f"{totals}: {listed(totals.wrong)}"
    assert totals.requests > 200


@pytest.mark.sample(1)
@pytest.mark.parametrize("part", range(PARTS))
async def test_every_route_answers_each_role_as_its_rule_says(world: World, tmp_path: Path, part: int) -> None:
    """A new route fails here until it has a rule, and an example of how it is called."""
    await asked(world, tmp_path, part)


@pytest.mark.long
@pytest.mark.parametrize("by", ["principal"], indirect=True)  # pinned metadata are none of the server's concern
@pytest.mark.parametrize("part", range(PARTS))
async def test_row_security_changes_no_answer(secured: World, tmp_path: Path, part: int) -> None:
    await asked(secured, tmp_path, part)


async def test_every_route_is_in_the_matrix(make_app: MakeApp, tmp_path: Path) -> None:
    """With a rule, or a reason to have none, and with an example if it changes something."""
    routes = [(method, plain(path)) for method, path, _ in World(make_app(embedded=False), tmp_path, "tenant").routes()]
    for method, path in routes:
        rule_of(method, path)
        assert method in ("GET", "WS") or f"{method} {path}" in EXAMPLES, f"{method} {path}: say how it is called"
    described = {f"{each.method} {each.path}" for each in ROUTES} | {each.name for each in ENDPOINTS}
    assert len(routes) > len(described), "the matrix has every page and every route of openapi.json"


def test_a_route_without_a_rule_is_noticed() -> None:
    with pytest.raises(KeyError):
        rule_of("GET", "/api/v1/novelties")
    with pytest.raises(KeyError):
        rule_of("GET", "/novelties/{id}")
