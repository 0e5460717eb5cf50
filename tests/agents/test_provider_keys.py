"""What a program needs to be allowed to ask a provider."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.errors import UsageError
from tests.support.agents import MODEL
from tests.support.apps import MakeApp


@pytest.mark.usefixtures("keyless")
async def test_without_a_key_the_call_says_what_to_set(hf: Holdfast) -> None:
    with pytest.raises(UsageError, match="Set ANTHROPIC_API_KEY"):
        await hf.agent("a", model=MODEL).run("Go")
    assert await hf.runs.list() == []


@pytest.mark.usefixtures("keyless")
async def test_a_key_a_place_or_a_profile_is_enough(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = make_app()
    assert core_of(hf).book.advice_on_key(MODEL)
    assert core_of(hf).book.advice_on_key("scripted:") is None
    assert core_of(make_app(provider_url="http://127.0.0.1:9")).book.advice_on_key(MODEL) is None
    for name in ("API_KEY", "AUTH_TOKEN", "BASE_URL", "PROFILE"):
        with monkeypatch.context() as patch:
            patch.setenv(f"ANTHROPIC_{name}", "x")
            assert core_of(hf).book.advice_on_key(MODEL) is None
