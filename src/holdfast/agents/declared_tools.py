"""Declared tools: what workers say of the tools whose code they have, for agents that are made in other processes.

A worker writes them when it starts. So `hf.agents.create(tools=["name"])` takes a name that this program does not know,
as long as some worker has declared it; any worker that has the code then serves the agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from holdfast.agents.definition import ToolSpec
from holdfast.agents.statements import ToolsSql
from holdfast.errors import UsageError
from holdfast.kernel import codec, stored_json
from holdfast.kernel.database import Transaction, reading

_CAP = 1 << 20


async def declare_tools(tx: Transaction, tools: Iterable[ToolSpec]) -> None:
    """Write down what tools are, in the order of their names; what is there already is not written again."""
    for tool in sorted(tools, key=lambda each: each.name):
        text = codec.encode(asdict(tool), what=f"tool {tool.name!r}", cap=_CAP)
        await tx.run(ToolsSql.declare_tool, name=tool.name, definition=text, digest=codec.digest(text))


@reading
async def declared_tools(tx: Transaction, names: Sequence[str]) -> dict[str, ToolSpec]:
    """These tools as a worker declared them; `UsageError` names the first that nobody has."""
    found = {}
    for row in await tx.many(ToolsSql.find_tools, names=names):
        found[row.name] = stored_json.read(ToolSpec, codec.decode(row.definition), what=f"tool {row.name!r}")
    for name in names:
        if name not in found:
            raise UsageError(
                f"there is no tool {name!r}: this program does not declare it, and no worker ever has. "
                f"Declare it here with @hf.tool, or start a worker that has it first."
            )
    return found
