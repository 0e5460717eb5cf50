"""The language of machines as a table: every key, what it may hold, and what it means.

The loader refuses what is not in it, the JSON Schema that editors read and the reference page are made of it. So a key
exists here, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SPEC = "flatmachine"
VERSION = "0.8.3"  # the dialect that this page and the examples are written in
ANY = ("string", "integer", "number", "boolean", "object", "array", "null")


@dataclass(frozen=True, slots=True)
class Key:
    """One key: `types` are JSON's, `of` names the table that its mapping, or each value of it, follows."""

    types: tuple[str, ...]
    means: str
    required: bool = False
    of: str = ""
    each: str = ""  # every value of this mapping, or item of this list, follows that table
    one_of: tuple[str, ...] = ()
    least: float | None = None
    instead: str = ""  # the key is FlatAgents', and refused here: what to do instead


_TEXT, _WHOLE, _NUMBER, _FLAG, _MAP, _LIST = (
    ("string",),
    ("integer",),
    ("integer", "number"),
    ("boolean",),
    ("object",),
    ("array",),
)
_NAMES = ("string", "array")
_FEWER = "define an agent that has only these tools"

TABLES: Mapping[str, Mapping[str, Key]] = {
    "machine": {
        "spec": Key(_TEXT, "Always `flatmachine`.", required=True, one_of=(SPEC,)),
        "spec_version": Key(_TEXT, "The dialect; write it in quotes.", required=True),
        "data": Key(_MAP, "The machine itself.", required=True, of="data"),
        "metadata": Key(_MAP, "For you; nothing reads it."),
    },
    "data": {
        "name": Key(_TEXT, "What jobs of this machine are called: `machine:<name>`. Default: the name of the file."),
        "expression_engine": Key(_TEXT, "The language of conditions; there is one.", one_of=("simple",)),
        "context": Key(_MAP, "What the context is at the beginning; templates see `input`."),
        "agents": Key(
            _MAP,
            "Agents by the names that states use: the name of an agent of the program, or a definition.",
            each="agent",
        ),
        "machines": Key(_MAP, "Machines by the names that states use: the file or the name of each."),
        "states": Key(_MAP, "The states by their names.", required=True, each="state"),
        "settings": Key(_MAP, "Limits, and what a worker machine says of itself.", of="settings"),
        "persistence": Key(_MAP, "Read and left aside: every event is stored, always."),
        "hooks": Key(
            ("string", "object", "array"),
            "The hooks of all states: a registered name, `{name, args}`, or a list of these.",
        ),
        "lifecycle_hooks": Key(
            ("string", "object", "array"), "Hooks for the start and the end alone, written as `hooks`."
        ),
    },
    "settings": {
        "max_steps": Key(
            _WHOLE, "So many states may be entered, 1000 unless you say otherwise; then the machine fails.", least=1
        ),
        "timeout": Key(_NUMBER, "Seconds for each state that has no `timeout` of its own.", least=0),
        "heartbeat_interval": Key(_NUMBER, "Makes it a worker machine, whose context has a `worker_id`.", least=0),
        "worker_pool": Key(_TEXT, "The group that a worker machine belongs to."),
        "backends": Key(_MAP, "Where pools of work and the registry of workers are."),
        "parallel_fallback": Key(_TEXT, "Read and left aside: children always run side by side."),
    },
    "state": {
        "type": Key(_TEXT, "Where the machine begins, or ends.", one_of=("initial", "final")),
        "action": Key(_TEXT, "The hooks' `on_action` is called with this name. It returns a mapping, the `output`."),
        "hooks": Key(("string", "object", "array"), "The hooks of this state, in place of the machine's."),
        "machine": Key(
            ("string", "array"), "Machines to run and wait for: one, or a list of names or `{name, input}`."
        ),
        "input": Key(_MAP, "What `machine` or `agent` is given."),
        "mode": Key(
            _TEXT, "Of several machines: wait for all, or for the first that succeeds.", one_of=("settled", "any")
        ),
        "foreach": Key(("string", "array"), "A list: `machine`, `launch` or `action` is done for each item."),
        "as": Key(_TEXT, "What templates call the item; default `item`."),
        "key": Key(_TEXT, "Results are a mapping by this template's value, not a list."),
        "launch": Key(_NAMES, "Machines to start and not wait for."),
        "launch_input": Key(_MAP, "What launched machines are given."),
        "agent": Key(_TEXT, "The agent that answers `input`."),
        "execution": Key(_MAP, "How often the agent is asked.", of="execution"),
        "tool_loop": Key(("boolean", "object"), "Limits of an agent that calls tools.", of="tool_loop"),
        "sampling": Key(_TEXT, "Read and left aside; see `execution`.", one_of=("single", "multi")),
        "wait_for": Key(_TEXT, "A channel: the state waits for a signal on it, whose payload is the `output`."),
        "timeout": Key(_NUMBER, "Seconds that the state may take; then it fails with `TimeoutError`.", least=0),
        "output_to_context": Key(_MAP, "What the context takes from `output`."),
        "on_error": Key(
            ("string", "object"), "Where to go after an error: a state, or states by the error's class, and `default`."
        ),
        "output": Key(_MAP, "Of a final state: the result of the machine."),
        "transitions": Key(_LIST, "Where to go next: the first whose condition holds.", each="transition"),
    },
    "transition": {
        "condition": Key(_TEXT, "An expression over `context`, `input` and `output`. Without one it always holds."),
        "to": Key(_TEXT, "The next state.", required=True),
    },
    "execution": {
        "type": Key(_TEXT, "`default` asks once.", one_of=("default", "retry", "parallel", "mdap_voting")),
        "backoffs": Key(_LIST, "`retry`: seconds between tries; default 2, 8, 16, 35."),
        "jitter": Key(_NUMBER, "`retry`: how much of each pause is chance; default 0.1."),
        "n_samples": Key(_WHOLE, "`parallel`: how many answers; default 3.", least=1),
        "k_margin": Key(_WHOLE, "`mdap_voting`: the lead that wins; default 3.", least=1),
        "max_candidates": Key(_WHOLE, "`mdap_voting`: the most answers; default 10.", least=1),
    },
    "tool_loop": {
        "max_turns": Key(
            _WHOLE, "The most times that the model is asked; then the answer's `outcome` is `limited`.", least=1
        ),
        "max_tool_calls": Key(
            _WHOLE, "Refused: nothing counts the calls of a run.", instead="bound its turns, with `max_turns`"
        ),
        "tool_timeout": Key(
            _NUMBER,
            "Refused: each tool has a timeout of its own.",
            instead="give it to the tool, `@hf.tool(timeout=…)`",
        ),
        "total_timeout": Key(_NUMBER, "Seconds for all of it.", least=0),
        "max_cost": Key(_NUMBER, "The most it may cost, in dollars; then its `outcome` is `limited`.", least=0),
        "allowed_tools": Key(_LIST, "Refused: an agent has the tools that it was defined with.", instead=_FEWER),
        "denied_tools": Key(_LIST, "Refused, as `allowed_tools`.", instead=_FEWER),
    },
    "agent": {
        "model": Key(_TEXT, "A model, or the name of a profile in `profiles.yml`."),
        "instructions": Key(_TEXT, "What the model is told first."),
        "system": Key(_TEXT, "The same, as FlatAgents calls it."),
    },
}


