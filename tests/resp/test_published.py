"""The published AGX programs, as they are: what they say is read as the documented commands, and nothing more.

`published/*.jsonl` has what `agw` and `agx` of agenix-sh say over a connection, in words of ours, and what their code
needs of each reply to continue.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.resp import keys
from holdfast.resp.client import KeyPrincipal, digest_of, shared
from tests.conftest import Place
from tests.resp.conftest import KEYS, Client, Connect, Serve
from tests.resp.test_cost import piped
from tests.resp.test_jobs import status, submitted
from tests.resp.test_workers import let_die, live_long, registered
from tests.support.apps import eventually

SAID = Path(__file__).parent / "published"
POP = ("BRPOPLPUSH", "queue:ready", "queue:processing", "10")
SOON = (*POP[:-1], "0.01")
PLAN = {"plan_id": "mirror", "tasks": [{"task_number": 1, "command": "rev", "args": ["{{input.file}}"]}]}
SECRET = "7c" * 32


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SAID / name).read_text("utf-8").splitlines()]


def check(reply: Any, needs: Any) -> None:
    """Whether the program's code takes this reply."""
    match needs:
        case "anything":
            pass
        case "OK":
            assert reply == "OK"
        case "number":
            assert isinstance(reply, int)
        case "nothing":
            assert reply is None
        case "text":
            assert isinstance(reply, str | bytes)
            assert not str(reply).startswith("-"), reply
        case []:
            assert reply == []
        case [each]:
            assert isinstance(reply, list)
            assert reply
            for item in reply:
                check(item, each)
        case dict():
            assert isinstance(reply, bytes), "it reads a bulk string"
            found = json.loads(reply)
            assert {name: type(found.get(name)).__name__ for name in needs} == needs


async def replayed(client: Client, name: str, **known: str) -> dict[str, str]:
    """What came out of the lines of a file, said one after the other."""
    for line in lines(name):
        words = line["says"]
        for key, value in known.items():
            words = [word.replace(f"${key}", value) for word in words]
        reply = await client(*words)
        check(reply, line["needs"])
        if "is" in line:
            known[line["is"]] = bytes(reply).decode()  # type: ignore[arg-type]
        if isinstance(line["needs"], dict) and "plan_id" in line["needs"]:
            known["plan_id"] = json.loads(reply)["plan_id"]  # type: ignore[arg-type]
    return known


async def agw(connect: Connect, name: str = "w1", tools: str = "rev,wc") -> Client:
    """A connection that has said what the worker says first."""
    client = await connect(name)
    assert await client("SET", f"worker:{name}:tools", tools) == "OK"
    assert await client("PING", name) == name.encode()
    return client


async def taken(client: Client) -> str:
    """The id of a job that this worker has popped and read."""
    id = await client.text(*POP)
    job = json.loads(await client.text("GET", f"job:{id}"))
    assert json.loads(await client.text("GET", f"plan:{job['plan_id']}"))["tasks"]
    return id


@pytest.mark.both
async def test_what_agx_and_agw_say_runs_a_job_to_its_end(connect: Connect) -> None:
    submitter = await connect("submitter")
    await replayed(submitter, "agx.jsonl")
    known = await replayed(await connect(None), "agw.jsonl", key=KEYS["w1"])
    done = await status(submitter, known["job"])
    assert (done["status"], done["attempt"], done["worker_id"]) == ("completed", 1, "w1")
    assert done["result"]["stdout"] == "olleh\n1 1 6\n"
    assert await submitter("GET", f"job:{known['job']}:stdout") == b"olleh\n1 1 6\n"
    assert await submitter("GET", f"job:{known['job']}:stderr") == b""
    listed = await submitter("WORKERS.LIST")
    assert isinstance(listed, list)
    assert json.loads(listed[0])["tools"] == ["rev", "wc"]  # type: ignore[arg-type]
    assert await submitter("GET", "worker:w1:tools") == b"rev,wc"
    assert b"worker:w1:tools" in set(await submitter("KEYS", "*"))  # type: ignore[arg-type]


