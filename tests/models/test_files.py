"""Files that the provider keeps: uploaded through the SDK, referred to, expired, deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import Ports
from holdfast.models import ModelFailure, Script, say
from holdfast.models.protocol import Files
from holdfast.models.simulator import simulator
from holdfast.testing.clock import LabClock
from tests.models.conftest import MODEL, Conversation, Converse, request_of

CONTENT = b"%PDF-1.7\r\n--not a boundary\x00\xff"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    file = tmp_path / "report.pdf"
    file.write_bytes(CONTENT)
    return file


def about(id: str, kind: str = "document") -> list[Any]:
    return [{"type": kind, "source": {"type": "file", "file_id": id}}]


async def test_a_file_is_kept_whole(converse: Converse, report: Path) -> None:
    talk = await converse()
    assert isinstance(talk.model, Files)
    stored = await talk.model.upload_file(report, "application/pdf")
    assert stored[1:] == ("report.pdf", "application/pdf", len(CONTENT), None)
    (kept,) = talk.provider.state.cabinet.files.values()
    assert (kept.id, kept.data) == (stored.id, CONTENT)


async def test_messages_may_refer_to_it(converse: Converse, report: Path) -> None:
    talk = await converse(script=Script(say("read")))
    stored = await talk.model.upload_file(report, "application/pdf")
    assert (await talk.reply(request_of(about(stored.id)))).stop_reason == "end_turn"


async def _missing(talk: Conversation, content: list[Any]) -> ModelFailure:
    failure = await talk.failure(request_of(content))
    assert (failure.status, failure.bought) == (404, "no")
    return failure


async def test_an_unknown_file_is_not_found(converse: Converse) -> None:
    failure = await _missing(await converse(), about("file_nobody", "image"))
    assert (failure.kind, failure.message) == ("not_found", "File not found: file_nobody")


async def test_it_is_not_found_inside_a_result_either(converse: Converse) -> None:
    talk = await converse()
    use = {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": about("file_nobody")}
    failure = await talk.failure(request_of("a", [use], [result]))
    assert failure.status == 404


async def test_another_account_s_file_is_not_found(converse: Converse, report: Path) -> None:
    import anthropic

    talk = await converse()
    stored = await talk.model.upload_file(report, "application/pdf")
    async with anthropic.AsyncAnthropic(api_key="other", base_url=talk.provider.url, max_retries=0) as other:
        with pytest.raises(anthropic.NotFoundError):
            await other.files.retrieve_metadata(stored.id)


async def test_the_sdk_reads_and_deletes(converse: Converse, report: Path) -> None:
    import anthropic

    talk = await converse()
    stored = await talk.model.upload_file(report, "application/pdf")
    async with anthropic.AsyncAnthropic(api_key="sk-test", base_url=talk.provider.url, max_retries=0) as client:
        read = await client.files.retrieve_metadata(stored.id)
        assert (read.id, read.filename, read.expires_at) == (stored.id, "report.pdf", None)
        assert (await client.files.delete(stored.id)).type == "file_deleted"
        with pytest.raises(anthropic.NotFoundError):
            await client.files.retrieve_metadata(stored.id)
    await _missing(talk, about(stored.id))


async def test_an_expired_file_says_so(report: Path) -> None:
    clock = LabClock(None)
    async with simulator(script=Script(say("read")), ports=Ports(clock)) as running:
        from holdfast.models.anthropic import AnthropicModel

        model = AnthropicModel("sk-test", running.url)
        talk = Conversation(running, model)
        stored = await model.upload_file(report, "application/pdf", expires_in=3_600)
        assert stored.expires_us == clock.wall_us() + 3_600 * 1_000_000
        await talk.reply(request_of(about(stored.id)))
        await clock.advance("1h")
        failure = await _missing(talk, about(stored.id))
        assert (failure.kind, failure.code) == ("bad_request", "file_expired")
        await model.close()


async def test_what_is_wrong_with_an_upload_is_said(converse: Converse, report: Path, tmp_path: Path) -> None:
    talk = await converse()
    with pytest.raises(ModelFailure, match="expires_in_seconds: must be between"):
        await talk.model.upload_file(report, "application/pdf", expires_in=60)
    empty = tmp_path / "empty.pdf"
    empty.touch()
    with pytest.raises(ModelFailure, match="must not be empty"):
        await talk.model.upload_file(empty, "application/pdf")
    stranger = await converse(key="sk-invalid")
    with pytest.raises(ModelFailure) as caught:
        await stranger.model.upload_file(report, "application/pdf")
    assert caught.value.kind == "auth"


async def test_counting_needs_the_file_too(converse: Converse) -> None:
    talk = await converse()
    with pytest.raises(ModelFailure, match="File not found"):
        await talk.model.count_tokens(request_of(about("file_nobody"), model=MODEL))
