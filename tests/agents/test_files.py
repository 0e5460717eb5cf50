"""Files that the provider keeps: uploaded once, referred to, and what is sent when they have expired."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.agents.content import EXPIRES, Document, Image, present
from holdfast.clock import Ports
from holdfast.errors import BadPayload, BadSetting, UsageError
from holdfast.models.script import Script, call, say, think
from holdfast.models.simulator import SimulatedProvider, simulator
from holdfast.testing import Lab, Labs
from tests.support.agents import MODEL, Noting, audit, results, scripted, settle

pytestmark = pytest.mark.asyncio


@pytest.fixture
def report(tmp_path: Path) -> Path:
    file = tmp_path / "report.pdf"
    file.write_bytes(b"%PDF-1.7 the report")
    return file


class Desk:
    """An app, its lab, and a provider under the lab's clock that says what a script says."""

    def __init__(self, hf: Holdfast, lab: Lab, provider: SimulatedProvider, script: Noting) -> None:
        self.hf, self.lab, self.provider, self.script = hf, lab, provider, script


@pytest.fixture
async def desk(hf: Holdfast, provided: Labs) -> AsyncIterator[Desk]:
    script = Noting(think("Let me see."), say("I have read it."))
    lab = await provided.use(hf)
    async with simulator(script=script, ports=Ports(lab.clock)) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        yield Desk(hf, lab, provider, script)


async def test_a_file_is_uploaded_once_and_referred_to(desk: Desk, report: Path) -> None:
    document = await desk.hf.upload(report)
    assert isinstance(document, Document)
    assert (document.title, document.expires) == ("report.pdf", None)
    agent = desk.hf.agent("reader", model=MODEL)
    one = await agent.enqueue(["Read this.", document], session="s")
    two = await agent.enqueue("And again?", session="s")
    await settle(desk.lab, one, two)
    await audit(desk.hf, desk.provider)
    block = {
        "type": "document",
        "source": {"type": "file", "file_id": document.file_id},
        "title": "report.pdf",
    }
    for body in desk.script.bodies:
        sent = body["messages"][0]["content"][1]
        assert {name: value for name, value in sent.items() if name != "cache_control"} == block


async def test_pictures_are_images(desk: Desk, tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(b"\x89PNG")
    image = await desk.hf.upload(picture, expires_in="30d")
    assert isinstance(image, Image)
    now = datetime.fromtimestamp(desk.lab.clock.wall_us() / 1e6, UTC)
    assert image.expires == now + timedelta(days=30)


async def test_an_expired_file_is_replaced_by_a_sentence(desk: Desk, report: Path) -> None:
    document = await desk.hf.upload(report, expires_in="1h")
    assert isinstance(document, Document)
    agent = desk.hf.agent("reader", model=MODEL)
    first = await agent.enqueue(["Read this.", document], session="s")
    (row,) = await settle(desk.lab, first)
    assert row.state == "completed"
    await desk.lab.clock.advance("1h")
    second = await agent.enqueue("What did it say?", session="s")
    third = await agent.enqueue("And?", session="s")
    for row in await settle(desk.lab, second, third):
        assert (row.state, row.error) == ("completed", None)
    await audit(desk.hf, desk.provider)
    before, after, last = desk.script.bodies
    assert before["messages"][0]["content"][1]["source"]["file_id"] == document.file_id
    assert EXPIRES not in str(desk.script.bodies)
    gone = {"type": "text", "text": f"[The file {document.file_id} has expired: it can no longer be read.]"}
    assert after["messages"][0]["content"][1] == gone | {"cache_control": {"type": "ephemeral"}}
    assert last["messages"][0]["content"][1] == gone
    kinds = [[block["type"] for block in each["content"]] for each in last["messages"] if each["role"] == "assistant"]
    assert kinds == [["text"], ["thinking", "text"]], "what was thought before other words is left out"
    prints = [(await desk.hf.runs[run.id].turns())[0] for run in (first, second, third)]
    assert len({turn.model for turn in prints}) == 1


async def test_a_file_that_expires_before_its_run_begins(desk: Desk, report: Path) -> None:
    document = await desk.hf.upload(report, expires_in="1h")
    run = await desk.hf.agent("reader", model=MODEL).enqueue(["Read this.", document], delay="2h")
    await desk.lab.clock.advance("2h")
    (row,) = await settle(desk.lab, run)
    assert row.state == "completed"
    assert "has expired" in desk.script.bodies[0]["messages"][0]["content"][1]["text"]
    await audit(desk.hf, desk.provider)


async def test_an_expired_file_is_refused_at_once(desk: Desk, report: Path) -> None:
    document = await desk.hf.upload(report, expires_in="1h")
    agent = desk.hf.agent("reader", model=MODEL)
    await desk.lab.clock.advance("1h")
    with pytest.raises(BadPayload, match=r"file file_\w+ expired at .* UTC: upload it again"):
        await agent.enqueue(["Read this.", document])
    assert await desk.hf.runs.list() == []


async def test_a_tool_may_hand_over_a_file(hf: Holdfast, provided: Labs, report: Path) -> None:
    script = Noting(call("fetch"), say("read"))
    lab = await provided.use(hf)
    async with simulator(script=script, ports=Ports(lab.clock)) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})

        @hf.tool
        async def fetch() -> Document | Image:
            """Fetch the report."""
            return await hf.upload(report, expires_in="1h")

        agent = hf.agent("reader", model=MODEL, tools=[fetch])
        await settle(lab, await agent.enqueue("Read it.", session="s"))
        await lab.clock.advance("1h")
        await settle(lab, await agent.enqueue("Again.", session="s"))
        await audit(hf, provider)
        first, *_, last = script.bodies[1:]
    sent = first["messages"][2]["content"][0]["content"][0]
    assert sent["source"]["type"] == "file"
    assert EXPIRES not in sent
    assert "has expired" in last["messages"][2]["content"][0]["content"][0]["text"]


async def test_references_are_checked(hf: Holdfast, tmp_path: Path) -> None:
    naive = datetime(2030, 1, 1)
    with pytest.raises(UsageError, match="needs a time zone"):
        Document.from_file_id("file_1", expires=naive).block()
    with pytest.raises(BadPayload, match="the id of a file"):
        Image().block()
    with pytest.raises(UsageError, match="there is no file"):
        await hf.upload(tmp_path / "nothing.pdf")


async def test_an_upload_needs_a_provider_that_keeps_files(hf: Holdfast, provided: Labs, report: Path) -> None:
    await provided.use(hf, Script(say("x")))
    with pytest.raises(UsageError, match="cannot store files"):
        await hf.upload(report)


async def test_how_long_a_file_is_kept_is_checked_here(desk: Desk, report: Path) -> None:
    for wrong in ("59m", "91d"):
        with pytest.raises(BadSetting, match="between one hour and ninety days"):
            await desk.hf.upload(report, expires_in=wrong)
    assert desk.provider.state.cabinet.uploads == 0


async def test_blocks_without_an_expiry_are_sent_as_they_are(hf: Holdfast) -> None:
    plain = Document.from_file_id("file_1").block()
    assert present(plain, 1 << 60) is plain
    agent = hf.agent("a", model=scripted(hf, say("ok")))
    result = await agent.run(["Read.", Image.from_file_id("file_2", expires=datetime(2999, 1, 1, tzinfo=UTC))])
    assert await results(hf, result.session_id) == []
    (prompt, _) = await hf.sessions[result.session_id].messages()
    assert prompt.blocks[1]["source"] == {"type": "file", "file_id": "file_2"}