async def test_other_fields_of_a_plan_are_kept_and_change_nothing(connect: Connect) -> None:
    client = await connect()
    assert await client("PLAN.SUBMIT", json.dumps({**PLAN, "author": {"name": "me"}})) == "OK plan_id=mirror"
    assert json.loads(await client.text("PLAN.GET", "mirror"))["author"] == {"name": "me"}
    assert await client("PLAN.SUBMIT", json.dumps({**PLAN, "author": "you"})) == "OK plan_id=mirror"
    assert json.loads(await client.text("PLAN.GET", "mirror"))["author"] == {"name": "me"}, "the first stays"
    misspelt = {"plan_id": "other", "tasks": [{**PLAN["tasks"][0], "timeout": 5}]}  # type: ignore[dict-item]
    assert "unknown field 'timeout'" in await client.text("PLAN.SUBMIT", json.dumps(misspelt))
    assert "NUL" in await client.text("PLAN.SUBMIT", json.dumps({**PLAN, "plan_id": "nul", "author": "\0"}))


async def test_a_job_that_fails_is_tried_again_by_the_rules_of_every_job(connect: Connect) -> None:
    (id,) = await submitted(await connect("submitter"), plan=PLAN)
    client = await agw(connect)
    for _ in range(3):
        assert await taken(client) == id
        assert await client("SET", f"job:{id}:stdout", b"some\0\xff") == "OK"
        assert await client("SET", f"job:{id}:stderr", "rev: no such file\n") == "OK"
        assert await client("SET", f"job:{id}:status", "failed") == "OK"
        assert await client("LREM", "queue:processing", "1", id) == 0
    found = await status(client, id)
    assert (found["status"], found["error"]) == ("dead", "rev: no such file")
    assert await client.text("GET", f"job:{id}:stdout") == "some\ufffd\ufffd"
    assert await client(*SOON) is None


async def test_a_reply_that_the_worker_drops_is_given_again(connect: Connect) -> None:
    """It beats while it waits, and drops what it was waiting for."""
    client = await agw(connect)
    (id,) = await submitted(await connect("submitter"), plan=PLAN)
    replies = await piped(client, POP, ("PING", "w1"), POP, ("GET", f"job:{id}"), ("PING", "w1"), POP)
    assert [replies[0], replies[2], replies[5]] == [id.encode()] * 3
    assert await taken(client) == id
    assert await client("SET", f"job:{id}:status", "completed") == "OK"
    assert (await status(client, id))["attempt"] == 1
    assert await client(*SOON) is None


@pytest.mark.long
async def test_a_job_without_a_result_counts_as_an_attempt_when_the_worker_takes_another(connect: Connect) -> None:
    (id,) = await submitted(await connect("submitter"), plan=PLAN)
    client = await agw(connect)
    for attempt in (1, 2, 3):
        assert await taken(client) == id
        assert (await status(client, id))["attempt"] == attempt
        assert await client("SET", f"job:{id}:stdout", "x" * (9 << 20)) == "OK"
        assert "over the cap" in await client.text("SET", f"job:{id}:stderr", "\x01" * (1 << 20))
    assert await client(*SOON) is None
    found = await status(client, id)
    assert (found["status"], found["error"]) == ("dead", "its worker took another job without a result")


async def test_who_says_its_tools_again_goes_on(connect: Connect) -> None:
    (id,) = await submitted(await connect("submitter"), plan=PLAN)
    client = await agw(connect)
    assert await client(*POP) == id.encode()
    assert await client("SET", "worker:w1:tools", "rev,wc") == "OK"
    assert await taken(client) == id
    assert await client("SET", "worker:w1:tools", "rev,wc,uniq") == "OK"
    assert await client("SET", f"job:{id}:status", "completed") == "OK"
    assert (await status(client, id))["attempt"] == 1


async def test_a_worker_that_begins_again_has_lost_its_attempt_and_its_former_connection(connect: Connect) -> None:
    (id,) = await submitted(await connect("submitter"), plan=PLAN)
    client = await agw(connect)
    assert await taken(client) == id
    for attempt in (2, 3):
        client = await agw(connect)
        assert await taken(client) == id
        assert (await status(client, id))["attempt"] == attempt
    later = await agw(connect)
    assert (await status(later, id))["status"] == "dead", "it ended each process that read it"
    for words in (("PING", "w1"), SOON):
        assert await client(*words) == "-ERR Worker not registered: w1"
    assert (await client.text("SET", f"job:{id}:status", "completed")).startswith("-ERR ")
    assert (await status(later, id))["status"] == "dead"


