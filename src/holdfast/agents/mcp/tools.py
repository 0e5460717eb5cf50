"""Tools of MCP servers: `await hf.mcp("files", command=[…])` makes each an ordinary tool of the app.

A call of one is a job like any other's, with its retries, its timeout and its cap; whichever worker runs it asks the
server over a connection of its own process. What a server says of itself is read once, when its tools are listed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast, get_args

from holdfast import validation
from holdfast.agents.content import PICTURES, Document, Image, Part, blocks_within, content_of
from holdfast.agents.core import AgentsCore
from holdfast.agents.definition import TOOL_KIND, Effect
from holdfast.agents.mcp.sessions import ConnectionLost, McpConnections, McpServer
from holdfast.agents.people.questions import OUTCOME_UNKNOWN
from holdfast.agents.toolbox import RemoteToolOptions, ToolOptions
from holdfast.agents.tools import Tool, ToolContext, ToolSignature, tool_name
from holdfast.errors import BadPayload, BadSetting, UsageError
from holdfast.kernel import codec
from holdfast.outcomes import Fail, TryAgain

if TYPE_CHECKING:
    from mcp_types import CallToolResult
    from mcp_types import Tool as Listed

TOOL_ERROR = "tool_error"
_QUOTED = 10


class McpOptions(RemoteToolOptions, total=False):
    """The options of `hf.mcp`: where a server is, which of its tools are meant, and the options of each."""

    command: Sequence[str]
    env: Mapping[str, str] | None
    cwd: str | Path | None
    url: str
    headers: Mapping[str, str] | None
    prefix: str | None
    only: Iterable[str] | None
    effect: Effect | None
    effects: Mapping[str, Effect] | None


class RemoteSignature(ToolSignature):
    """A server's own schema; the server checks the arguments."""

    def __init__(self, kind: str, function: Callable[..., Any], cap: int, schema: Mapping[str, Any]) -> None:
        super().__init__(kind, _unchecked, cap)
        self._function = function
        self._schema = dict(schema)

    def warm_up(self) -> None:
        """There is nothing to build."""

    def schema(self) -> dict[str, Any]:
        return self._schema

    def decode(self, payload: Any) -> dict[str, Any]:
        if not isinstance(payload, dict):
            raise BadPayload(f"the arguments of {self._kind!r} must be an object; got {type(payload).__name__}.")
        return payload

    def read(self, text: str) -> dict[str, Any]:
        return self.decode(codec.decode(text))

    def encode_result(self, value: Any) -> Any:
        return (
            blocks_within(value, self._output_cap) if isinstance(value, list) else content_of(value, self._output_cap)
        )


def _unchecked(ctx: ToolContext) -> None:
    """What a remote tool looks like from here: a context, and arguments that the server knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDeclarations:
    """How the tools of a server are declared; as the options of `@hf.tool`."""

    effect: Effect | None = None  # None: as the server says
    effects: Mapping[str, Effect] = field(default_factory=dict)
    options: RemoteToolOptions = field(default_factory=RemoteToolOptions)

    def effect_of(self, tool: Listed) -> Effect:
        """What the program says; a server's own hint is only for what it says nothing of."""
        said = self.effects.get(tool.name, self.effect)
        if said is not None:
            return said
        return "read" if tool.annotations is not None and tool.annotations.read_only_hint else "idempotent"


