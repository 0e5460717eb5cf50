"""Tools of an MCP server: this file is also the server; each process that needs it starts it. `python notes.py`."""

import sys
from pathlib import Path

from holdfast import Holdfast
from holdfast.models import Script, call, say

FOLDER = Path("notes")


def serve() -> None:
    """The server: any other server, in any language, works too."""
    from mcp.server.mcpserver import MCPServer
    from mcp_types import ToolAnnotations

    server = MCPServer("notes", log_level="ERROR")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def read(title: str) -> str:
        """Read a note."""
        return (FOLDER / Path(title).name).read_text()

    @server.tool()
    def write(title: str, text: str) -> str:
        """Write a note, in place of what it said."""
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / Path(title).name).write_text(text)
        return f"{len(text)} characters"

    server.run()


def main() -> None:
    hf = Holdfast("sqlite:///notes.db")
    tools = hf.sync.mcp("notes", command=[sys.executable, __file__, "serve"])
    hf.script(
        "clerk",
        Script(
            call("notes_write", title="tide.txt", text="high at six"),
            call("notes_read", title="tide.txt"),
            lambda messages: say(f"The note says: {messages[-1]['content'][0]['content']}."),
        ),
    )
    clerk = hf.agent("clerk", model="scripted:clerk", tools=tools)
    print(*(f"{tool.name} ({tool.effect})" for tool in tools), sep="\n")
    print(clerk.run_sync("Note the tide.").text)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
