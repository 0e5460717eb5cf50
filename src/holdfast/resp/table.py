"""The table of commands: everything that the gateway understands. COMMAND, the arity checks and the reference page come
from it."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.resp.call import Command
from holdfast.resp.commands import (
    actions,
    command_docs,
    connecting,
    hashes,
    jobs,
    keyspace,
    leases,
    lists,
    plans,
    queues,
    runs,
    sorted_sets,
    strings,
    workers,
)

GROUPS: Mapping[str, tuple[Command, ...]] = {
    "Connections": (*connecting.COMMANDS, *command_docs.commands(lambda: TABLE)),
    "Workers": workers.COMMANDS,
    "Jobs": jobs.COMMANDS,
    "Leases": leases.COMMANDS,
    "Queues": queues.COMMANDS,
    "Plans and actions": (*plans.COMMANDS, *actions.COMMANDS),
    "Runs of agents": runs.COMMANDS,
    "Lists": lists.COMMANDS,
    "Keys": keyspace.COMMANDS,
    "Strings": strings.COMMANDS,
    "Hashes": hashes.COMMANDS,
    "Sorted sets": sorted_sets.COMMANDS,
}
TABLE: Mapping[str, Command] = {command.name: command for group in GROUPS.values() for command in group}
