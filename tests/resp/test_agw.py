"""The worker against the gateway: real sockets, real tools, lost connections and a drain."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.agw import worker as agw
from holdfast.agw.execution import TEXT_TOOLS, UnixTools, find_text_tools, find_tools
from holdfast.agw.link import GatewayAddress
from holdfast.agw.processes import ProcessLimits
from holdfast.agw.worker import AgwWorker, WorkerOptions, pause_with_jitter
from holdfast.brokers.waiters import BrokerScope
from holdfast.clock import Ports, SystemClock
from holdfast.errors import UsageError
from holdfast.kernel.routes import ANY_JOB
from holdfast.resp import workers
from holdfast.resp.server import RespServer
from tests.resp.conftest import KEYS, Connect, Serve
from tests.resp.test_jobs import popped, status, submitted
from tests.resp.test_workers import registered
from tests.support.apps import eventually

TOOLS = ("sort", "uniq", "printf", "sleep", "sh")
SORT = {
    "plan_id": "sort",
    "tasks": [
        {"task_number": 1, "command": "printf", "args": [r"b\na\nb\n{{input.word}}\n"]},
        {"task_number": 2, "command": "sort", "input_from_task": 1},
        {"task_number": 3, "command": "uniq", "input_from_task": 2},
    ],
}


class Quick(SystemClock):
    """Notes how long somebody wanted to sleep, and does not."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0.01)


Make = Callable[..., AgwWorker]


def made(port: int, name: str = "w1", ports: Ports | None = None, **options: Any) -> AgwWorker:
    given: dict[str, Any] = {"address": GatewayAddress("127.0.0.1", port), "max_jobs": 2, "pop_seconds": 0.3, **options}
    settings = WorkerOptions(key=KEYS[name], worker_id=name, **given)
    return AgwWorker(settings, UnixTools(find_tools(TOOLS)), ProcessLimits(grace=0.2), ports or Ports())


@asynccontextmanager
async def running(worker: AgwWorker) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(worker.run())
    try:
        yield task
    finally:
        worker.stop()
        await task


async def finished(client: Any, ids: list[str]) -> list[dict[str, Any]]:
    async def all_ended() -> bool:
        return {(await status(client, id))["status"] for id in ids} <= {"completed", "dead", "failed"}

    await eventually(all_ended)
    return [await status(client, id) for id in ids]


def sleeping(plan: str, seconds: float) -> dict[str, Any]:
    return {"plan_id": plan, "tasks": [{"task_number": 1, "command": "sleep", "args": [str(seconds)]}]}


async def test_a_plan_goes_from_the_submitter_to_the_worker_and_back(server: RespServer, connect: Connect) -> None:
    submitter = await connect("submitter")
    async with running(made(server.port)):
        await submitted(submitter, plan=SORT, count=1)
        body = {"action_id": "words", "plan_id": "sort", "inputs": [{"word": word} for word in ("z", "a", "$(id)")]}
        await submitter("ACTION.SUBMIT", json.dumps(body))
        ids = [bytes(each).decode() for each in await submitter("JOB.LIST", "words") or []]  # type: ignore[arg-type, union-attr]
        done = await finished(submitter, ids)
        assert [job["task_results"][-1]["stdout"] for job in done] == ["a\nb\nz\n", "a\nb\n", "$(id)\na\nb\n"]
        assert {job["worker_id"] for job in done} == {"w1"}
        (dead,) = await finished(submitter, [f"{id.decode()}" for id in await submitter("JOB.LIST", "a1") or []])  # type: ignore[union-attr]
        assert (dead["status"], dead["error"]) == ("dead", "the input has no field 'word'")


async def test_it_reaches_its_gateway_by_a_unix_socket(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    submitter, path = await connect("submitter"), tmp_path / "gateway"
    await serve(bind=None, unix=path)
    async with running(made(0, address=GatewayAddress("", 0, unix=path))):
        (done,) = await finished(submitter, await submitted(submitter, plan=sleeping("none", 0)))
    assert done["status"] == "completed"


@pytest.mark.parametrize("trusted", [True, False])
async def test_it_trusts_the_authority_that_it_is_given(
    serve: Serve, connect: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture, trusted: bool
) -> None:
    submitter, (certificate, key) = await connect("submitter"), own_certificate(tmp_path)
    server = await serve(tls_cert=certificate, tls_key=key)
    address = GatewayAddress("127.0.0.1", server.port, tls=True, ca=certificate if trusted else None)
    async with running(made(0, address=address)):
        (id,) = await submitted(submitter, plan=sleeping("none", 0))
        if trusted:
            (done,) = await finished(submitter, [id])
            assert done["status"] == "completed"
        else:

            async def refused() -> bool:
                return "certificate verify failed" in caplog.text

            await eventually(refused)


def own_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that no system trusts, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2120, 1, 1, tzinfo=UTC))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption_algorithm=plain)
    )
    return certificate, secret


