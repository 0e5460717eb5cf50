"""An agent whose tool is served over the Redis protocol by `tool.py` or `tool.mjs`, in a process of its own.

HOLDFAST_URL=sqlite:///agent.db python agent.py
"""

import os

from holdfast import Holdfast

hf = Holdfast(os.environ["HOLDFAST_URL"])


# Only a worker with this tag gets its calls. What the model reads of the tool is written here, its code is not.
@hf.tool(queue="outside", requires=["tag:by=redis"])
def weather(city: str) -> str:
    """The weather in a city."""
    raise NotImplementedError


guide = hf.agent("guide", model="scripted:", tools=[weather])

if __name__ == "__main__":
    print(guide.run_sync("Oslo").text)
