"""Lanes that close: a reason stays, and no answer is lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.lanes import close_lane
from holdfast.app import core_of
from holdfast.errors import StoreUnavailable
from holdfast.models import Request, ResponseHead
from holdfast.models.protocol import Wire
from holdfast.models.script import Script, say
from tests.support.agents import Counting


async def test_a_lane_that_cannot_be_closed_costs_no_answer(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("gone for a moment.")

    class Spent(Counting):
        async def stream(
            self, request: Request, answered: Callable[[ResponseHead], None]
        ) -> AsyncGenerator[Wire, None]:
            limits = {"requests-remaining": "0", "requests-reset": "2126-01-01T00:00:00Z"}
            answered(ResponseHead(limits=limits))
            async for event in super().stream(request, lambda _: None):
                yield event

    monkeypatch.setattr("holdfast.agents.lanes.close_lane", away)
    core_of(hf).book.substitute = model = Spent(Script(say("kept")))
    assert (await hf.agent("spender", model="scripted:").run("Hello")).text == "kept"
    assert model.calls == 1


async def test_a_lane_for_a_person_keeps_its_reason(hf: Holdfast) -> None:
    await core_of(hf).runtime().transact(close_lane, "a/b", None, person=True, reason="no credit")
    await core_of(hf).runtime().transact(close_lane, "a/b", 1_000, person=False, reason="rate limit")
    (lane,) = await hf.lanes.list()
    assert (lane.person, lane.reason) == (1, "no credit")