def test_without_a_list_of_tools_it_has_the_text_tools_that_are_there(tmp_path: Path) -> None:
    for name in ("grep", "wc", "sort", "uniq", "awk", "sh", "rm"):
        (tmp_path / name).symlink_to("/bin/true")
    assert find_text_tools(search=str(tmp_path)) == {name: str(tmp_path / name) for name in ("grep", "wc")}
    assert set(find_text_tools()) <= set(TEXT_TOOLS)


WRITING = (  # what makes some tools write a file or run a program: sort, uniq, sed, awk, find, xargs, tar
    ["lines", "made"],
    ["-o", "made", "lines"],
    ["-omade", "lines"],
    ["--output=made", "lines"],
    ["--output-file=made", "lines"],
    ["-S", "1k", "--compress-program=./spy", "lines"],
    ["-i", "s/1/2/w made", "lines"],
    ["s/1/2/;w made", "lines"],
    ["1e ./spy", "lines"],
    ['BEGIN { system("./spy") }'],
    [".", "-exec", "./spy", ";"],
    ["./spy"],
    ["-c", "./spy"],
    ["--to-command=./spy", "-xf", "lines"],
)


@pytest.mark.parametrize("name", TEXT_TOOLS)
def test_no_tool_that_is_there_unasked_writes_a_file_or_runs_a_program(name: str, tmp_path: Path) -> None:
    """Nobody has named it, and there may be no sandbox around it."""
    if not (found := find_tools([name]) if shutil.which(name) else {}):
        return
    (tmp_path / "lines").write_text("".join(f"{each}\n" for each in range(20_000, 0, -1)))
    (tmp_path / "spy").write_text("#!/bin/sh\ntouch made; cat\n")
    (tmp_path / "spy").chmod(0o755)
    before = {each: (each.stat().st_mtime_ns, each.stat().st_ino) for each in tmp_path.iterdir()}
    for words in WRITING:
        subprocess.run(
            [found[name], *words],
            check=False,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        now = {each: (each.stat().st_mtime_ns, each.stat().st_ino) for each in tmp_path.iterdir()}
        assert now == before, words


async def test_agx_27_it_beats_while_a_job_runs_and_while_a_pop_waits(server: RespServer, connect: Connect) -> None:
    submitter = await connect("submitter")
    async with running(made(server.port, heartbeat_seconds=0.05, drain_seconds=0.1)):
        for action, plan in (("idle", None), ("busy", sleeping("nap", 30))):
            if plan is not None:
                await submitted(submitter, action, plan=plan)
            seen: set[int] = set()  # only heartbeats of the worker bring its statistics

            async def beaten(expected: int = int(plan is not None), seen: set[int] = seen) -> bool:
                found = await submitter("GET", "worker:w1:stats")
                stats = json.loads(found) if isinstance(found, bytes) else {}
                if stats.get("active_jobs") == expected:
                    seen.add(stats["uptime_seconds"])
                return len(seen) > 1

            await eventually(beaten)


async def test_agx_28_after_a_lost_connection_it_comes_back_and_delivers(serve: Serve, connect: Connect) -> None:
    server, submitter = await serve(), await connect("submitter")
    (id,) = await submitted(submitter, plan=sleeping("nap", 1))
    clock = Quick()
    worker = made(server.port, ports=Ports(clock=clock))
    async with running(worker):

        async def started() -> bool:
            return worker.active == [id] and (await status(submitter, id))["status"] == "running"

        await eventually(started)
        for connection in [*server._connections.values()]:
            connection.close()
        (done,) = await finished(submitter, [id])
    assert (done["status"], done["attempt"]) == ("completed", 1)
    assert any(0.5 <= seconds <= 1 for seconds in clock.slept)


@pytest.mark.parametrize("cut", ["while the job runs", "while it drains"])
async def test_a_busy_worker_that_lost_its_connections_delivers_before_its_next_heartbeat(
    server: RespServer, connect: Connect, tmp_path: Path, cut: str
) -> None:
    """It pulls nothing, and its next heartbeat is far away: the cut itself must bring it back."""
    submitter, goes = await connect("submitter"), tmp_path / "goes"
    waiting = {"task_number": 1, "command": "sh", "args": ["-c", f"until test -e {goes}; do sleep 0.05; done"]}
    worker = made(server.port, max_jobs=1, heartbeat_seconds=3_600.0, drain_seconds=60.0)
    async with running(worker):
        (id,) = await submitted(submitter, plan={"plan_id": "wait", "tasks": [waiting]})

        async def started() -> bool:
            return worker.active == [id] and (await status(submitter, id))["status"] == "running"

        await eventually(started)
        if cut == "while it drains":
            worker.stop()
            await asyncio.wait({worker._pulling})  # type: ignore[type-var]
        for client, connection in [*server._connections.items()]:
            if server.gateway.clients[client].who == "w1":
                connection.close()
        goes.touch()
        (done,) = await finished(submitter, [id])
    assert (done["status"], done["attempt"]) == ("completed", 1)


async def test_a_new_process_hands_back_what_a_dead_one_of_its_name_held(server: RespServer, connect: Connect) -> None:
    """Its heartbeats would keep the jobs of the dead process for ever, and nobody would work on them."""
    submitter = await connect("submitter")
    (id,) = await submitted(submitter, plan=sleeping("nap", 0))
    dead = await registered(connect, "w1", *TOOLS)
    job = await popped(dead)
    await dead.text("JOB.UPDATE", id, json.dumps({"status": "running", "attempt": job["attempt"]}))
    async with running(made(server.port)):
        (done,) = await finished(submitter, [id])
    assert done["status"] == "completed"


def test_agx_28_pauses_double_up_to_a_minute_with_jitter() -> None:
    pauses, pause = [], agw.FIRST_PAUSE
    chance = random.Random(1)
    for _ in range(8):
        pauses.append(pause)
        assert {pause / 2 <= pause_with_jitter(pause, chance) <= pause for _ in range(100)} == {True}
        pause = min(pause * 2, agw.LAST_PAUSE)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_agx_28_while_the_gateway_is_away_it_waits_longer_and_longer(caplog: pytest.LogCaptureFixture) -> None:
    clock = Quick()
    worker = made(1, ports=Ports(clock=clock))
    task = asyncio.create_task(worker.run())

    async def tried() -> bool:
        return len(clock.slept) >= 7

    await eventually(tried)
    worker.stop()
    await task
    for seconds, pause in zip(clock.slept, (1, 2, 4, 8, 16, 32, 60), strict=False):
        assert pause / 2 <= seconds <= pause
    assert [each.getMessage().partition(":")[0] for each in caplog.records] == ["the gateway is away"]


async def test_a_wrong_key_is_not_tried_for_ever(server: RespServer) -> None:
    options = WorkerOptions(GatewayAddress("127.0.0.1", server.port), "00" * 32, "w1")
    worker = AgwWorker(options, UnixTools({}), ProcessLimits(), Ports())
    with pytest.raises(UsageError, match="Invalid authentication key"):
        await worker.run()


async def test_agx_34_secrets_are_not_in_the_log(
    server: RespServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    submitter = await connect("submitter")
    async with running(made(server.port)):
        await finished(submitter, await submitted(submitter, plan=sleeping("none", 0)))
    assert KEYS["w1"] not in caplog.text


async def test_agx_35_a_drain_finishes_the_job_and_unregisters(server: RespServer, connect: Connect) -> None:
    submitter = await connect("submitter")
    worker = made(server.port)
    task = asyncio.create_task(worker.run())
    (id,) = await submitted(submitter, plan=sleeping("nap", 0.5))

    async def begun() -> bool:
        return worker.active == [id]

    await eventually(begun)
    worker.stop()
    await task
    assert (await status(submitter, id))["status"] == "completed"
    assert await submitter("KEYS", "worker:*") == []
    (late,) = await submitted(submitter, "a2", plan=sleeping("nap", 0.5))
    assert (await status(submitter, late))["status"] == "pending"


@pytest.mark.parametrize("hurried", [False, True])
async def test_agx_35_a_drain_that_takes_too_long_hands_the_job_back(
    server: RespServer, connect: Connect, caplog: pytest.LogCaptureFixture, hurried: bool
) -> None:
    submitter = await connect("submitter")
    worker = made(server.port, drain_seconds=300 if hurried else 0.1)
    task = asyncio.create_task(worker.run())
    (id,) = await submitted(submitter, plan=sleeping("long", 600))

    async def begun() -> bool:
        return worker.active == [id] and (await status(submitter, id))["status"] == "running"

    await eventually(begun)
    worker.stop()
    if hurried:
        worker.hurry()
    await task
    assert (await status(submitter, id))["status"] == "pending"
    assert await submitter("KEYS", "worker:*") == []
    assert id in caplog.text


@pytest.mark.long
async def test_it_beats_and_comes_back_while_it_drains(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """A job that takes longer than a silent worker lives is finished once, and its result is taken."""
    server, submitter = await serve(dead_after=timedelta(seconds=2)), await connect("submitter")
    worker = made(server.port, ports=Ports(clock=Quick()))
    task = asyncio.create_task(worker.run())
    (id,) = await submitted(submitter, plan=sleeping("nap", 3))

    async def begun() -> bool:
        return worker.active == [id] and (await status(submitter, id))["status"] == "running"

    await eventually(begun)
    worker.stop()
    await asyncio.wait({worker._pulling})  # type: ignore[type-var]
    for connection in [*server._connections.values()]:
        connection.close()
    await task
    done = await status(submitter, id)
    assert (done["status"], done["attempt"]) == ("completed", 1)
    assert [each.getMessage()[:19] for each in caplog.records] == ["the gateway is away", "the gateway is back"]


async def test_what_has_no_plan_is_left_to_others(server: RespServer, connect: Connect) -> None:
    submitter, other = await connect("submitter"), await registered(connect, "w2", max_concurrent_jobs=2)
    await submitter("LPUSH", "queue:ready", "hello")
    await submitter("JOB.ENQUEUE", "ready", "mail.send", "{}")
    async with running(made(server.port)):
        (done,) = await finished(submitter, await submitted(submitter, plan=sleeping("none", 0)))
    assert done["status"] == "completed"
    assert await other("BRPOP", "queue:ready", "10") == b"hello"
    assert (await popped(other))["kind"] == "mail.send"


async def test_odd_jobs_of_a_gateway_that_gives_out_anything_do_not_end_the_worker(
    server: RespServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers, "takes", lambda queue, able: BrokerScope((queue,), frozenset({*able, ANY_JOB})))
    submitter = await connect("submitter")
    await submitter("LPUSH", "queue:ready", "hello", "[1]")
    kind = await submitter.text("JOB.ENQUEUE", "ready", "mail.send", "{}")
    async with running(made(server.port, max_jobs=5)):
        failed, done = await finished(submitter, [kind, *await submitted(submitter, plan=sleeping("none", 0))])
    assert done["status"] == "completed"
    assert failed["error"] == "this worker runs plans, and a job of kind 'mail.send' has none"
    assert "no job that this worker can report about: b'hello'" in caplog.text


@pytest.mark.parametrize(
    "refusal",
    ["Too many authentication failures; try again in a minute", "max number of clients reached", "Internal error"],
)
async def test_a_refusal_that_passes_is_tried_again(refusal: str) -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"-ERR {refusal}\r\n".encode())
        writer.close()
        await writer.wait_closed()

    clock = Quick()

    async def tried() -> bool:
        return len(clock.slept) >= 2

    listening = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with listening, running(made(listening.sockets[0].getsockname()[1], ports=Ports(clock=clock))):
        await eventually(tried)


@pytest.mark.long
async def test_a_report_fits_into_a_request_however_much_the_tools_wrote(server: RespServer, connect: Connect) -> None:
    """Each byte is six in JSON: the gateway would close the connection, and the worker would send it for ever."""
    submitter = await connect("submitter")
    write = r"head -c 65536 /dev/zero | tr '\000' '\001' | tee /dev/stderr"
    tasks = [{"task_number": number, "command": "sh", "args": ["-c", write]} for number in range(1, 16)]
    async with running(made(server.port, drain_seconds=1)):
        (done,) = await finished(submitter, await submitted(submitter, plan={"plan_id": "much", "tasks": tasks}))
    results = done["task_results"]
    assert (done["status"], len(results)) == ("completed", 15)
    assert (results[0]["stdout"], results[0].get("stdout_truncated")) == ("\1" * 65_536, None)
    assert (results[-1]["stderr"], results[-1]["stderr_truncated"]) == ("", True)


async def test_it_says_how_far_a_plan_is_while_it_runs(server: RespServer, connect: Connect) -> None:
    submitter = await connect("submitter")
    commands = (("printf", "a"), ("printf", "b"), ("sleep", "30"), ("printf", "c"))
    tasks = [{"task_number": number, "command": name, "args": [arg]} for number, (name, arg) in enumerate(commands, 1)]
    async with running(made(server.port, report_seconds=0.05, drain_seconds=0.1)):
        (id,) = await submitted(submitter, plan={"plan_id": "four", "tasks": tasks})

        async def told() -> bool:
            shown = await status(submitter, id)
            return (shown.get("current_task"), shown.get("progress_percent")) == (3, 50)

        await eventually(told)
        assert (await status(submitter, id))["status"] == "running"
