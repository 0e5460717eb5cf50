"""What pages never do: show or change what is outside, change anything when they are read-only, leave their mount.

And what is written in any text of a run stays text.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.api.run import Run
from holdfast.http import web
from holdfast.http.pages.routes import PageRoute
from holdfast.http.security.binds import PathPrefix
from holdfast.models.script import Script, call, calls, say
from tests.http.browsing import Seen, browser, crawl, filled_in, pages, send, treasurer
from tests.http.client import Client
from tests.http.test_api import guide
from tests.support.apps import eventually

SECRET = "of nobody's business"
PAYLOADS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'-alert(1)-'",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    "\u202egnp.exe\u2066 \u200fright to left",
    "</textarea></title></style><svg onload=alert(1)>",
    "![x](https://evil.example/x.png) [y](javascript:alert(1)) <iframe src=//evil.example>",
    "\x1b[31mred\x07",
    "x" * 1_000_000,
)


class Stripped(Client):
    """A browser behind a proxy that takes the prefix away, and says so."""

    async def _called(self, scope: dict[str, Any], content: bytes) -> Any:
        path = scope["path"].removeprefix(self.root) or "/"
        return await super()._called({**scope, "path": path, "raw_path": path.encode()}, content)


async def asking(hf: Holdfast, words: str, **options: Any) -> Run[str]:
    """A run that waits for a person."""
    agent = treasurer(hf, words)
    await hf.ensure_worker()
    run = await agent.enqueue(words, **options)

    async def asked() -> bool:
        return bool(await hf.inquiries.list(run=run.id))

    await eventually(asked)
    return run


async def ids_of(hf: Holdfast, run: Run[str]) -> list[str]:
    """The ids of everything that belongs to a run."""
    (inquiry,), (call_,), record = await run.inquiries(), await run.calls(), await run.refresh()
    return [run.id, record.session, record.agent, inquiry.id, call_.id]


@pytest.mark.parametrize("by", ["metadata", "tenant"])
async def test_ap_57_pages_neither_show_nor_change_what_is_outside(hf: Holdfast, by: str) -> None:
    """AP-57: neither lists nor details, by any id, and no form reaches it."""
    where: dict[str, Any] = {"session": await hf.session("other", metadata={"team": "b"})} if by == "metadata" else {}
    run = await asking(hf, SECRET, **where, **({"tenant": "other"} if by == "tenant" else {}))
    ids = await ids_of(hf, run)
    ann = browser(hf, metadata={"team": "a"}) if by == "metadata" else browser(hf, tenant="mine")
    agents = {"/agents/{id}", "/agents/{id}/start"} if by == "metadata" else set()  # an agent belongs to no session
    for route in pages("GET"):
        for id in ids if "{" in route.path else ids[:1]:
            answer = await ann.get(filled_in(route.path, id), a=id, b=id, id=id, q=id)
            assert SECRET not in answer.body.decode(), (route.path, id)
            outside = answer.status == 404 or "{" not in route.path or route.path in agents
            assert outside, (route.path, id, answer.status)
    before = await run.refresh()
    for route in pages("POST"):
        for id in ids:
            await _refused(ann, route, id, agents)
    assert await run.refresh() == before
    assert [each.state for each in await hf.inquiries.list(run=run.id)] == ["open"]


async def _refused(client: Client, route: PageRoute, id: str, agents: set[str]) -> None:
    answer = await send(client, filled_in(route.path, id), id=id, prompt="x", agent="treasurer", state="pending")
    assert answer.status < 500, (route.path, answer.body[-500:])
    if answer.status == 303 and route.path in agents:
        assert (await client.get(answer.headers["location"])).status == 200, "what is started here is inside"
        return
    assert answer.status not in (200, 303) or "{" not in route.path, (
        route.path,
        id,
        answer.status,
        answer.headers.get("location"),
    )


async def test_ap_58_read_only_pages_work_and_change_nothing(hf: Holdfast) -> None:
    """AP-58: also where the program has no agents of its own, every page is there; every form answers 403."""
    run = await asking(hf, "Pay it.")
    ann = browser(hf, read_only=True)
    for route in pages("POST"):
        assert (await send(ann, filled_in(route.path, run.id), prompt="x")).status == 403, route.path
    for path, answer in await crawl(ann, ""):
        assert answer.status in (200, 204), (path, answer.body[-500:])
        if answer.headers.get("content-type", "").startswith("text/html"):
            assert Seen(answer.body.decode()).posts in ([], ["/logout"]), path
    assert (await run.refresh()).state == "awaiting_input"


@pytest.mark.sample(3)
@pytest.mark.parametrize("proxy", [Client, Stripped], ids=["keeps", "strips"])
@pytest.mark.parametrize("mount", ["", "/ops", "/a/deep/er/place", "/with space"])
async def test_ap_59_no_link_and_no_redirect_leaves_the_mount(hf: Holdfast, mount: str, proxy: type[Client]) -> None:
    """AP-59: under any path, behind a proxy that keeps the prefix or strips it."""
    run = await asking(hf, "Pay it.", session="chat", metadata={"team": "a"})
    made = browser(hf)
    ann = proxy(made.app, headers=made.headers, root=mount)
    root = mount.replace(" ", "%20")
    found = dict(await crawl(ann, mount, most=60))
    assert len(found) > 8
    for path, answer in found.items():
        assert answer.status in (200, 204), (path, answer.status)
    for path in (f"/runs/{run.id}/cancel", f"/runs/{run.id}/retry"):
        sent = await send(ann, path)
        assert (sent.status, sent.headers["location"].startswith(f"{root}/runs/")) == (303, True)
    stranger = proxy(web(hf), headers=made.headers, root=mount)
    assert (await stranger.get("/runs")).headers["location"] == f"{root}/login?next=%2Fruns"


@pytest.mark.sample(3)
@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
async def test_what_is_written_in_a_run_stays_text(hf: Holdfast, payload: str) -> None:
    """In what is asked, said, called, returned, and in names that people choose."""

    @hf.tool
    def echo(text: str) -> str:
        """Say it again."""
        return text

    hf.script("parrot", Script(calls(say(payload), call("echo", text=payload)), say(payload)))
    agent = hf.agent("parrot", model="scripted:parrot", tools=[echo])
    await hf.ensure_worker()
    short = payload[:60].replace("\x1b", "").replace("\x07", "")
    run = await agent.enqueue(payload, metadata={"note": payload[:2000]}, session=short)
    await run.result(timeout="60s")
    record = await run.refresh()
    ann = browser(hf)
    for path in ("/", "/runs", f"/runs/{run.id}", f"/runs/{run.id}/events", f"/jobs/{run.id}", "/jobs"):
        answer = await ann.get(path)
        page = answer.body.decode()
        found = Seen(page)
        assert answer.status == 200, path
        assert not found.inline, (path, found.inline)
        assert not {"iframe", "img", "object", "embed", "base"} & set(found.tags), path
        assert not [each for each in found.loaded if not each.startswith(("/", "#"))], path
        assert not [each for each in found.links if each.lower().startswith(("javascript:", "data:", "//"))], path
        assert not {"\u202e", "\u2066", "\x1b", "\x07"} & set(page), path
        assert len(page) < 700_000, path
    assert record.session


async def test_a_page_of_what_was_removed_says_so(hf: Holdfast) -> None:
    agent = guide(hf)
    await hf.ensure_worker()
    run = await agent.enqueue("Hello", session="chat")
    await run.result(timeout="60s")
    ann = browser(hf)
    assert (await ann.get(f"/runs/{run.id}")).status == 200
    await hf.sessions.delete((await run.refresh()).session)
    gone = await ann.get(f"/runs/{run.id}")
    assert (gone.status, "<h1>Not Found</h1>" in gone.body.decode()) == (404, True)


async def test_a_prefix_counts_if_a_proxy_that_is_believed_says_it(hf: Holdfast) -> None:
    made = browser(hf)
    told = {**made.headers, "x-forwarded-prefix": "/ops"}
    believed = Client(PathPrefix(made.app, proxies={"127.0.0.1"}), headers=told)
    page = Seen((await believed.get("/runs")).body.decode())
    assert {link.split("/")[1] for link in page.links if link.startswith("/")} == {"ops"}
    assert (await believed.get("/ops/runs")).status == 200
    for prefix in ("//evil.example", "/a\\b", "/" + "x" * 300):
        believed.headers["x-forwarded-prefix"] = prefix
        assert "/runs" in Seen((await believed.get("/runs")).body.decode()).links or prefix.startswith("//evil"), prefix
        assert not [link for link in Seen((await believed.get("/runs")).body.decode()).links if link.startswith("//")]
    stranger = Client(PathPrefix(made.app, proxies={"10.0.0.1"}), headers=told)
    assert "/runs" in Seen((await stranger.get("/runs")).body.decode()).links
    fixed = Client(PathPrefix(made.app, prefix="/ops/"), headers=made.headers)
    for path in ("/runs", "/ops/runs"):
        assert "/ops/runs" in Seen((await fixed.get(path)).body.decode()).links, path