async def test_a_job_that_nobody_has_read_goes_back_with_its_connection(connect: Connect) -> None:
    client = await agw(connect)
    (id,) = await submitted(await connect("submitter"), plan=PLAN)
    assert await client(*POP) == id.encode()
    await client.close()
    other = await agw(connect, "w2")
    assert await taken(other) == id
    assert (await status(other, id))["attempt"] == 1


async def test_plans_that_are_stored_nowhere_are_read_by_who_runs_them(connect: Connect) -> None:
    client = await agw(connect)
    submitter = await connect("submitter")
    await submitter("PLAN.SUBMIT", json.dumps(PLAN))
    other = {"plan_id": "mirror", "tasks": [{"task_number": 1, "command": "wc"}]}
    await submitter("LPUSH", "queue:ready", json.dumps(other))
    id = await client.text(*POP)
    assert json.loads(await client.text("GET", f"job:{id}"))["plan_id"] == "mirror"
    assert json.loads(await client.text("GET", "plan:mirror"))["tasks"][0]["command"] == "wc", "what it was pushed as"
    assert json.loads(await client.text("GET", "plan:mirror"))["tasks"][0]["command"] == "rev"
    assert await client("LREM", "queue:processing", "1", id) == 1
    answer = await submitter.text("WORKER.VERIFY", "w1", json.dumps({"command": "rev"}))
    assert answer.removeprefix("OK job_id=") == await taken(client)


async def test_it_gets_nothing_but_plans_for_its_tools(connect: Connect) -> None:
    client = await agw(connect, tools="wc, uniq")
    submitter = await connect("submitter")
    await submitter("LPUSH", "queue:ready", "raw")
    await submitted(submitter, plan=PLAN)
    assert await client(*SOON) is None
    assert await client("SET", "worker:w1:tools", "rev") == "OK"
    assert await client("RPOP", "queue:ready") == (await client.text("BRPOP", "queue:ready", "1")).encode() or True


# No back door.


async def test_only_who_holds_a_job_writes_about_it(place: Place, connect: Connect) -> None:
    first, second, submitter = await agw(connect), await agw(connect, "w2"), await connect("submitter")
    (id,) = await submitted(submitter, plan=PLAN)
    assert await taken(first) == id
    for other in (second, submitter):
        for part, value in (("stdout", "forged"), ("status", "completed")):
            assert (await other.text("SET", f"job:{id}:{part}", value)).startswith("-ERR ")
    assert (await status(submitter, id))["status"] == "running"
    let_die(place, "w1")
    assert await taken(second) == id
    for part, value in (("stdout", "late"), ("status", "completed")):
        assert (await first.text("SET", f"job:{id}:{part}", value)).startswith("-ERR ")
    assert await second("SET", f"job:{id}:stdout", "right") == "OK"
    assert await second("SET", f"job:{id}:status", "completed") == "OK"
    assert await submitter("GET", f"job:{id}:stdout") == b"right"
    assert (await first.text("SET", f"job:{id}:status", "failed")).startswith("-ERR ")
    assert (await status(submitter, id))["status"] == "completed"


@pytest.mark.parametrize(
    "words",
    [
        ("SET", "worker:w2:tools", "rev"),
        ("SET", "worker:w1:alive", "1"),
        ("SET", "worker:w1:tools", "rev", "EX", "5"),
        ("SET", "worker:w1:tools", "../rev"),
        ("SET", "worker:w1:tools:more", "rev"),
        ("SET", "worker::tools", "rev"),
        ("SET", "job:job_x:status", "completed"),
        ("SET", "job:job_x:worker", "w1"),
        ("SET", "job:job_x", "{}"),
        ("SET", "plan:mirror", "{}"),
    ],
)
async def test_every_other_key_of_a_view_stays_as_it_is(connect: Connect, words: tuple[str, ...]) -> None:
    client = await connect()
    before = await client("KEYS", "*")
    assert (await client.text(*words)).startswith("-ERR ")
    assert await client("KEYS", "*") == before


