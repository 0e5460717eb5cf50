"""The pages, as a browser asks for them: what they show, to whom, and what their forms do."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib.resources import files

from holdfast import Holdfast
from holdfast.agents.api.run import Run
from holdfast.agents.system_jobs import EXPIRE, system_job
from holdfast.app import core_of
from holdfast.http import web
from holdfast.http.pages import rendering
from holdfast.http.pages.rendering import as_html
from holdfast.http.pages.serving import ROUTES
from holdfast.http.security.roles import TABLE
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import derived_id
from holdfast.models.script import Script, call, calls, say
from tests.http.browsing import HTML, Seen, browser, filled_in, pages, send, treasurer
from tests.http.client import Client
from tests.http.test_api import guide
from tests.support.apps import eventually

NOBODY = "01a1e8ff-f760-79de-be6b-bdb736ddf57d"


async def asking(hf: Holdfast, words: str = "I pay it.", tenant: str = "") -> Run[str]:
    """A run that waits for a person."""
    agent = treasurer(hf, words)
    await hf.ensure_worker()
    run = await agent.enqueue("Pay what is due.", tenant=tenant)

    async def asked() -> bool:
        return bool(await hf.inquiries.list(run=run.id))

    await eventually(asked)
    return run


def test_every_page_has_the_rule_of_a_route() -> None:
    assert {route.name for route in ROUTES} <= set(TABLE)
    for route in ROUTES:
        changes = TABLE[route.name].role != "viewer"
        assert route.method == "GET" or changes, f"{route.path} changes something, and a viewer may call it"


async def test_every_page_answers_and_obeys_its_policy(hf: Holdfast) -> None:
    run = await asking(hf)
    client = browser(hf)
    for route in pages("GET"):
        answer = await client.get(filled_in(route.path, run.id), a=run.id, b=run.id)
        expected = 404 if "{" in route.path else 422 if route.path == "/jobs/cancel" else 200  # all jobs: say which
        assert answer.status in (200, expected), (route.path, answer.status, answer.body[-2000:])
        if route.path == "/money.csv":
            continue
        assert answer.headers["content-type"] == "text/html; charset=utf-8", route.path
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert not Seen(answer.body.decode()).inline, route.path


async def test_what_is_not_there_is_a_page_that_says_so(hf: Holdfast) -> None:
    ann = browser(hf)
    for path in ("/runs/nothing", f"/jobs/{NOBODY}", "/no/such/page"):
        answer = await ann.get(path)
        assert answer.status == 404, path
        assert "<h1>Not Found</h1>" in answer.body.decode()
    program = await Client(ann.app).get("/runs/nothing")
    assert program.headers["content-type"] == "application/problem+json"
    assert (await ann.get("/runs", state="nonsense")).status == 422
    assert (await ann.get("/runs", after="nonsense")).status == 422
    assert (await ann.get("/runs", since="nonsense")).status == 422
    assert (await ann.get("/runs", limit="many")).status == 422


async def test_the_first_page_is_for_browsers(hf: Holdfast) -> None:
    ann = browser(hf)
    assert (await ann.get("/")).headers["content-type"].startswith("text/html")
    assert (await Client(ann.app).get("/")).json["name"] == "holdfast"


async def test_a_run_is_shown_with_what_was_said(hf: Holdfast) -> None:
    agent = guide(hf)
    await hf.ensure_worker()
    run = await agent.enqueue("What is <b>it</b>?", session="chat")
    await run.result(timeout="60s")
    ann = browser(hf)
    page = (await ann.get(f"/runs/{run.id}")).body.decode()
    assert "What is &lt;b&gt;it&lt;/b&gt;?" in page
    assert "<p>A cat.</p>" in page
    assert "look_up" in page
    assert "<svg" in page
    assert [each.text for each in await run.messages()][-1] == "A cat."
    assert [reason.gate for reason in await run.why()] == ["ended"]
    compared = await ann.get("/runs/compare", a=run.id, b=run.id)
    assert (compared.status, "They gave the same answer." in compared.body.decode()) == (200, True)
    assert run.id in (await ann.get("/find", q=run.id)).body.decode()
    assert "guide" in (await ann.get("/find", q="gui")).body.decode()


async def test_a_person_approves_with_other_arguments(hf: Holdfast) -> None:
    run = await asking(hf)
    (inquiry,) = await hf.inquiries.list(run=run.id)
    ann = browser(hf)
    inbox = (await ann.get("/inbox")).body.decode()
    assert inquiry.digest in inbox
    assert "I pay it." in inbox
    wrong = await send(ann, f"/inquiries/{inquiry.id}/approve", digest=inquiry.digest, input="[1]", shown="{}")
    assert (wrong.status, "JSON object" in wrong.body.decode()) == (422, True)
    changed = {"digest": inquiry.digest, "input": '{"amount": 3, "to": "Acme"}', "shown": '{"amount": 5, "to": "Acme"}'}
    decided = await send(ann, f"/inquiries/{inquiry.id}/approve", **changed)
    assert (decided.status, decided.headers["location"]) == (303, "/inbox"), decided.body
    await run.result(timeout="60s")
    (pay,) = await run.calls()
    assert pay.output == "paid 3 to Acme" or "paid 3 to Acme" in json.dumps(pay.output)
    names = [each.action for each in await hf.access.audit.list()]
    assert names.count("POST /inquiries/{id}/approve") == 4  # each twice: before, and what came of it


async def test_a_person_denies_with_words_and_answers_a_question(hf: Holdfast) -> None:
    run = await asking(hf)
    (inquiry,) = await hf.inquiries.list(run=run.id)
    ann = browser(hf, "operator")
    assert (await send(ann, f"/inquiries/{inquiry.id}/deny", digest=inquiry.digest, message="Too much.")).status == 303
    await run.result(timeout="60s")
    assert "Too much." in (await ann.get(f"/runs/{run.id}")).body.decode()
    ask = hf.inquiries.question()
    hf.script(
        "asker", Script(calls(call("ask_person", question="Which one?", choices=["May", "June"])), say("Thanks."))
    )
    asked = await hf.agent("asker", model="scripted:asker", tools=[ask]).enqueue("Sort it.")

    async def waits() -> bool:
        return bool(await hf.inquiries.list(run=asked.id))

    await eventually(waits)
    (question,) = await hf.inquiries.list(run=asked.id)
    assert "Which one?" in (await ann.get("/inbox")).body.decode()
    assert (await send(ann, f"/inquiries/{question.id}/answer", digest=question.digest)).status == 422
    assert (await send(ann, f"/inquiries/{question.id}/answer", digest=question.digest, choice="May")).status == 303
    await asked.result(timeout="60s")


async def test_runs_are_cancelled_retried_and_forked_from_their_page(hf: Holdfast) -> None:
    run = await asking(hf)
    ann = browser(hf, "operator")
    page = (await ann.get(f"/runs/{run.id}")).body.decode()
    assert "Cancels 1 run, 1 call." in page
    assert (await send(ann, f"/runs/{run.id}/steer", prompt="Hurry.")).status == 303
    cancelled = await send(ann, f"/runs/{run.id}/cancel", reason="too dear")
    assert (cancelled.status, cancelled.headers["location"]) == (303, f"/runs/{run.id}")
    assert (await run.refresh()).state == "cancelled"
    again = await send(ann, f"/runs/{run.id}/retry")
    other = again.headers["location"].rpartition("/")[2]
    assert (await hf.runs.get(other)).retry_of == run.id
    forked = await send(ann, f"/runs/{run.id}/fork", at="", prompt="Pay nothing.", model="")
    assert forked.status == 303, forked.body
    assert (await send(ann, f"/runs/{run.id}/fork", at="two")).status == 422
    assert (await send(ann, f"/runs/{run.id}/cancel", reason="x" * 2_001)).status == 422
    assert (await send(ann, f"/runs/{other}/interrupt")).status == 303


async def test_many_runs_are_changed_after_they_were_counted(hf: Holdfast) -> None:
    agent = guide(hf)
    runs = [await agent.enqueue(f"Number {n}") for n in range(3)]
    ann = browser(hf, "operator")
    asked = (await ann.get("/runs/cancel", state="pending")).body.decode()
    assert "Cancel 3 runs?" in asked
    chosen = await send(ann, "/runs/cancel", id=[runs[0].id, "nothing"], reason="enough")
    assert "1 of 2 cancelled" in chosen.body.decode()
    rest = await send(ann, "/runs/cancel", state="pending", reason="enough")
    assert "2 of 2 cancelled" in rest.body.decode(), rest.body
    assert "Retry 3 runs?" in (await ann.get("/runs/retry", state="cancelled")).body.decode()
    again = await send(ann, "/runs/retry", id=[run.id for run in runs])
    assert "3 of 3 enqueued again" in again.body.decode()


async def test_why_a_job_waits_is_one_click_away(hf: Holdfast) -> None:
    @hf.job
    def resize(width: int) -> None: ...

    job = await resize.enqueue(640)
    ann = browser(hf, "operator")
    await hf.queues.pause("default", reason="lunch")
    assert "lunch" in (await ann.get("/why", id=job.id)).body.decode()
    assert "resize" in (await ann.get("/jobs")).body.decode()
    assert "640" in (await ann.get(f"/jobs/{job.id}")).body.decode()
    assert (await ann.get("/why", id=NOBODY)).status == 404
    assert (await send(ann, f"/jobs/{job.id}/cancel", reason="no more")).status == 303
    again = await send(ann, f"/jobs/{job.id}/retry")
    assert (await hf.jobs.get(again.headers["location"].rpartition("/")[2])).retry_of == job.id
    assert "Cancel 1 job?" in (await ann.get("/jobs/cancel", state="pending")).body.decode()
    assert "1 of 1 cancelled" in (await send(ann, "/jobs/cancel", state="pending")).body.decode()


async def test_the_runtimes_own_jobs_are_shown_if_they_are_asked_for(hf: Holdfast) -> None:
    @hf.job(name="mail.send")
    def send_mail() -> None: ...

    await send_mail.options(key="order-1").enqueue()
    job, route = system_job(EXPIRE, derived_id("own"), {})
    await core_of(hf).runtime().transact(enqueue, [job], [route])
    ann = browser(hf, "operator")

    async def listed(**asked: str) -> set[str]:
        return set(re.findall(r"mail\.send|system:expire", (await ann.get("/jobs", **asked)).body.decode()))

    assert await listed() == await listed(kind="mail.*", key="order-1") == {"mail.send"}
    assert await listed(system="1") == {"mail.send", "system:expire"}
    assert "Cancel all of these" not in (await ann.get("/jobs", state="pending", kind="mail.*")).body.decode()


async def test_a_viewer_sees_no_buttons_and_no_secrets(hf: Holdfast) -> None:
    secret = "sk-ant-abcdefgh12345678"
    run = await asking(hf, words=f"The key is {secret}.")
    clients = browser(hf, "viewer"), browser(hf, "operator")
    for place in ("/", "/inbox", "/runs", f"/runs/{run.id}", "/jobs", f"/jobs/{run.id}"):
        viewer, operator = [(await each.get(place)).body.decode() for each in clients]
        assert Seen(viewer).posts == ["/logout"], place
        assert secret not in viewer, place
        assert place in ("/", "/runs", "/jobs") or len(Seen(operator).posts) > 1, place
    assert secret in (await browser(hf, "operator").get(f"/runs/{run.id}")).body.decode()
    assert (await send(browser(hf, "viewer"), f"/runs/{run.id}/cancel")).status == 403


async def test_a_browser_that_is_not_known_is_sent_to_the_login(hf: Holdfast) -> None:
    stranger = Client(web(hf), headers=dict(HTML))
    sent = await stranger.get("/runs", state="failed")
    assert (sent.status, sent.headers["location"]) == (303, "/login?next=%2Fruns%3Fstate%3Dfailed")
    page = await stranger.get("/login", next="/runs?state=failed")
    assert (page.status, 'name="token"' in page.body.decode()) == (200, True)
    token = await hf.access.tokens.create("ann", role="viewer")
    wrong = await send(stranger, "/login", token="hft_nonsense", next="/runs")
    assert (wrong.status, "set-cookie" in wrong.headers) == (401, False)
    entered = await send(stranger, "/login", token=token.secret, next="/runs?state=failed")
    assert (entered.status, entered.headers["location"]) == (303, "/runs?state=failed")
    for elsewhere in ("https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)"):
        answer = await send(stranger, "/login", token=token.secret, next=elsewhere)
        assert answer.headers["location"] == "/", elsewhere
    stranger.headers["cookie"] = entered.headers["set-cookie"].partition(";")[0]
    assert (await stranger.get("/runs")).status == 200
    assert (await send(stranger, "/logout")).headers["location"] == "/login"
    assert (await stranger.get("/runs")).status == 303
    used = await stranger.get("/login", link="nonsense")
    assert (used.status, "was used already" in used.body.decode()) == (401, True)
    foreign = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "cross-site"}
    assert (await stranger.call("POST", "/login", raw=b"token=x", headers=foreign)).status == 403


async def test_a_form_of_another_site_changes_nothing(hf: Holdfast) -> None:
    run = await guide(hf).enqueue("Hello")
    headers = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "cross-site"}
    answer = await browser(hf).call("POST", f"/runs/{run.id}/cancel", raw=b"reason=x", headers=headers)
    assert answer.status == 403
    assert (await run.refresh()).state == "pending"


async def test_assets_are_kept_by_browsers(hf: Holdfast) -> None:
    nobody = Client(web(hf))
    for name in rendering.stored():
        answer = await nobody.get(f"/assets/{rendering.version()}/{name}")
        assert (answer.status, "immutable" in answer.headers["cache-control"]) == (200, True), name
    old = await nobody.get("/assets/000000000000/holdfast.css")
    assert (old.status, old.headers["cache-control"]) == (200, "no-cache")
    assert (await nobody.get(f"/assets/{rendering.version()}/../app.py")).status == 404
    assert (await nobody.get(f"/assets/{rendering.version()}/vendor.json")).status == 404


def test_what_is_vendored_is_what_it_says() -> None:
    folder = files("holdfast.http.assets")
    told = json.loads((folder / "vendor.json").read_text())
    assert {each["licence"] for each in told} <= {"0BSD", "ISC", "MIT"}
    for package in told:
        for name, expected in package["files"].items():
            found = base64.b64encode(hashlib.sha512((folder / name).read_bytes()).digest()).decode()
            assert f"sha512-{found}" == expected, f"run `make assets`: {name} is not that of {package['name']}"


def test_answers_bring_no_markup_of_their_own() -> None:
    shown = as_html("<script>alert(1)</script> ![x](https://evil.example) [y](javascript:alert(1)) **z**")
    assert Seen(shown).tags == ["p", "a", "strong"]
    assert "javascript:" not in str(Seen(shown).links)
