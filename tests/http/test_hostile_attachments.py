"""What somebody attaches is refused for what it says it is, or stored, and never served as what it is."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.http import web
from holdfast.models.script import Script, say
from tests.http.attachments import Attachment, attachments, problems_of
from tests.http.browsing import Seen, browser
from tests.http.client import Client

API = "/api/v1"
FORBIDDEN = {"iframe", "img", "object", "embed", "base", "applet", "frame", "video", "audio"}


def client_of(hf: Holdfast) -> Client:
    return Client(web(hf, who=lambda _: Principal("ann", "admin")))


def odd_in(body: bytes) -> list[str]:
    """What in a page is more than text."""
    seen = Seen(body.decode(errors="replace"))
    links = [each for each in seen.links if each.lower().startswith(("javascript:", "data:", "//"))]
    return [*seen.inline, *(FORBIDDEN & set(seen.tags)), *links]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "given", [each for each in attachments() if not each.taken], ids=lambda each: each.name.replace(" ", "-")
)
async def test_an_attachment_that_no_model_takes_is_refused(hf: Holdfast, given: Attachment) -> None:
    hf.script("x", Script(say("fine")))
    hf.agent("reader", model="scripted:x")
    answer = await client_of(hf).post(f"{API}/runs", {"agent": "reader", "prompt": [given.block]})
    assert 400 <= answer.status < 500, answer.body
    assert "set-cookie" not in answer.headers
    assert await hf.runs.list() == []


async def test_no_attachment_is_served_as_what_it_says_it_is(hf: Holdfast) -> None:
    """Every route about a run and its session, as a page and as JSON, for each attachment that is taken."""
    hf.script("x", Script(*(say("fine") for _ in attachments())))
    hf.agent("reader", model="scripted:x")
    ann, program = browser(hf), client_of(hf)
    blocks = [each.block for each in attachments() if each.taken]
    made = await program.post(
        f"{API}/runs", {"agent": "reader", "prompt": [*blocks, {"type": "text", "text": "Read."}]}
    )
    assert made.status < 300, made.body
    run = made.json["id"]
    await hf.ensure_worker()
    await hf.runs[run].result()
    session = (await hf.runs.get(run)).session
    paths = [f"/runs/{run}", f"/runs/{run}/events", f"/sessions/{session}", f"/jobs/{run}"]
    pages = [(path, await ann.get(path)) for path in paths]
    names = ("", "/turns", "/calls", "/events", "/waterfall", "/export", "/stream", "/result")
    data = [(path, await program.get(path)) for path in (f"{API}/runs/{run}{name}" for name in names)]
    data.append(("messages", await program.get(f"{API}/sessions/{session}/messages", whole="true")))
    assert [path for path, answer in pages if answer.status != 200] == []
    problems = []
    for path, answer in pages + data:
        odd = odd_in(answer.body) if answer.headers.get("content-type", "").startswith("text/html") else []
        problems += problems_of(path, answer.status, answer.headers, answer.body, odd)
    assert problems == []
    assert b"pwned" in dict(data)["messages"].body


async def test_a_body_of_attachments_has_a_length(hf: Holdfast) -> None:
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * (9 << 20)}}
    answer = await client_of(hf).post(f"{API}/runs", {"agent": "reader", "prompt": [block]})
    assert answer.status == 413