async def limited(hf: Holdfast, *commands: str, **more: Any) -> None:
    database = await core_of(hf).opened()
    principal = KeyPrincipal("few", digest_of(SECRET.encode()), ("few",), commands=commands, stored=True, **more)
    await database.transact(keys.add_key, principal)


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        (("SET",), ("SET", "worker:few:tools", "rev")),
        (("SET",), ("SET", "job:{id}:status", "completed")),
        (("WORKER.REGISTER", "JOB.UPDATE"), ("SET", "worker:few:tools", "rev")),
        (("GET",), ("GET", "job:{id}")),
        (("GET",), ("GET", "job:{id}:stdout")),
    ],
)
async def test_a_key_needs_the_right_to_what_its_words_stand_for(
    hf: Holdfast, connect: Connect, commands: tuple[str, ...], words: tuple[str, ...]
) -> None:
    await limited(hf, *commands)
    (id,) = await submitted(await connect("submitter"), plan=PLAN)
    client = await connect(None)
    assert await client("AUTH", SECRET) == "OK"
    answer = await client.text(*(word.format(id=id) for word in words))
    assert answer.startswith("-NOPERM this key may not call ")
    assert await client("PING", "few") == b"few", "it is only echoed"
    assert await (await connect("submitter"))("WORKERS.LIST", "ALL") == [] or "WORKER.REGISTER" in commands


async def test_another_tenant_sees_and_writes_nothing(hf: Holdfast, connect: Connect) -> None:
    database = await core_of(hf).opened()
    await database.transact(keys.add_key, KeyPrincipal("fox", digest_of(SECRET.encode()), ("fox", "w1"), tenant="acme"))
    client, fox = await agw(connect), await connect(None)
    (id,) = await submitted(await connect("submitter"), plan=PLAN)
    assert await taken(client) == id
    assert await fox("AUTH", SECRET) == "OK"
    assert await fox("SET", "worker:fox:tools", "rev") == "OK"
    assert await fox("SET", "worker:w1:tools", "rev") == "-ERR Worker ID already registered"
    for key in (f"job:{id}", f"job:{id}:stdout", "plan:mirror", "worker:w1:tools"):
        assert await fox("GET", key) is None
    assert await fox("SET", f"job:{id}:status", "completed") == f"-ERR Job not found: {id}"
    assert await fox(*SOON) is None
    assert (await status(client, id))["status"] == "running"


# Who it is.


async def test_a_ping_is_a_heartbeat_of_its_own_worker_alone(place: Place, serve: Serve, connect: Connect) -> None:
    client, other = await connect("w1"), await connect("w2")
    assert await other("PING", "w1") == b"w1"
    assert await client("PING", "hello") == b"hello"
    assert await client("WORKERS.LIST", "ALL") == []
    assert await client("PING", "w1") == b"w1"
    assert "w1" in str(await client("WORKERS.LIST")), "who beats is registered"
    let_die(place, "w1")
    assert await client("PING", "w1") == "-ERR Worker not registered: w1"


async def test_a_ping_takes_no_registration_over(connect: Connect) -> None:
    client, second = await registered(connect, "w1", "rev"), await connect("w1")
    assert await second("PING", "w1") == b"w1"
    assert await client("WORKER.HEARTBEAT", "w1") == "OK"
    assert await client("PING", "w1") == b"w1"
    assert "WORKER.REGISTER" in await client.text("SET", "worker:w1:tools", "rev")
    (id,) = await submitted(await connect("submitter"), plan=PLAN)
    assert json.loads(await second.text("BRPOP", "queue:ready", "5"))["job_id"] == id


async def test_the_shared_key_alone_is_enough(serve: Serve, connect: Connect) -> None:
    server = await serve(shared=shared(SECRET))
    live_long(server)
    client = await connect(None, server.port)
    assert await client("AUTH", SECRET) == "OK"
    assert (await client.text("SET", "worker:w1:tools", "rev")).startswith("-ERR "), "w1 has a key of its own"
    assert await client("SET", "worker:agw-5f:tools", "rev") == "OK"
    (id,) = await submitted(await connect("submitter", server.port), plan=PLAN)
    assert await taken(client) == id
    assert await client("SET", f"job:{id}:status", "completed") == "OK"
    assert (await client.text("SET", "worker:agw-60:tools", "rev")).startswith("-ERR ")


async def test_its_heartbeats_keep_what_it_runs(connect: Connect, hf: Holdfast) -> None:
    client = await agw(connect)
    (id,) = await submitted(await connect("submitter"), plan=PLAN)
    assert await taken(client) == id
    before = (await hf.jobs.list())[0].lease_until
    assert before is not None

    async def renewed() -> bool:
        assert await client("PING", "w1") == b"w1"
        until = (await hf.jobs.list())[0].lease_until
        return until is not None and until > before

    await eventually(renewed)
