"""Every failure has one class, decided by the provider's code before its status, over the wire as in a table."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.models import ModelFailure
from holdfast.models.failures import refused, retry_after
from tests.models.conftest import Converse, request_of


def said(type: str, message: str = "words", code: str | None = None) -> dict[str, Any]:
    details = {} if code is None else {"details": {"error_code": code}}
    return {"type": "error", "error": {"type": type, "message": message, **details}}


@pytest.mark.parametrize(
    ("status", "body", "kind", "bought", "lane"),
    [
        (429, said("rate_limit_error"), "rate_limit", "no", "until"),
        (429, said("rate_limit_error", code="ramp_limit_exceeded"), "rate_limit", "no", "until"),
        (429, said("rate_limit_error", code="enforced_spend_limit_reached"), "spend_limit", "no", "person"),
        (402, said("billing_error"), "spend_limit", "no", "person"),
        (400, said("invalid_request_error", "Your credit balance is too low to access"), "spend_limit", "no", "person"),
        (400, said("invalid_request_error", "You have reached your specified API usage limits."), "spend_limit", "no",
         "person"),
        (401, said("authentication_error"), "auth", "no", "person"),
        (401, None, "auth", "no", "person"),
        (403, said("permission_error", code="organization_on_hold"), "auth", "no", "person"),
        (403, said("permission_error", "This organization has been disabled."), "auth", "no", "person"),
        (403, said("permission_error", "Your account is suspended, contact support."), "auth", "no", "person"),
        (400, said("invalid_request_error", "This organization has been disabled."), "auth", "no", "person"),
        (403, said("permission_error"), "permission", "no", None),
        (403, said("permission_error", "Thinking has been disabled for this model."), "permission", "no", None),
        (403, said("forbidden", "Request not allowed"), "permission", "no", None),
        (403, "<html>blocked by a firewall</html>", "permission", "no", None),
        (529, said("overloaded_error"), "overloaded", "no", None),
        (500, said("api_error"), "server", "unknown", None),
        (504, said("timeout_error"), "timeout", "unknown", None),
        (404, said("not_found_error"), "not_found", "no", None),
        (400, said("invalid_request_error"), "bad_request", "no", None),
        (400, said("invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"), "context_window", "no", None),
        (413, said("request_too_large"), "context_window", "no", None),
        (500, said("overloaded_error"), "overloaded", "unknown", None),
        (429, "not json", "rate_limit", "no", "until"),
        (503, None, "overloaded", "unknown", None),
        (502, "<html>", "server", "unknown", None),
        (418, {}, "bad_request", "no", None),
        (400, said("error_of_tomorrow"), "bad_request", "no", None),
    ],
)  # fmt: skip
def test_an_error_is_classed_by_its_code_and_then_by_its_status(
    status: int, body: object, kind: str, bought: str, lane: str | None
) -> None:
    failure = refused(status, body, {"retry-after": "3", "request-id": "req_1"})
    assert (failure.kind, failure.bought, failure.closes_lane) == (kind, bought, lane)
    assert (failure.status, failure.retry_after, failure.request_id) == (status, 3.0, "req_1")
    assert failure.retry == ("later" if failure.transient else "never")


def test_the_same_error_inside_a_stream_may_have_cost_something() -> None:
    failure = refused(200, said("overloaded_error"), {}, streaming=True)
    assert (failure.kind, failure.bought) == ("overloaded", "unknown")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Sun, 15 Nov 2026 10:00:30 GMT", "date": "Sun, 15 Nov 2026 10:00:00 GMT"}, 30.0),
        ({"retry-after": "Sun, 15 Nov 2026 10:00:30 GMT"}, None),
    ],
)
def test_retry_after_is_read_in_all_its_spellings(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def test_a_rate_limit_that_does_not_say_how_long_closes_no_lane() -> None:
    assert refused(429, said("rate_limit_error"), {}).closes_lane is None


@pytest.mark.parametrize(
    ("do", "kind", "code", "bought"),
    [
        ({"status": 429, "retry_after": 5}, "rate_limit", "rate_limit_error", "no"),
        (
            {"status": 429, "code": "enforced_spend_limit_reached"},
            "spend_limit",
            "enforced_spend_limit_reached",
            "no",
        ),
        ({"overloaded": True}, "overloaded", "overloaded_error", "no"),
        ({"status": 500}, "server", "api_error", "unknown"),
        ({"status": 402}, "spend_limit", "billing_error", "no"),
        ({"status": 403}, "permission", "permission_error", "no"),
        ({"status": 413}, "context_window", "request_too_large", "no"),
        ({"status": 504}, "timeout", "timeout_error", "unknown"),
        ({"error_event": {"after": 3, "type": "overloaded_error"}}, "overloaded", "overloaded_error", "unknown"),
        ({"error_event": {"after": 3, "type": "rate_limit_error"}}, "rate_limit", "rate_limit_error", "unknown"),
        ({"cut": {"headers": True}}, "cut", None, "unknown"),
        ({"cut": {"events": 0}}, "cut", None, "unknown"),
        ({"cut": {"events": 4}}, "cut", None, "unknown"),
        ({"cut": {"bytes": 300}}, "cut", None, "unknown"),
        ({"malformed": {"after": 3}}, "malformed", None, "unknown"),
    ],
)
async def test_faults_of_the_provider_arrive_as_failures(
    converse: Converse, do: dict[str, Any], kind: str, code: str | None, bought: str
) -> None:
    talk = await converse({"match": {"nth": 1}, "do": do})
    failure = await talk.failure()
    assert (failure.kind, failure.code, failure.bought) == (kind, code, bought)
    assert (await talk.reply(request_of())).text == "hello"  # the SDK did not retry, and the next call is well
    assert [line["event"] for line in talk.provider.lines] == ["sent", "done"] * 2


async def test_a_refusal_says_how_long_to_wait_and_what_the_limits_are(converse: Converse) -> None:
    talk = await converse({"do": {"status": 429, "retry_after": 5, "headers": {"anthropic-ratelimit-x": "1"}}})
    failure = await talk.failure()
    assert (failure.retry_after, failure.closes_lane) == (5.0, "until")
    (answered,) = talk.answered
    assert (answered.status, answered.retry_after, answered.limits["x"]) == (429, 5.0, "1")
    assert failure.request_id == answered.request_id == talk.provider.lines[0]["request_id"]


async def test_nobody_listening_costs_nothing(converse: Converse) -> None:
    talk = await converse()
    await talk.provider.stop()
    failure = await talk.failure()
    assert (failure.kind, failure.bought, failure.transient) == ("connect", "no", True)


async def test_a_bad_key_is_for_a_person(converse: Converse) -> None:
    talk = await converse(key="sk-invalid")
    failure = await talk.failure()
    assert (failure.kind, failure.closes_lane, failure.status) == ("auth", "person", 401)


async def test_no_key_at_all_is_for_a_person_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from holdfast.models.anthropic import AnthropicModel

    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    model = AnthropicModel(base_url="http://127.0.0.1:1")
    with pytest.raises(ModelFailure) as caught:
        await anext(aiter(model.stream(request_of(), lambda _: None)))
    await model.close()
    assert (caught.value.kind, caught.value.bought) == ("auth", "no")