class McpTools:
    """The tools that an app has from MCP servers."""

    def __init__(self, core: AgentsCore) -> None:
        self._core = core
        self._connections = McpConnections(core.here)
        self._servers: dict[str, McpServer] = {}
        self._remote: dict[str, tuple[McpServer, str, Callable[..., Any]]] = {}
        core.closing.append(self._connections.close)

    async def declare(self, name: str, **options: Unpack[McpOptions]) -> list[Tool[Any, Any]]:
        """Ask a server for its tools, and declare them."""
        validation.option_names(options, McpOptions, "mcp")
        server = _server(
            name,
            command=options.get("command", ()),
            env=options.get("env"),
            cwd=options.get("cwd"),
            url=options.get("url", ""),
            headers=options.get("headers"),
        )
        if self._servers.get(name, server) != server:
            raise UsageError(f"this app already has an MCP server {name!r}: give this one another name.")
        effect = options.get("effect")
        declared = ToolDeclarations(
            effect=None if effect is None else _checked(effect),
            effects={tool: _checked(each) for tool, each in (options.get("effects") or {}).items()},
            options=_tool_options(options),
        )
        listed = await self._connections.list_tools(server)
        prefix = options.get("prefix")
        chosen = _chosen(server, listed, options.get("only"), declared.effects)
        names = _names(server, chosen, server.name if prefix is None else prefix)
        made = self._declare_remote(server, chosen, names, declared)
        self._servers[name] = server
        return made

    def declare_sync(self, name: str, **options: Unpack[McpOptions]) -> list[Tool[Any, Any]]:
        """`declare` for code without an event loop, a module that is imported for example; no connection stays open."""

        async def listed() -> list[Tool[Any, Any]]:
            try:
                return await self.declare(name, **options)
            finally:
                await self._connections.close()

        with ThreadPoolExecutor(1, "holdfast-mcp") as thread:  # the caller's thread may have a loop that runs
            return thread.submit(lambda: asyncio.run(listed())).result()

    def _declare_remote(
        self, server: McpServer, listed: Sequence[Listed], names: Mapping[str, str], declared: ToolDeclarations
    ) -> list[Tool[Any, Any]]:
        made = []
        for tool in listed:
            title = names[tool.name]
            function = self._remote_function(server, tool.name, title)
            function.__doc__ = tool.description or tool.title or ""
            cap = self._core.settings.tool_output_cap
            schema = RemoteSignature(TOOL_KIND + title, function, cap, tool.input_schema)
            own = cast(ToolOptions, {**declared.options, "name": title, "effect": declared.effect_of(tool)})
            made.append(self._core.tools.declare(function, schema, **own))
        return made

    def _remote_function(self, server: McpServer, name: str, title: str) -> Callable[..., Any]:
        """What calls a tool of a server; the same function when it is declared again, so that this is not a clash."""
        known = self._remote.get(title)
        if known is not None and known[:2] == (server, name):
            return known[2]
        connections, tools = self._connections, self._core.tools

        async def remote(ctx: ToolContext | None = None, /, **arguments: Any) -> Any:
            key = None if ctx is None else ctx.idempotency_key
            tool = tools.find(title)
            again = tool is not None and tool.effect != "once"
            try:
                return value_of(await connections.call_tool(server, name, arguments, key, again=again))
            except ConnectionLost as problem:
                return TryAgain(error=str(problem), type=OUTCOME_UNKNOWN)

        remote.__name__ = remote.__qualname__ = title
        self._remote[title] = (server, name, remote)
        return remote


def _tool_options(options: McpOptions) -> RemoteToolOptions:
    """Those that are for each tool of the server. What can be read once only is read here."""
    each = {name: value for name, value in options.items() if name in RemoteToolOptions.__annotations__}
    if "requires" in each:
        each["requires"] = tuple(options["requires"])
    return cast(RemoteToolOptions, each)


def value_of(result: CallToolResult) -> str | list[Part] | Fail:
    """What a server answered, as what a tool returns. What it calls an error is one, and is not tried again."""
    parts = [_part(content) for content in result.content]
    if not parts and result.structured_content is not None:
        from pydantic_core import to_json

        parts = [to_json(result.structured_content).decode()]
    if result.is_error:
        text = "\n".join(part for part in parts if isinstance(part, str))
        return Fail(text or "the server reports that the call failed, without a reason", TOOL_ERROR)
    match parts:
        case []:
            return ""
        case [str() as text]:
            return text
        case _:
            return parts