def schema() -> dict[str, Any]:
    """The JSON Schema of the language."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A machine",
        "description": f"The language of machines, spec {SPEC}, dialect {VERSION}.",
        "$ref": "#/$defs/machine",
        "$defs": {name: _table_schema(table) for name, table in TABLES.items()},
    }


def _table_schema(table: Mapping[str, Key]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: _key_schema(key) for name, key in table.items()},
    }
    if required := [name for name, key in table.items() if key.required]:
        made["required"] = required
    return made


def _key_schema(key: Key) -> dict[str, Any]:
    types = [name for name in key.types if not (name == "integer" and "number" in key.types)]
    if key.instead:
        return {"description": f"{key.means} Instead, {key.instead}.", "not": {}}
    made: dict[str, Any] = {"description": key.means, "type": types[0] if len(types) == 1 else types}
    if key.one_of:
        made["enum"] = list(key.one_of)
    if key.least is not None:
        made["minimum"] = key.least
    if key.of and key.types == _MAP:
        return {"description": key.means, "$ref": f"#/$defs/{key.of}"}
    if key.of:
        return {"description": key.means, "anyOf": [{"type": "boolean"}, {"$ref": f"#/$defs/{key.of}"}]}
    if key.each:
        table = {"$ref": f"#/$defs/{key.each}"}
        if key.each == "agent":
            table = {"anyOf": [{"type": "string"}, table]}  # type: ignore[dict-item]
        made["items" if key.types == _LIST else "additionalProperties"] = table
    return made
