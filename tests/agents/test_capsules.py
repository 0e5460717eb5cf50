"""Capsules: a run as one file that another machine can open, without secrets and without anything alive in it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Holdfast
from holdfast.agents.api.agent import Agent
from holdfast.agents.api.run import Run
from holdfast.errors import NotFound, UsageError
from holdfast.models.script import Script, call, say
from holdfast.testing import Lab, Labs
from holdfast.text import REDACTED, Redactor, is_secret_name

KEY = "sk-ant-api03-abcdefghijklmnop"
LONG = "x" * 70_000


class House:
    """An agent that calls another one, and tools that return secrets."""

    def __init__(self) -> None:
        self.hf = Holdfast("sqlite:////nowhere/at-all.db")

        @self.hf.tool
        def login(user: str, password: str) -> str:
            """Log in."""
            return f"Authorization: Bearer {KEY[3:]} {LONG}"

        below: Agent[str] = self.hf.agent("below", model="scripted:below")
        self.agent: Agent[str] = self.hf.agent("house", model="scripted:", tools=[login], agents=[below])
        self.script = _ByModel(
            {
                "scripted:": Script(
                    call("login", user="ann", password="hunter2"),
                    call("below", task="Think"),
                    say(f"Your key is {KEY}, keep it."),
                ),
                "scripted:below": Script(say("thought")),
            }
        )


class _ByModel(Script):
    def __init__(self, scripts: dict[str, Script]) -> None:
        super().__init__()
        self._scripts = scripts

    def turn(self, body: Any) -> Any:
        return self._scripts[body["model"]].turn(body)


async def played(lab: Lab, house: House) -> Run[str]:
    session = await house.hf.session("house", metadata={"api_key": "abc", "team": "red"})
    await session.send("Earlier", house.agent)
    run = await session.send(
        f"Use {KEY}", house.agent, variables={"token": "t0k3n", "customer": 42}, metadata={"password": "pass1"}
    )
    await session.send("Later", house.agent)
    await lab.drain()
    assert run.state == "completed"
    return run


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_capsule_is_a_database_that_every_reader_reads(labs: Labs, tmp_path: Path) -> None:
    house = House()
    lab = await labs.use(house.hf, house.script)
    run = await played(lab, house)
    before = await run.refresh()
    written = await run.export(tmp_path / "run.db", redact=["hunter\\d"])
    assert files(tmp_path) == ["run.db"]
    assert (written.run, written.runs) == (run.id, 2)
    async with Holdfast(f"sqlite:///{tmp_path / 'run.db'}", embedded=False) as capsule:
        other = capsule.runs[run.id]
        row = await other.refresh()
        assert (row.state, row.turns, row.cost_nano, row.outcome) == ("completed", 3, before.cost_nano, "answered")
        assert (await other.result()).text == f"Your key is {REDACTED}, keep it."
        assert [turn.number for turn in await other.turns()] == [1, 2, 3]
        assert [(each.name, each.state) for each in await other.calls()] == [
            ("login", "completed"),
            ("below", "completed"),
        ]
        assert [child.agent_name for child in await other.children()] == ["below"]
        assert await other.usage() == await run.usage()
        assert [event.seq for event in await other.events()] == [event.seq for event in await run.events()]
        messages = await capsule.sessions[row.session].messages()
        assert [message.text for message in messages if message.kind == "prompt"] == ["Earlier", f"Use {REDACTED}"]
        assert [agent.name for agent in await capsule.agents.list()] == ["below", "house"]
        assert str(await capsule.why(run.id)).endswith("UTC, answered")
        assert [job.state for job in await capsule.jobs.list()] == ["succeeded"] * 3


async def test_no_secret_and_no_path_is_in_the_file(labs: Labs, tmp_path: Path) -> None:
    house = House()
    lab = await labs.use(house.hf, house.script)
    run = await played(lab, house)
    written = await run.export(tmp_path / "run.db")
    assert written.redactions > 5
    data = (tmp_path / "run.db").read_bytes()
    for secret in (KEY, KEY[3:], "hunter2", "t0k3n", "pass1", str(tmp_path)):
        assert secret.encode() not in data, secret
    file = apsw.Connection(str(tmp_path / "run.db"))
    said = "\n".join(str(row) for row in file.execute("select data from run_event"))
    file.close()
    assert "api03" not in said
    async with Holdfast(f"sqlite:///{tmp_path / 'run.db'}", embedded=False) as capsule:
        row = await capsule.runs.get(run.id)
        assert (row.variables, row.metadata) == ({"customer": 42, "token": REDACTED}, {"password": REDACTED})
        assert (await capsule.sessions.get(row.session)).metadata == {"api_key": REDACTED, "team": "red"}


async def test_secrets_are_found_where_programs_put_them_and_the_rest_is_replayed(labs: Labs, tmp_path: Path) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")

    @hf.tool
    def login(user: str, password: str, headers: dict[str, str]) -> dict[str, Any]:
        """Log in."""
        return {
            "session_token": "tok-hunter1-xyz",
            "headers": {"Authorization": "Basic aHVudGVyMg=="},
            "nested": json.dumps({"api_key": "nestedhunter3"}),
        }

    options = {"mcp_servers": [{"type": "url", "url": "https://x/y", "name": "n", "authorization_token": "OPThunter4"}]}
    agent = hf.agent("a", model="scripted:", tools=[login], options=options)
    headers = {"Authorization": "Basic HDRhunter5", "nested": json.dumps({"password": "INNERhunter6"})}
    asked = call("login", user="ann", password="ARGhunter7", headers=headers)
    lab = await labs.use(hf, Script(asked, say("ok")))
    run = await agent.enqueue("Go", variables={"blob": json.dumps({"token": "VARhunter8"})})
    await lab.drain()
    await run.export(tmp_path / "run.db")
    await run.cassette(tmp_path / "run.json")
    for file in ("run.db", "run.json"):
        data = (tmp_path / file).read_bytes()
        assert b"ann" in data
        assert re.findall(rb"\w*hunter\d\w*|aHVudGVyMg", data) == []
    async with Holdfast(f"sqlite:///{tmp_path / 'run.db'}", embedded=False) as capsule:
        (told,) = await capsule.runs[run.id].calls()
        assert json.loads(told.output)["session_token"] == REDACTED
        assert told.input["password"] == REDACTED
        (agent_row,) = await capsule.agents.list()
        (version,) = await capsule.agents.versions(agent_row.id)
        definition = version.definition
        assert definition["options"]["mcp_servers"][0] == options["mcp_servers"][0] | {"authorization_token": REDACTED}
        assert definition["tools"][0]["schema"]["properties"]["password"] == {"type": "string"}
        replayed = await capsule.runs.replay(run.id)
        assert (replayed.differences, replayed.known_requests) == ((), 0)
    await lab.close()
    await labs.use(hf, Script.cassette(tmp_path / "run.json", strict=True))
    assert (await agent.run("Go")).text == "ok"


async def test_more_can_be_called_a_secret(labs: Labs, tmp_path: Path) -> None:
    house = House()
    lab = await labs.use(house.hf, house.script)
    run = await played(lab, house)
    await run.export(tmp_path / "run.db", redact=["Ear.ier", "a(?=nn)"])
    assert b"Earlier" not in (tmp_path / "run.db").read_bytes()
    with pytest.raises(UsageError, match="not a regular expression"):
        await run.export(tmp_path / "other.db", redact=["("])
    assert not (tmp_path / "other.db").exists()


async def test_nothing_in_a_capsule_is_alive(labs: Labs, tmp_path: Path) -> None:
    house = House()

    @house.hf.tool(effect="once", approve=True)
    def fire() -> str:
        """Fire."""
        return "fired"

    agent = house.hf.agent("risky", model="scripted:", tools=[fire])
    lab = await labs.use(house.hf, Script(call("fire"), say("done")))
    run = await agent.enqueue("Go")
    await lab.drain()
    with pytest.raises(UsageError, match="awaiting_input"):
        await run.export(tmp_path / "run.db")
    await run.export(tmp_path / "run.db", partial=True)
    async with Holdfast(f"sqlite:///{tmp_path / 'run.db'}", embedded=False) as capsule:
        row = await capsule.runs.get(run.id)
        assert (row.state, row.error_type, row.previous_state) == ("cancelled", "cancelled", "awaiting_input")
        assert "awaiting_input" in str(row.error)
        assert [job.state for job in await capsule.jobs.list()] == ["cancelled", "cancelled"]
        assert [inquiry.state for inquiry in await capsule.inquiries.list(state=None)] == ["withdrawn"]
    file = apsw.Connection(str(tmp_path / "run.db"))
    places = [list(file.execute(f"select count(*) from {table}")) for table in ("ready", "later", "lease", "ended")]
    file.close()
    assert places == [[(0,)], [(0,)], [(0,)], [(2,)]]
    assert (await run.refresh()).state == "awaiting_input"


async def test_what_cannot_be_exported_is_said(labs: Labs, tmp_path: Path) -> None:
    house = House()
    lab = await labs.use(house.hf, house.script)
    run = await played(lab, house)
    (child,) = await run.children()
    with pytest.raises(UsageError, match="the root of both"):
        await house.hf.runs[child.id].export(tmp_path / "run.db")
    with pytest.raises(NotFound):
        await house.hf.tenant("other").runs[run.id].export(tmp_path / "run.db")
    (tmp_path / "run.db").write_text("mine")
    with pytest.raises(UsageError, match="already exists"):
        await run.export(tmp_path / "run.db")
    assert (tmp_path / "run.db").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a key sk-ant-api03-abcdefgh here", f"a key {REDACTED} here"),
        ("risk-assessment-of-a-task", "risk-assessment-of-a-task"),
        ("AKIAABCDEFGHIJKLMNOP", REDACTED),
        ("postgresql://ann:pa55@host/db", f"postgresql://{REDACTED}@host/db"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----.", f"{REDACTED}."),
        ("-----BEGIN PRIVATE KEY-----\nabc", REDACTED),
        ("bearer of news", "bearer of news"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZA==", f"Authorization: {REDACTED}"),
        ("a Basic understanding, and authorization: required", "a Basic understanding, and authorization: required"),
        ("x-api-key: 0123456789abcdef, and on", f"x-api-key: {REDACTED}, and on"),
        ("https://h/x?access_token=abcdefg&y=1", f"https://h/x?access_token={REDACTED}&y=1"),
        ("https://tokenabcdef123456@host/x", f"https://{REDACTED}@host/x"),
        ("ssh://git@host/x", "ssh://git@host/x"),
        ("postgres://u:p@ss@host/db, ann@host", f"postgres://{REDACTED}@host/db, ann@host"),
        ("see: PASSWORD=hunter2;", f"see: PASSWORD={REDACTED};"),
        ("connect(password=password, token=next(tokens))", "connect(password=password, token=next(tokens))"),
        ("sk-learn-toolkit-guide", "sk-learn-toolkit-guide"),
        ("glpat-abcdefghij1234567890", REDACTED),
        ('{"password": "a b", "n": 1}', f'{{"password":"{REDACTED}","n":1}}'),
        ('{"n": 1,  "note": "a key"}', '{"n": 1,  "note": "a key"}'),
        ('told: {"a": "{\\"token\\": \\"x\\"}"}.', f'told: {{"a":"{{\\"token\\":\\"{REDACTED}\\"}}"}}.'),
        ('cut off: {"token": "x", "n": ', f'cut off: {{"token": "{REDACTED}", "n": '),
        ("{'password': 'a b', 'pin': 1}", f"{{'password': '{REDACTED}', 'pin': 1}}"),
        ("sent with hft_abcDEF-123_abcDEF-123_x.", f"sent with {REDACTED}."),
        ("a hft_shirt", "a hft_shirt"),
        ('export API_KEY="abc123def456"', f'export API_KEY="{REDACTED}"'),
        ("connect(password='hunter2hunter2')", f"connect(password='{REDACTED}')"),
        ("token: 'it\\'s 12345', n='7654321'", f"token: '{REDACTED}', n='7654321'"),
        ('API_KEY=\\"abc123def456\\";', f'API_KEY=\\"{REDACTED}\\";'),
        ("api_key  =  abc123def456", f"api_key  =  {REDACTED}"),
        ("secret\t:\t\tabc123def456", f"secret\t:\t\t{REDACTED}"),
        ("the user's password: it's gone, 123 users' data too", "the user's password: it's gone, 123 users' data too"),
        ('unexpected token: "function"', 'unexpected token: "function"'),
        ('{"password":"hunter2secret","password":""}', '{"password":""}'),
        ('{"a":{"token":"x"},"a":1}', '{"a":1}'),
        ('{"a":1,"a":2}', '{"a":1,"a":2}'),
        ("postgres://u:p/w@h", f"postgres://{REDACTED}@h"),
        ("postgres://u:/p/w@1@h/db?x=a@b", f"postgres://{REDACTED}@h/db?x=a@b"),
        (
            "https://registry:4873/@scope/pkg, http://[::1]:80/@x",
            "https://registry:4873/@scope/pkg, http://[::1]:80/@x",
        ),
        ("https://ann:pa55@host/b:c@d", f"https://{REDACTED}@host/b:c@d"),
        ('{"x": "\\ud83d", "token": "y"}', f'{{"x":"\\ud83d","token":"{REDACTED}"}}'),
    ],
)
def test_a_text_is_known_by_what_it_looks_like(text: str, left: str) -> None:
    assert Redactor().text(text) == left
    again = Redactor()
    assert (again.text(left), again.count) == (left, 0)


def test_a_value_is_known_by_the_name_of_its_key() -> None:
    assert [name for name in ("api_key", "AuthToken", "X-Password", "clientSecret") if not is_secret_name(name)] == []
    assert [name for name in ("secrets", "passwords", "access-keys", "Cookies") if not is_secret_name(name)] == []
    assert [name for name in ("max_tokens", "keyboard", "author", "tokens") if is_secret_name(name)] == []
    assert is_secret_name("key")
    assert not is_secret_name("key", "arguments")
