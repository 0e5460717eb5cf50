"""A real MCP server of its own process: `python mcp_server.py FOLDER` on its standard streams, with a port over HTTP.

Each call of a tool that leaves a trace appends a line to `calls` in the folder; the server's process id is in `pid`.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n pixel").decode()

server = MCPServer("notes", log_level="ERROR")
folder = Path(sys.argv[1])


def leave(line: str) -> None:
    with (folder / "calls").open("a") as calls:
        calls.write(line + "\n")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def read(path: str) -> str:
    """Read a note."""
    return f"note {path} of {os.environ.get('NOTES_OWNER', 'nobody')}"


@server.tool()
def write(path: str, text: str, ctx: Context[Any]) -> str:
    """Write a note."""
    meta: Any = ctx.request_context.meta or {}
    leave(f"write {path} {meta.get('holdfast/idempotency-key', '-')}")
    return f"wrote {len(text)} characters"


@server.tool()
def refuse(reason: str) -> str:
    """Always an error."""
    leave("refuse")
    raise ToolError(os.environ.get("NOTES_OWNER", reason) if reason == "owner" else reason)


@server.tool()
def mixed() -> CallToolResult:
    """Several kinds of content."""
    note = TextResourceContents(uri="note://a", mime_type="text/plain", text="remember")
    blob = BlobResourceContents(uri="note://b", mime_type="application/zip", blob=base64.b64encode(b"zip").decode())
    return CallToolResult(
        content=[
            TextContent(text="look"),
            ImageContent(data=PIXEL, mime_type="image/png"),
            EmbeddedResource(resource=note),
            EmbeddedResource(resource=blob),
        ]
    )


@server.tool()
def long(size: int) -> str:
    """A long answer."""
    return "x" * size


@server.tool()
def die() -> str:
    """Takes the server with it."""
    leave("die")
    os._exit(3)


@server.tool()
async def hang() -> str:
    """Answers never."""
    leave("hang")
    await asyncio.Event().wait()
    return "never"


if "crowd" in sys.argv:

    def lingering() -> list[str]:
        file = folder / "calls"
        return [line for line in file.read_text().splitlines() if line.startswith("linger")] if file.exists() else []

    @server.tool()
    async def linger(name: str) -> str:
        """Answers when it is asked for the second time."""
        leave(f"linger {name}")
        if lingering().count(f"linger {name}") == 1:
            await asyncio.Event().wait()
        return f"lingered {name}"

    @server.tool()
    async def die_with(count: int) -> str:
        """Takes the server with it, once so many calls linger."""
        leave("die_with")
        while len(lingering()) < count:  # noqa: ASYNC110  what is left there sets no event
            await asyncio.sleep(0.01)
        os._exit(3)


if "dotted" in sys.argv:

    @server.tool(name="a.b")
    def dotted() -> str:
        """A name that no model takes."""
        return "dotted"


(folder / "pid").write_text(str(os.getpid()))
with (folder / "starts").open("a") as starts:
    starts.write("x")

if __name__ == "__main__":
    ports = [word for word in sys.argv[2:] if word.isdigit()]
    if ports:
        server.run("streamable-http", host="127.0.0.1", port=int(ports[0]), json_response=True)
    else:
        server.run()
