"""The smallest program: one decorated function, run durably. Kill it anywhere and run it again."""

from holdfast import Holdfast

hf = Holdfast("sqlite:///quick.db")


@hf.job
async def greet(name: str) -> str:
    return f"hello, {name}"


if __name__ == "__main__":
    print(greet.run_sync("Oslo"))
