"""A machine with a person in it: it writes, asks an editor, and writes again until the editor is content.

The graph is in article.yml; `holdfast machine draw article.yml` draws it. While it waits for the editor, no process has
to run. Kill it anywhere and start it again: no draft is written twice.
"""

import asyncio
from pathlib import Path
from typing import Any

from holdfast import Holdfast

hf = Holdfast()  # HOLDFAST_URL, or else a SQLite file in .holdfast/


class Newspaper:
    """What the states of the machine do."""

    def on_action(self, action: str, context: dict[str, Any]) -> dict[str, Any]:
        if action == "write_draft":
            return {"draft": f"{context['title']}, draft {context['round'] + 1}"}
        print(f"printing: {context['draft']}")
        return {}


article = hf.machine(Path(__file__).parent / "article.yml", hooks=Newspaper)


async def main() -> None:
    async with hf:
        execution = await article.enqueue({"title": "The Storm"})
        await hf.signal("editor/The Storm", {"verdict": "again", "remark": "too short"})
        await hf.signal("editor/The Storm", {"verdict": "print"})
        async for event in execution.events():
            if event.name == "entered":
                print(event.state)
        print(await execution.result())


if __name__ == "__main__":
    asyncio.run(main())
