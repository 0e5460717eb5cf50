"""`holdfast queues`: what is in each, what holds it up, pause and resume."""

from __future__ import annotations

from shlex import quote

import pytest

from holdfast import Holdfast, Queue
from holdfast.kernel.queues import absent_queue
from holdfast.workers.role import Role
from tests.conftest import Place
from tests.support.apps import working
from tests.support.commands import holdfast


@pytest.fixture
async def busy(place: Place) -> str:
    """Three jobs that wait, one for later, and a lane that lets two through."""
    hf = Holdfast(place.url, embedded=False)
    hf.queue("mail", Queue(fair=True, keep="2d", keep_jobs=100))

    @hf.job(name="send", queue="mail", concurrency=2)
    async def send(number: int) -> None: ...

    @hf.job(name="paint", queue="images")
    async def paint() -> None: ...

    async with hf:
        await send.enqueue_many([(1,), (2,), (3,)])
        await send.options(delay="1h").enqueue(4)
        await paint.enqueue()
    return place.url


def test_queues_are_listed_with_their_counts(busy: str) -> None:
    heading, *lines = holdfast("queues", "ls", "--url", busy).lines
    assert heading.split() == ["QUEUE", "PENDING", "BLOCKED", "RUNNING", "LATER", "DONE/MIN", "FAILED/MIN", "PAUSED"]
    assert [line.split() for line in lines] == [
        ["images", "1", "0", "0", "0", "0", "0", "-"],
        ["mail", "3", "0", "0", "1", "0", "0", "-"],
    ]
    listed = holdfast("queues", "ls", "--url", busy, "--json").json
    assert [(row["name"], row["pending"], row["later"], row["keep"]) for row in listed] == [
        ("images", 1, 0, None),
        ("mail", 3, 1, "2d"),
    ]


def test_there_are_no_queues(empty: str) -> None:
    assert holdfast("queues", "ls", "--url", empty).lines == ["no queues"]


def test_a_queue_is_shown_from_all_sides(busy: str) -> None:
    shown = {
        line.split()[0]: line.split(maxsplit=1)[1] for line in holdfast("queues", "show", "mail", "--url", busy).lines
    }
    assert (shown["pending"], shown["later"], shown["fair"], shown["keep_jobs"]) == ("3", "1", "yes", "100")
    assert shown["workers"] == "no worker serves it"
    assert shown["oldest_pending"].startswith("waits for ")
    assert shown["job:send"].split() == ["0/2", "0", "-", "-"]
    told = holdfast("queues", "show", "mail", "--url", busy, "--json").json
    assert [lane["name"] for lane in told["lanes"]] == ["job:send"]
    assert told["oldest_pending_at"].endswith("Z")


@pytest.mark.long
async def test_a_queue_is_shown_with_the_workers_that_serve_it(busy: str) -> None:
    hf = Holdfast(busy, embedded=False)

    @hf.job(name="other", queue="other")
    async def other() -> None: ...

    async with working(hf, Role(id="mill-1", queues=("mail",))), working(hf, Role(id="mill-2", queues=("images",))):
        assert holdfast("queues", "show", "mail", "--url", busy, "--json").json["workers"] == ["mill-1"]
    await hf.close()


def test_a_queue_that_is_not_there(busy: str) -> None:
    for verb in ("show", "resume"):
        line = holdfast("queues", verb, "mial", "--url", busy).refused(2)
        assert line == "there is no queue 'mial'; there are images, mail. Did you mean 'mail'?"
    bulk = (("prune",), ("jobs", "cancel", "--all", "--yes"), ("jobs", "retry", "--all"), ("jobs", "tail"))
    for words in bulk:
        line = holdfast(*words, "--queue", "mial", "--url", busy).refused(2)
        assert line == "there is no queue 'mial'; there are images, mail. Did you mean 'mail'?"


def test_a_kind_that_no_job_has_is_named(busy: str) -> None:
    for words in (("jobs", "cancel", "--all", "--yes"), ("jobs", "retry", "--all")):
        said = holdfast(*words, "--kind", "sned", "--url", busy)
        assert (said.code, said.err) == (0, "no stored job is of kind 'sned'. Did you mean 'send'?\n")
    assert holdfast("jobs", "retry", "--all", "--kind", "send", "--url", busy).err == ""


def test_one_queue_is_named_in_plain_english(empty: str) -> None:
    assert holdfast("queues", "resume", "mial", "--url", empty).refused(2).endswith("; there is no queue yet.")
    assert absent_queue("mial", ["mail"]) == "there is no queue 'mial'; the only queue is 'mail'. Did you mean 'mail'?"


def test_a_queue_is_paused_before_its_first_job_only_when_that_is_meant(busy: str) -> None:
    line = holdfast("queues", "pause", "mial", "--url", busy).refused(2)
    assert line == (
        "there is no queue 'mial'; there are images, mail. Did you mean 'mail'? "
        "To pause a queue before its first job, add --create."
    )
    assert holdfast("queues", "pause", "reports", "--create", "--url", busy).code == 0
    listed = holdfast("queues", "ls", "--url", busy, "--json").json
    assert [row["name"] for row in listed if row["paused_at"]] == ["reports"]


def test_a_queue_is_paused_and_goes_on(busy: str) -> None:
    (line,) = holdfast("queues", "pause", "mail", "--reason", "the server moves", "--url", busy).lines
    assert line == f"queue mail is paused; `holdfast queues resume mail --url {quote(busy)}` resumes it"
    assert holdfast("queues", "ls", "--url", busy).lines[-1].endswith(": the server moves")
    assert holdfast("queues", "resume", "mail", "--url", busy).lines == ["queue mail is resumed"]
    assert holdfast("queues", "resume", "mail", "--url", busy).lines == ["queue mail was not paused"]
    assert holdfast("queues", "pause", "mail", "--url", busy, "--json").json["paused"] is True
    assert holdfast("queues", "resume", "mail", "--url", busy, "--json").json == {
        "name": "mail",
        "paused": False,
        "changed": True,
    }
