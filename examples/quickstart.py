"""The smallest program: an agent with a tool, no key and no service. Kill it anywhere and run it again."""

from holdfast import Holdfast

hf = Holdfast("sqlite:///quick.db")


@hf.tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


guide = hf.agent("guide", model="scripted:", tools=[weather])

if __name__ == "__main__":
    print(guide.run_sync("Oslo", key="demo").text)
