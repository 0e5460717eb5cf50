"""`import holdfast`: every public name is there when it is asked for, and a command that needs none loads none."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import holdfast
from holdfast.kernel.retry import RetryPolicy


def test_every_public_name_is_there_and_comes_from_one_place() -> None:
    assert sorted(holdfast._HOMES) == holdfast.__all__
    found = {name: getattr(holdfast, name) for name in holdfast.__all__}
    for name, value in found.items():
        home = importlib.import_module(f"holdfast.{holdfast._HOMES[name]}")
        assert getattr(home, "RetryPolicy" if name == "Retry" else name) is value
    assert holdfast.Retry is RetryPolicy
    assert set(holdfast.__all__) <= set(dir(holdfast))


def test_a_name_that_there_is_not_is_refused() -> None:
    with pytest.raises(AttributeError, match="'holdfast' has no attribute 'Holdfsat'"):
        getattr(holdfast, "Holdfsat")  # noqa: B009  a type checker refuses it already
    assert holdfast.errors.HoldfastError is holdfast.HoldfastError


def test_help_loads_neither_the_app_nor_a_database() -> None:
    """Start-up is what it imports: this says so without a clock."""
    program = "import sys, holdfast.cli; print(*(name for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    heavy = {"holdfast.app", "holdfast.agents", "asyncio", "pydantic", "apsw", "asyncpg", "rich", "anthropic"}
    assert not heavy & set(done.stdout.split())
