"""An app whose calls replace each other while workers claim: in lanes, without lanes, and debounced."""

from __future__ import annotations

from holdfast.app import Holdfast
from holdfast.settings import Settings
from tests.chaos.jobs import note

hf = Holdfast(settings=Settings(), embedded=False)


@hf.job(name="laned", unique="pending", on_duplicate="replace", concurrency=1)
async def laned(witness: str, key: str, number: int) -> None:
    note(witness, f"{key} {number}")


@hf.job(name="plain", unique="pending", on_duplicate="replace")
async def plain(witness: str, key: str, number: int) -> None:
    note(witness, f"{key} {number}")


@hf.job(name="debounced", debounce="20ms", concurrency=1)
async def debounced(witness: str, key: str, number: int) -> None:
    note(witness, f"{key} {number}")
