"""What openapi.json says, tried: requests made from it get an answer that it describes, and nobody unknown gets one."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.stateful import run_state_machine_as_test
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    response_schema_conformance,
    status_code_conformance,
)

from holdfast import Holdfast
from holdfast.access.principals import Role
from holdfast.asgi import AsgiApp, Receive, Scope, Send
from holdfast.clock import Ports
from holdfast.http.app import Shield, framework
from holdfast.http.security.checks import RateCap
from holdfast.http.security.gate import Gate, WebOptions
from tests.http.one_loop import OneLoop
from tests.http.test_api import guide

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    ignored_auth,
]
WHO: list[tuple[Role, str | None]] = [
    ("viewer", None),
    ("operator", None),
    ("admin", None),
    ("operator", "acme"),
    ("admin", "evil"),
]


class Served:
    """An app with some work in it, and a token for each role and tenant. It can begin again, with the same store."""

    def __init__(self, folder: Path, loop: OneLoop) -> None:
        self._folder, self._loop, self._times = folder, loop, 0
        self.tokens: dict[tuple[Role, str | None], str] = {}
        self.app = loop.app(self._answer)
        self.hf = self._open(folder / "first.db")
        loop.run(self._fill())

    def _open(self, file: Path) -> Holdfast:
        """Its ids and times are the same each time, so that the same requests get the same answers."""
        hf = Holdfast(f"sqlite:///{file}", embedded=False, ports=Ports(_Still(), Random(0)))
        gate = Gate(hf, WebOptions())
        gate.rate = RateCap(_Still(), burst=1e9, a_second=1, what="requests")
        gate.logins = RateCap(_Still(), burst=1e9, a_second=1, what="logins")
        self._served: AsgiApp = Shield(framework(gate), None)
        return hf

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._served(scope, receive, send)

    async def _fill(self) -> None:
        agent = guide(self.hf)
        for role, tenant in WHO:
            made = await self.hf.access.tokens.create(role, role=role, tenant=tenant)
            self.tokens[role, tenant] = made.secret
        for tenant in (None, "acme", "evil"):
            await agent.enqueue(f"Secret of {tenant}", tenant=tenant or "", session="chat")
        await self.hf.close()

    def begin_again(self) -> None:
        """Whatever was done is undone."""
        self.close()
        self._times += 1
        copy = self._folder / f"{self._times}.db"
        shutil.copyfile(self._folder / "first.db", copy)
        self.hf = self._open(copy)
        guide(self.hf)

    def close(self) -> None:
        self._loop.run(self.hf.close())

    def schema(self) -> Any:
        return schemathesis.openapi.from_asgi("/openapi.json", self.app, headers=self.headers("admin", None))

    def headers(self, role: Role, tenant: str | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[role, tenant]}"}


class _Still:
    def monotonic(self) -> float:
        return 0.0

    def wall_us(self) -> int:
        return 1_800_000_000_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with OneLoop().running() as loop:
        served = Served(tmp_path_factory.mktemp("schema"), loop)
        served.begin_again()
        yield served
        served.close()


def quietly(examples: int, **more: Any) -> Any:
    """So many examples, the same ones each time."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        **more,
    )


def try_all(served: Served, examples: int, asking: list[tuple[Role, str | None]], rounds: int) -> None:
    """Every operation, some examples each, by those who ask in turn."""
    operations = [found.ok() for found in served.schema().get_all_operations()]
    assert len(operations) > 100
    for turn in range(rounds):
        for number, operation in enumerate(operations):
            role, tenant = asking[(number + turn) % len(asking)]
            try_one(operation, examples, served.headers(role, tenant), tenant)


def try_one(operation: Any, examples: int, headers: dict[str, str], tenant: str | None) -> None:
    def once(case: Any) -> None:
        check_secrets(case.call_and_validate(headers=headers, checks=CHECKS), tenant)

    quietly(examples)(given(case=operation.as_strategy())(once))()


def check_secrets(response: Any, tenant: str | None) -> None:
    """A tenant reads nothing of another's."""
    for other in {None, "acme", "evil"} - {tenant} if tenant is not None else ():
        assert f"Secret of {other}" not in response.text, response.request.url


@pytest.mark.long
def test_every_operation_answers_as_described(served: Served) -> None:
    """By the three roles and two tenants in turn; an answer to somebody unknown would be found too."""
    try_all(served, examples=1, asking=WHO, rounds=1)


@pytest.mark.long
def test_every_operation_answers_everybody_as_described(served: Served) -> None:
    try_all(served, examples=2, asking=WHO, rounds=3)


@pytest.mark.long
@pytest.mark.parametrize(("role", "tenant"), WHO, ids=[f"{role} of {tenant or 'all'}" for role, tenant in WHO])
def test_what_one_operation_made_another_one_finds(served: Served, role: Role, tenant: str | None) -> None:
    """Sequences of operations, each with what the one before it answered; the same ones each time."""
    machine: Any = served.schema().as_state_machine()
    headers = served.headers(role, tenant)
    answers: list[int] = []

    class Asking(machine):  # type: ignore[misc]
        def setup(self) -> None:
            served.begin_again()

        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"headers": headers}

        def validate_response(self, response: Any, case: Any, **_: Any) -> None:
            answers.append(response.status_code)
            case.validate_response(response, checks=CHECKS, headers=headers)
            check_secrets(response, tenant)

    run_state_machine_as_test(Asking, settings=quietly(20, stateful_step_count=6))
    assert answers.count(200) > 5