def _part(content: Any) -> Part:
    match content.type:
        case "text":
            return str(content.text)
        case "image":
            return _binary(content.data, content.mime_type, "an image")
        case "resource" if hasattr(content.resource, "text"):
            return f"{content.resource.uri}\n{content.resource.text}"
        case "resource":
            return _binary(content.resource.blob, content.resource.mime_type or "", str(content.resource.uri))
        case "resource_link":
            return f"[a link to a resource: {content.name} {content.uri}]"
        case "audio":
            return f"[sound that cannot be shown, {content.mime_type}]"
        case other:
            return f"[content that cannot be shown: {other}]"


def _binary(data: str, media_type: str, what: str) -> Part:
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return f"[{what} that is not base64]"
    if raw and media_type in PICTURES:
        return Image(raw, media_type)
    if raw and media_type == "application/pdf":
        return Document(raw, media_type)
    return f"[{what} that cannot be shown: {media_type or 'of no type'}, {len(raw):,} bytes]"


def _server(
    name: str,
    *,
    command: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: str | Path | None,
    url: str,
    headers: Mapping[str, str] | None,
) -> McpServer:
    tool_name(name)
    if isinstance(command, str):
        raise UsageError(f'the command of MCP server {name!r} is a list of words: command=["python", "-m", "server"].')
    if bool(command) == bool(url):
        raise UsageError(f"MCP server {name!r} has either a command=[…] or a url=.")
    if url and (env or cwd):
        raise UsageError(f"MCP server {name!r} is reached by its URL: env and cwd are for one that is started here.")
    if command and headers:
        raise UsageError(f"MCP server {name!r} is started here: headers are for one with a URL.")
    return McpServer(
        name=name,
        command=tuple(map(str, command)),
        env=dict(env or {}),
        cwd=None if cwd is None else Path(cwd),
        url=url,
        headers=dict(headers or {}),
    )


def _checked(effect: Any) -> Effect:
    if effect not in get_args(Effect):
        raise BadSetting(f'effect must be "read", "idempotent" or "once"; got {effect!r}.')
    known: Effect = effect
    return known


def _chosen(
    server: McpServer, listed: Sequence[Listed], only: Iterable[str] | None, effects: Mapping[str, Effect]
) -> list[Listed]:
    offered = [tool.name for tool in listed]
    if isinstance(only, str):
        raise UsageError(f"only is a list of names: only=[{only!r}].")
    wanted = offered if only is None else list(only)
    for name in (*wanted, *effects):
        if name not in offered:
            raise UsageError(
                f"MCP server {server.name!r} has no tool {name!r}; it has {_quoted(sorted(offered)) or 'none'}."
            )
    return [tool for tool in listed if tool.name in wanted]


def _names(server: McpServer, listed: Sequence[Listed], prefix: str) -> dict[str, str]:
    """What each tool is called here; `UsageError` naming those that cannot be, or that no model could be shown."""
    names = {tool.name: f"{prefix}_{tool.name}" if prefix else tool.name for tool in listed}
    bad = [name for name, title in names.items() if not _is_name(title)]
    if bad:
        raise UsageError(
            f"MCP server {server.name!r} has tools whose names no model accepts: {_quoted(bad)}. A name "
            f"has letters, digits, _ and -, at most 128 with the prefix {prefix!r}; leave them out with only=[…]."
        )
    twice = [name for name, times in Counter(tool.name for tool in listed).items() if times > 1]
    if twice:
        raise UsageError(
            f"MCP server {server.name!r} has several tools of one name: {_quoted(twice)}. Leave them out with only=[…]."
        )
    odd = [tool.name for tool in listed if tool.input_schema.get("type") != "object"]
    if odd:
        raise UsageError(
            f"MCP server {server.name!r} has tools whose arguments are not an object: {_quoted(odd)}. "
            f"Leave them out with only=[…]."
        )
    return names


def _quoted(names: Sequence[str]) -> str:
    """A few of a server's names, which may be of any length."""
    some = ", ".join(repr(name if len(name) <= 64 else name[:64] + "…") for name in names[:_QUOTED])
    return some if len(names) <= _QUOTED else f"{some} and {len(names) - _QUOTED} more"


def _is_name(name: str) -> bool:
    try:
        return bool(tool_name(name))
    except UsageError:
        return False
