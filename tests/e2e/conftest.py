"""A folder with a program in it, and databases that nobody has migrated."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Place
from tests.support.postgres import Cluster

SHOP = '''
"""A program for the tests."""

import os
from holdfast import Holdfast, JobContext

hf = Holdfast(os.environ.get("SHOP_URL"))


@hf.job(name="greet")
async def greet(name: str) -> str:
    return f"hello, {name}"


@hf.job(name="fail")
async def fail() -> None:
    raise LookupError("no such page")


@hf.job(name="paint", queue="images", requires=["tag:gpu=yes"])
def paint(ctx: JobContext, color: str) -> str:
    return color
'''

_numbers = itertools.count()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The folder in which `shop:hf` can be imported."""
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "shop.py").write_text(SHOP)
    return folder


@pytest.fixture
def bare_url(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of each kind without Holdfast's tables."""
    if dialect == "sqlite":
        yield f"sqlite:///{tmp_path / 'bare.db'}"
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    name = f"holdfast_bare_{os.getpid()}_{next(_numbers)}"
    yield cluster.create_database(name)
    cluster.drop_database(name)


@pytest.fixture
def empty(place: Place) -> str:
    """The URL of a database of each kind with Holdfast's tables and nothing in them."""
    return place.url
