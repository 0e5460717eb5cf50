"""The programs in `examples/` do what they say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from holdfast.testing.databases import SERVER_VARIABLE
from tests.conftest import Place
from tests.http.browser import request
from tests.support.apps import eventually
from tests.support.commands import PATIENCE, Said, environment, holdfast, program, python, start

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_every_example_is_run_here() -> None:
    programs = {"quickstart", "jobs", "images", "family", "transactions", "nightly", "pool", "article"}
    agents = {
        "chat",
        "fleet",
        "newsroom",
        "notes",
        "tickets",
        "ops",
        "web",
        "support",
        "resume",
        "compaction",
        "fork",
        "admin",
    }
    guides = {"approval", "overnight", "budgets", "testing_agent", "testing_programs", "universal_agent"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == programs | agents | guides


def test_the_readme_lists_every_example() -> None:
    listed = re.findall(r"^\| \[(\S+)\]\(\1\) \| \S.*\. \|$", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.glob("*.py"))


def test_quickstart(tmp_path: Path) -> None:
    for _ in range(2):
        said = program(str(EXAMPLES / "quickstart.py"), cwd=tmp_path)
        assert said == (0, "sunny in Oslo\n", "")
    jobs = holdfast("jobs", "ls", "--url", f"sqlite:///{tmp_path / 'quick.db'}", "--json").json
    assert sorted((job["kind"], job["state"]) for job in jobs) == [
        ("agent:guide", "succeeded"),
        ("tool:weather", "succeeded"),
    ], "the key makes both calls one run"


def test_article(tmp_path: Path, place: Place) -> None:
    said = program(str(EXAMPLES / "article.py"), cwd=tmp_path, env=environment(HOLDFAST_URL=place.url))
    assert said.err == ""
    assert said.lines[-1] == "{'draft': 'The Storm, draft 2', 'rounds': 2}"
    assert [line for line in said.lines if line.isidentifier()] == [
        *("start", "write", "ask_editor", "write", "ask_editor", "print", "done"),
    ]
    assert "printing: The Storm, draft 2" in said.lines


@pytest.mark.long
def test_universal_agent(tmp_path: Path) -> None:
    handled = "job_1: The notes are in order.\njob_2: The notes are in order.\n"
    file = str(EXAMPLES / "universal_agent.py")
    assert program(file, cwd=tmp_path) == (0, f"{handled}Active workers: 1\nCompleted: 2\n", "")
    assert program(file, cwd=tmp_path) == (0, "Active workers: 1\nCompleted: 0\n", ""), "runs are not run again"


@pytest.mark.long
def test_chat(tmp_path: Path) -> None:
    answer = "It is sunny in Oslo. I am a script"
    said = _talk(tmp_path, "Oslo?\nAnd now?\n")
    assert (said.out.count("[weather {'city': 'Oslo'}]"), said.out.count(answer)) == (2, 2), said
    assert said.lines[0] == "0 messages so far. An empty line leaves."
    assert _talk(tmp_path, "").lines[0] == "8 messages so far. An empty line leaves."


def _talk(folder: Path, typed: str) -> Said:
    return program(str(EXAMPLES / "chat.py"), cwd=folder, typed=typed)


@pytest.mark.long
def test_notes(tmp_path: Path) -> None:
    said = program(str(EXAMPLES / "notes.py"), cwd=tmp_path)
    assert said == (0, "notes_read (read)\nnotes_write (idempotent)\nThe note says: high at six.\n", "")


@pytest.mark.long
def test_fork(tmp_path: Path, place: Place) -> None:
    said = program(str(EXAMPLES / "fork.py"), cwd=tmp_path, env=environment(HOLDFAST_URL=place.url))
    assert said.lines == [
        "Room 12 is booked.",
        "again: Room 12 is booked. booked: ['12']",
        "with nothing free: There is no room.",
        "calls: =find_rooms -book +book",
        "-Room 12 is booked.",
        "+The suite was too expensive.",
        "replayed: 3 turns, the same: True. booked: ['12']",
    ], said


@pytest.mark.long
def test_pool(tmp_path: Path, place: Place) -> None:
    path = os.pathsep.join([str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = environment(HOLDFAST_URL=place.url, PYTHONPATH=path)
    said = program(str(EXAMPLES / "pool.py"), cwd=tmp_path, env=env)
    assert said.lines == ["12 pictures, the first is boat 0", "0 workers are left, 0 jobs wait"], said


@pytest.mark.long
def test_fleet(tmp_path: Path, place: Place) -> None:
    env = environment(HOLDFAST_URL=place.url, PYTHONPATH=str(EXAMPLES))
    said = program(str(EXAMPLES / "fleet.py"), cwd=tmp_path, env=env)
    assert said.lines == [
        "no live worker serves agent 'artist': start one, or leave require_worker out.",
        "Sketched and painted.",
        "a sketch of a boat",
        "a painting of a boat, by worker gpu",
    ]


@pytest.mark.long
def test_newsroom(tmp_path: Path, place: Place) -> None:
    said = program(str(EXAMPLES / "newsroom.py"), cwd=tmp_path, env=environment(HOLDFAST_URL=place.url))
    assert said.err == ""
    assert said.lines == [
        "Printed on page one.",
        "editor: 2 turns, completed",
        "  reporter: 2 turns, completed",
        "    archivist: 2 turns, completed",
        "3 runs in one tree",
    ]


@pytest.mark.long
def test_tickets(tmp_path: Path, postgres_url: str) -> None:
    said = program(str(EXAMPLES / "tickets.py"), cwd=tmp_path, env=environment(HOLDFAST_URL=postgres_url))
    assert said == (0, "refused: no ticket, no run\n1 run, 1 session\nMy order never came.\n", "")


@pytest.mark.long
def test_resume(tmp_path: Path) -> None:
    env = environment(PYTHONUNBUFFERED="1")
    said = program(str(EXAMPLES / "resume.py"), cwd=tmp_path, env=env)
    assert said[:2] == (-9, "making an outline of Tides\npublishing Tides\n")
    said = program(str(EXAMPLES / "resume.py"), cwd=tmp_path, env=env)
    assert said.lines == ["publishing Tides", "It is published.", "3 turns, 3 calls of the model"]


@asynccontextmanager
async def _served(app: str, folder: Path) -> AsyncIterator[int]:
    """The port of a server for this app, once it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ("-m", "uvicorn", app, "--app-dir", str(EXAMPLES), "--port", str(port))
    server = start(*command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        async def answers() -> bool:
            try:
                async with request(port, "/runs/nothing/events") as reader:
                    return reader.status == 404
            except OSError:
                return False

        await eventually(answers)
        yield port
    finally:
        server.terminate()
        await asyncio.to_thread(server.wait)


@pytest.mark.long
async def test_web(tmp_path: Path) -> None:
    async with _served("web:app", tmp_path) as port:
        async with request(port, "/chats/ann?text=Where+is+A1", "POST") as reader:
            run = json.loads(await reader.body())["run"]
        async with request(port, f"/runs/{run}/events") as reader:
            frames = [frame async for frame in reader.frames()]
        assert frames[-1].data["result"]["text"] == "Your order A1 is on its way."
        async with request(port, f"/runs/{run}/events", last_event_id=str(frames[-2].id)) as reader:
            assert [frame.event async for frame in reader.frames()] == ["run_ended"]
        async with request(port, f"/runs/{run}/cancel", "POST") as reader:
            assert json.loads(await reader.body()) == {"state": "completed"}


@pytest.mark.long
async def test_ops(tmp_path: Path) -> None:
    async with _served("ops:app", tmp_path) as port:
        bob, ann = ({"name": "bob", "password": "blue-iris"}, {"name": "ann", "password": "red-tulip"})

        def call(path: str, body: object = None, **headers: str) -> tuple[int, str, str]:
            """The status, the cookie, and the body."""
            sent = {"content-type": "application/json", "origin": f"http://127.0.0.1:{port}"} | headers
            with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                connection.request(
                    "GET" if body is None else "POST", path, None if body is None else json.dumps(body), sent
                )
                answer = connection.getresponse()
                return answer.status, answer.headers.get("set-cookie", "").partition(";")[0], answer.read().decode()

        def tried() -> None:
            assert call("/login", bob | {"password": "red-tulip"})[0] == 401
            assert call("/ops/api/v1/system", **{"x-user": "ann"})[0] == 401
            _, cookie, _ = call("/login", bob)
            status, _, system = call("/ops/api/v1/system", cookie=cookie)
            assert (status, json.loads(system)["you"]) == (200, {"name": "bob", "role": "viewer", "tenant": "acme"})
            assert call("/ops/api/v1/queues", cookie=cookie)[0] == 404
            _, cookie, _ = call("/login", ann)
            assert call("/ops/api/v1/runs", {"agent": "guide", "prompt": "Hello"}, cookie=cookie)[0] == 201

        await asyncio.to_thread(tried)


@pytest.mark.long
async def test_admin(tmp_path: Path) -> None:
    async with _served("admin:app", tmp_path) as port:
        async with request(port, "/admin/queues", accept="text/html") as reader:
            assert (reader.status, reader.headers["location"]) == (303, "/admin/login?next=%2fqueues")
        for name, status in (("ann", 200), ("bob", 404)):
            async with request(port, f"/login?name={name}") as reader:
                cookie = reader.headers["set-cookie"].partition(";")[0]
            async with request(port, "/admin/queues", cookie=cookie, accept="text/html") as reader:
                assert reader.status == status
        async with request(port, "/login?name=eve") as reader:
            assert reader.status == 403


@pytest.mark.long
async def test_support(tmp_path: Path) -> None:
    async with _served("support:app", tmp_path) as port:
        async with request(port, "/chats/ann?text=A1+never+came", "POST") as reader:
            run = json.loads(await reader.body())["run"]
        async with request(port, f"/runs/{run}/events") as reader:
            async for frame in reader.frames():
                if frame.event == "approval_requested":
                    break
            async with request(port, "/inquiries") as other:
                (asked,) = json.loads(await other.body())["items"]
            assert (asked["id"], asked["call"]["name"]) == (frame.data["inquiry"], "refund")
            async with request(port, f"/inquiries/{asked['id']}?approve=true&by=bob", "POST") as other:
                assert json.loads(await other.body()) == {"state": "approved"}
            rest = [frame async for frame in reader.frames()]
        assert rest[-1].data["result"]["text"] == "You get 80 euros back."
        async with request(port, "/inquiries/nothing?approve=true&by=bob", "POST") as reader:
            assert reader.status == 404


@pytest.mark.long
def test_nightly(tmp_path: Path, postgres_url: str) -> None:
    said = program(str(EXAMPLES / "nightly.py"), cwd=tmp_path, env=environment(HOLDFAST_URL=postgres_url))
    assert said == (0, "customer 1: 30 euros\ncustomer 2: 12 euros\n0 customers are left\n", "")


@pytest.mark.long
def test_testing_programs(tmp_path: Path, postgres_url: str) -> None:
    path = os.pathsep.join([str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = environment(PYTHONPATH=path, **{SERVER_VARIABLE: postgres_url})
    tests = str(EXAMPLES / "testing_programs.py")
    said = python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "--holdfast-db=postgres", tests, cwd=tmp_path, env=env
    )
    assert "4 passed" in said.lines[-1], said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_compaction(tmp_path: Path, place: Place) -> None:
    said = program(str(EXAMPLES / "compaction.py"), cwd=tmp_path, env=environment(HOLDFAST_URL=place.url))
    assert said.err == ""
    full, pruned, summarized, asked, back = said.lines
    assert full.startswith("24 messages, ")
    assert pruned.startswith("4 outputs of tools removed: ")
    assert summarized.startswith("16 messages summarised: ")
    assert asked == "The last incident was on Saturday. What came before is in a summary of 16 messages."
    assert back == "restored twice: 28 messages, the first of them 'What happened on Monday?'"


APPROVED = [
    "approved by ann",
    "You get both back.",
    "refund completed 80 euros for A1",
    "refund completed 20 euros for B2",
]


@pytest.mark.long
def test_approval(tmp_path: Path, place: Place) -> None:
    for _ in range(2):  # the second time it reads what happened the first time
        said = program(str(EXAMPLES / "approval.py"), cwd=tmp_path, env=environment(HOLDFAST_URL=place.url))
        assert said.lines == ["refund A1 waits for a person", *APPROVED]


@pytest.mark.long
def test_approval_from_another_terminal(tmp_path: Path) -> None:
    command = [sys.executable, "-u", str(EXAMPLES / "approval.py"), "elsewhere"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "refund A1 waits for a person\n"
        words = shlex.split(waiting.stdout.readline())
        (open_one,) = holdfast("runs", "inquiries", "--json", cwd=tmp_path).json
        assert (open_one["kind"], open_one["call"]["input"]) == ("approval", {"number": "A1", "amount": "80"})
        assert holdfast(*words[1:], cwd=tmp_path).lines == [f"inquiry {open_one['id']} is approved"]
        rest, _ = waiting.communicate(timeout=PATIENCE)
    assert rest.splitlines() == APPROVED


@pytest.mark.long
def test_overnight(tmp_path: Path) -> None:
    said = program(str(EXAMPLES / "overnight.py"), cwd=tmp_path, env=environment(HOLDFAST_PROFILE="fast"))
    # A slow machine is no failure: after three seconds the program says what it waits for.
    assert [line for line in said.err.splitlines() if not line.startswith("still waiting for run ")] == []
    assert said.lines[:-1] == [
        "1,000 runs are committed; their mode is batch",
        *(f"{done:,} done" for done in (250, 500, 750, 1_000)),
        "334 customers are happy",
    ]
    assert said.lines[-1].startswith("1,000 turns, mode batch: 0.4")
    batches = holdfast("batches", "ls", "--json", cwd=tmp_path).json
    assert sum(batch["applied"] for batch in batches) == 1_000
    assert len(batches) < 10


@pytest.mark.long
def test_budgets(tmp_path: Path, place: Place) -> None:
    said = program(str(EXAMPLES / "budgets.py"), cwd=tmp_path, env=environment(HOLDFAST_URL=place.url))
    assert said.err == ""
    asked = [line for line in said.lines if line.startswith("ben: waits for a person")]
    ann, why, went_on, *used = [line for line in said.lines if line not in asked]
    assert ann == "ann: limited after 3 turns"
    assert why.startswith("  the budget of tenant ann is 0.0300 USD in a day: ")
    assert len(asked) == 2  # each time as much again is granted
    assert all("because the budget of tenant ben is 0.0300 USD in a day: " in line for line in asked)
    assert went_on == "  answered after 7 turns"
    assert [line.partition(",")[0] for line in used] == [
        "ben: 7 turns of claude-sonnet-5-5",
        "ann: 3 turns of claude-sonnet-5-5",
    ]


@pytest.mark.long
def test_testing_agent(tmp_path: Path) -> None:
    said = python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / "testing_agent.py"), cwd=tmp_path)
    assert "5 passed" in said.lines[-1], said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_jobs(tmp_path: Path, place: Place) -> None:
    said = program(str(EXAMPLES / "jobs.py"), cwd=tmp_path, env=environment(HOLDFAST_URL=place.url))
    warned, *trace = said.err.splitlines()
    assert "failed on attempt 1 of 5 and is tried again" in warned
    assert trace[-1] == "  OSError: the disk is slow today"
    first, rest = said.lines[:5], said.lines[5:]
    assert first == [
        "downloading https://example.org/a.png",
        "attempt 1",  # snoozed
        "attempt 1",  # failed
        "attempt 2",
        "the bytes of https://example.org/a.png, 400 wide",
    ]
    assert sorted(rest[:-2]) == ["attempt 1", "attempt 1", "downloading b.png", "downloading c.png"]
    assert rest[-2:] == ["the bytes of b.png, 800 wide", "the bytes of c.png, 800 wide"]


@pytest.mark.long
def test_images(tmp_path: Path, place: Place) -> None:
    env = environment(HOLDFAST_URL=place.url, PYTHONPATH=str(EXAMPLES))
    said = program(str(EXAMPLES / "images.py"), cwd=tmp_path, env=env)
    assert said == (0, "the bytes of https://example.org/a.png, 400 wide\n", "")
    (schedule,) = holdfast("schedules", "ls", "--json", env=env).json
    assert (schedule["name"], schedule["timezone"]) == ("images.nightly", "Europe/Athens")

    (tmp_path / "full").touch()
    assert holdfast("schedules", "run", "images.nightly", env=env).code == 0
    assert holdfast("worker", "images:hf", "--until-empty", cwd=tmp_path, env=env).code == 0
    (night,) = holdfast("jobs", "ls", "--kind", "images.nightly", "--json", env=env).json
    assert night["state"] == "succeeded"
    second, first, _ = holdfast("jobs", "ls", "--kind", "images.resize", "--json", env=env).json
    assert [job["payload"]["url"] for job in (first, second)] == ["b.png", "c.png"]
    assert (first["state"], first["attempts"]) == ("scheduled", 0)  # it snoozes; the other one may wait for the rate


@pytest.mark.long
def test_family(tmp_path: Path, place: Place) -> None:
    said = program(str(EXAMPLES / "family.py"), cwd=tmp_path, env=environment(HOLDFAST_URL=place.url))
    assert said[:2] == (0, "The Storm: 7 words, thin says Ann\nnote: chapter three is empty\n")
    (failed,) = said.err.splitlines()
    assert failed.endswith(
        "(family.count_words) failed on attempt 1 of 3 and is not tried again: chapter three is empty"
    )
    (parent,) = holdfast("jobs", "ls", "--url", place.url, "--kind", "family.review", "--json").json
    assert parent["attempts"] == 1
    children = holdfast("jobs", "ls", "--url", place.url, "--kind", "family.count_words", "--json").json
    assert {child["parent"] for child in children} == {parent["seq"]}


@pytest.mark.long
def test_transactions(tmp_path: Path) -> None:
    said = program(str(EXAMPLES / "transactions.py"), cwd=tmp_path)
    assert said == (0, "A1 is confirmed\nA2 is out of stock\n1 order, 1 job\n", "")


def test_a_worker_can_be_started_for_an_example(place: Place) -> None:
    said = holdfast("worker", "jobs:hf", "--url", place.url, "--until-empty", cwd=EXAMPLES)
    assert said.code == 0
