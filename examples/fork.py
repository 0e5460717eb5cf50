"""What if a tool had returned something else, or another model had answered? Fork, compare and replay a run.

python fork.py
"""

import asyncio

from holdfast import Holdfast
from holdfast.events import ApprovalRequested
from holdfast.models import Script, call, say

hf = Holdfast()  # HOLDFAST_URL, or a file in this folder
BOOKED: list[str] = []

# Scripts stand in for models here, so that this runs without a key.
careful = (call("find_rooms", city="Athens"), call("book", room="12"), say("Room 12 is booked."))
hf.script(
    "careful",
    Script(
        careful[0],
        lambda messages: say("There is no room.") if "nothing" in str(messages[-1]) else careful[1],
        careful[2],
    ),
)
hf.script("bold", Script(careful[0], call("book", room="suite"), say("The suite was too expensive.")))


@hf.tool(effect="read")
def find_rooms(city: str) -> str:
    """Rooms that are free in a city."""
    return "12, suite"


@hf.tool
def book(room: str) -> str:
    """Book a room."""
    BOOKED.append(room)
    return f"booked {room}"


desk = hf.agent("desk", model="scripted:careful", tools=[find_rooms, book])


async def main() -> None:
    async with hf:
        run = await desk.enqueue("A room in Athens, please.")
        print(await run.text())

        same = await run.fork()  # from the beginning, with what its tools returned
        print("again:", await same.text(), "booked:", BOOKED)

        full = await run.fork(results={"find_rooms": "nothing"})
        print("with nothing free:", await full.text())

        bold = await run.fork(at=2, model="scripted:bold")  # books another room, so it asks a person
        async for event in bold.stream():
            if isinstance(event, ApprovalRequested):
                await hf.deny(event.call.id, message="Too expensive.")
        compared = await hf.runs.compare(run, bold)
        print("calls:", " ".join(f"{pair.mark}{pair.name}" for pair in compared.calls))
        print("\n".join(compared.diff[3:]))

        replayed = await hf.runs.replay(run)
        print(f"replayed: {replayed.turns} turns, the same: {replayed.same}. booked: {BOOKED}")


if __name__ == "__main__":
    asyncio.run(main())
