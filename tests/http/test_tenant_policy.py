"""What agents of a tenant may name: the tools and models that every tenant may use, or what is allowed for it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.access.principals import Principal, Role
from holdfast.agents.definition import AgentSpec
from holdfast.agents.runs.create import AgentName, NamedAgent, put_agent
from holdfast.agents.tenant_policy import NOTHING, TenantPolicy
from holdfast.app import core_of
from holdfast.clock import Ports
from holdfast.errors import RunFailed, UsageError
from holdfast.models.script import Script, call, say
from tests.http.client import Client
from tests.support.apps import MakeApp, working
from tests.support.stores import ManualClock

API = "/api/v1"
OWN = "scripted:own"


class Program:
    """A program with one agent that every tenant may use, and a tool that none of its agents for tenants names."""

    def __init__(self, hf: Holdfast) -> None:
        self.hf = hf
        self.queries: list[str] = []

        @hf.tool
        def look_up(word: str) -> str:
            """Look a word up."""
            return f"{word}: found"

        @hf.tool
        def internal_sql(query: str) -> str:
            """Run SQL."""
            self.queries.append(query)
            return "all passwords"

        self.internal_sql = internal_sql
        hf.script("shared", Script(call("look_up", word="cat"), say("A cat.")))
        hf.script("own", Script(call("internal_sql", query="select *"), say("done")))
        self.shared = hf.agent("guide", model="scripted:shared", tools=[look_up])

    def client(self, tenant: str | None = "acme", role: Role = "admin") -> Client:
        return Client(self.hf.web(who=lambda _: Principal("ann", role, tenant)))


@pytest.fixture
def program(hf: Holdfast) -> Program:
    return Program(hf)


def agent(name: str = "mine", model: str = "scripted:shared", **fields: Any) -> dict[str, Any]:
    return {"name": name, "model": model, "fields": fields}


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (agent(tools=["internal_sql"]), "tool 'internal_sql'"),
        (agent(tools=["look_up", "internal_sql"]), "tool 'internal_sql'"),
        (agent(tools=["not_there"]), "tool 'not_there'"),
        (agent(model="claude-opus-5-5"), "model 'claude-opus-5-5'"),
        (agent(fallbacks=["claude-opus-5-5"]), "model 'claude-opus-5-5'"),
        (agent(compaction={"summarizer": "claude-opus-5-5"}), "model 'claude-opus-5-5'"),
        (agent(options={"model": "claude-opus-5-5"}), "model 'claude-opus-5-5'"),
        (agent(options={"models": 5}), "model '5'"),
        (agent(options={"mcp_servers": [{"url": "https://example.com"}]}), "option 'mcp_servers'"),
        (agent(options={"tools": [{"name": "bash"}]}), "option 'tools'"),
        (agent(options={"fallbacks": [{"model": "claude-opus-5-5"}]}), "option 'fallbacks'"),
        (agent(options={"temperature": 0.5, "n": 100}), "option 'n'"),
        (agent(options={"preset": "x"}), "option 'preset'"),
        (agent(options={"api_base": "http://127.0.0.1"}), "option 'api_base'"),
        (agent(options={"max_completion_tokens": 10**9}), "option 'max_completion_tokens'"),
        (agent(options={"messages": []}), "option 'messages'"),
        (agent(options={"metadata": {"user_id": "u", "team": "x"}}), "option 'metadata'"),
        (agent(server_tools=[{"type": "web_search_20250305", "name": "web_search"}]), "tool 'web_search_20250305'"),
    ],
)
async def test_an_admin_of_a_tenant_cannot_store_what_it_may_not_use(
    program: Program, body: dict[str, Any], what: str
) -> None:
    acme = program.client()
    refused = await acme.post(f"{API}/agents", body)
    assert (refused.status, what in refused.json["detail"]) == (422, True), refused.body
    assert (await acme.post(f"{API}/agents", agent(tools=["look_up"]))).status == 201
    given = {**body["fields"], "model": body["model"]}
    changed = await acme.call("PATCH", f"{API}/agents/mine", {"fields": given})
    assert (changed.status, what in changed.json["detail"]) == (422, True), changed.body
    assert (await acme.get(f"{API}/agents/mine")).json["version"] == 1


async def test_a_tool_that_is_there_is_refused_in_the_words_for_one_that_is_not(program: Program) -> None:
    acme = program.client()
    there, absent = [await acme.post(f"{API}/agents", agent(tools=[name])) for name in ("internal_sql", "no_such_tool")]
    assert there.json["detail"].replace("internal_sql", "no_such_tool") == absent.json["detail"]


async def test_options_that_say_how_a_model_answers_are_free(program: Program) -> None:
    """Any other is as an agent that all may use has it, with the same value."""
    free = {"top_k": 5, "stop_sequences": ["x"], "effort": "low", "seed": 1, "metadata": {"user_id": "u"}}
    acme = program.client()
    assert (await acme.post(f"{API}/agents", agent(options=free))).status == 201
    paid = agent("paid", options={"speed": "fast"})
    assert (await acme.post(f"{API}/agents", paid)).status == 422
    await program.hf.agents.create("quick", model="scripted:shared", options={"speed": "fast"})
    assert (await acme.post(f"{API}/agents", paid)).status == 201
    assert (await acme.post(f"{API}/agents", agent("other", options={"speed": "faster"}))).status == 422


@pytest.mark.parametrize("option", ["messages", "system", "model", "stream", "tools", "max_tokens"])
async def test_no_agent_s_options_say_what_a_request_says_itself(program: Program, option: str) -> None:
    with pytest.raises(UsageError, match=f"options cannot have '{option}'"):
        program.hf.agent("a", model=OWN, options={option: 1})
    refused = await program.client(tenant=None).post(f"{API}/agents", agent(options={option: 1}))
    assert (refused.status, f"options cannot have '{option}'" in refused.json["detail"]) == (422, True)


async def test_who_belongs_to_no_tenant_may_name_everything(program: Program) -> None:
    everything = agent(model=OWN, tools=["internal_sql"])
    assert (await program.client(tenant=None).post(f"{API}/agents", everything)).status == 201
    again = await program.client().post(f"{API}/agents", agent("ours", OWN, tools=["internal_sql"]))
    assert again.status == 201, "an agent of no tenant names it now: every tenant may use it"


async def test_who_has_pinned_metadata_changes_no_agent_that_all_tenants_may_use(program: Program) -> None:
    """Agents belong to no session: such an admin is not the one of the whole fleet."""
    bob = Client(program.hf.web(who=lambda _: Principal("bob", "admin"), metadata={"user": "bob"}))
    everything = agent("ours", OWN, tools=["internal_sql"])
    kept = await program.hf.agents.create("kept", model="scripted:shared")
    answers = [
        await bob.post(f"{API}/agents", everything),
        await bob.call("PATCH", f"{API}/agents/{kept.id}", {"fields": {"tools": ["internal_sql"]}}),
        await bob.call("DELETE", f"{API}/agents/{kept.id}"),
    ]
    assert [each.status for each in answers] == [404, 404, 404]
    assert (await bob.get(f"{API}/agents/{kept.id}")).json["version"] == kept.version
    refused = await program.client().post(f"{API}/agents", everything)
    assert (refused.status, "tool 'internal_sql'" in refused.json["detail"]) == (422, True)


async def test_code_is_held_to_the_same_policy_and_may_allow_more(program: Program) -> None:
    acme = program.hf.tenant("acme")
    with pytest.raises(UsageError, match="tenant acme may not use tool 'internal_sql'"):
        await acme.agents.create("mine", model=OWN, tools=["internal_sql"])
    acme.allow(tools=["internal_*"], models=[OWN])
    await acme.agents.create("mine", model=OWN, tools=["internal_sql"])
    assert (await program.client().post(f"{API}/agents", agent("two", OWN, tools=["internal_sql"]))).status == 201
    with pytest.raises(UsageError, match="tenant other may not use tool"):
        await program.hf.tenant("other").agents.create("mine", model=OWN, tools=["internal_sql"])
    with pytest.raises(UsageError, match="must be a list of names"):
        acme.allow(tools="internal_sql")


async def test_settings_allow_for_every_tenant(make_app: MakeApp) -> None:
    program = Program(make_app(tenant_tools="internal_sql, look_up", tenant_models="scripted:*"))
    made = await program.client().post(f"{API}/agents", agent(model=OWN, tools=["internal_sql"]))
    assert made.status == 201, made.body
    refused = await program.client().post(f"{API}/agents", agent("two", OWN, tools=["other"]))
    assert refused.status == 422


async def store_as_before(hf: Holdfast, spec: AgentSpec) -> None:
    """Past the check, as from before the policy was declared."""
    await core_of(hf).runtime().transact(put_agent, NamedAgent(AgentName(spec.name, "acme"), spec))


async def test_a_worker_refuses_what_was_stored_before(program: Program) -> None:
    """No model is asked, and no tool called."""
    hf = program.hf
    await store_as_before(hf, AgentSpec(name="mine", model=OWN, tools=(program.internal_sql.spec,)))
    async with working(hf):
        started = await program.client(role="operator").post(f"{API}/runs", {"agent": "mine", "prompt": "x"})
        run = hf.runs[started.json["id"]]
        with pytest.raises(RunFailed, match="tenant acme may not use tool 'internal_sql'"):
            await run.result()
    assert program.queries == []
    assert await run.turns() == []


async def test_what_a_program_declares_for_a_tenant_is_played(program: Program) -> None:
    mine = program.hf.agent("mine", model=OWN, tools=[program.internal_sql], tenant="acme")
    async with working(program.hf):
        assert await (await mine.enqueue("x", tenant="acme")).text() == "done"
    assert program.queries == ["select *"]


async def test_a_shared_agent_is_played_for_every_tenant(program: Program) -> None:
    """Also one that nobody has declared here, and that names what no tenant may."""
    await program.hf.agents.create("stored", model=OWN, tools=["internal_sql"])
    async with working(program.hf):
        started = await program.client(role="operator").post(f"{API}/runs", {"agent": "stored", "prompt": "x"})
        assert await program.hf.runs[started.json["id"]].text() == "done"


async def test_what_shared_agents_name_is_read_once_in_a_while(hf: Holdfast) -> None:
    """Not before each turn, and a definition once; but nothing is refused by what was read a while ago."""
    clock, core = ManualClock(), core_of(hf)
    read: list[int] = []

    async def transact(operation: Any, known: Any) -> Any:
        found = await core.runtime().transact(operation, known)
        read.append(len(set(found) - set(known)))
        return found

    policy = TenantPolicy(lambda: core.settings, tuple, lambda: Ports(clock=clock))
    asked = NOTHING._replace(models=frozenset({OWN}))
    for name in ("one", "two"):
        await hf.agents.create(name, model=OWN)
    for _ in range(3):
        assert await policy.refusal("acme", asked, transact) is None
    assert read == [2]
    new = NOTHING._replace(models=frozenset({"scripted:new"}))
    assert "may not use model 'scripted:new'" in str(await policy.refusal("acme", new, transact))
    await hf.agents.create("three", model="scripted:new")
    assert await policy.refusal("acme", new, transact) is None
    assert read == [2, 0, 1]
    for id in [each.id for each in await hf.agents.list()]:
        await hf.agents.delete(id)
    assert await policy.refusal("acme", asked, transact) is None
    clock.us += 10_000_000
    assert "may not use model" in str(await policy.refusal("acme", asked, transact))
    assert read == [2, 0, 1, 0]


async def test_an_operator_of_a_tenant_names_no_other_model(program: Program) -> None:
    """For a run, a message, a fork or a summary."""
    ann, dear = program.client(role="operator"), "claude-opus-5-5"
    body = {"agent": "guide", "prompt": "x"}
    async with working(program.hf):
        run = (await ann.post(f"{API}/runs", {**body, "session": "s", "model": "scripted:shared"})).json["id"]
        await program.hf.runs[run].result()
    for path, said in (
        (f"{API}/runs", {**body, "model": dear}),
        (f"{API}/sessions/s/send", {**body, "model": dear}),
        (f"{API}/runs/{run}/fork", {"at": 1, "model": dear}),
        (f"{API}/sessions/s/compact", {"config": {"summarizer": dear}}),
    ):
        answer = await ann.post(path, said)
        assert (answer.status, f"may not use model '{dear}'" in answer.body.decode()) == (422, True), answer.body
    free = await program.client(tenant=None).post(f"{API}/runs/{run}/fork", {"at": 1, "model": "scripted:own"})
    assert free.status == 201
