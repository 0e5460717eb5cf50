"""Warm-up: what layers get ready once a worker has started, beside what runs already."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable

from holdfast.workers.layer import Layer

log = logging.getLogger("holdfast.worker")


async def attended(layers: Iterable[Layer], capabilities: Collection[str], done: asyncio.Event) -> None:
    """Tell every layer that the worker has started, and set `done` when all are ready or cannot be."""
    try:
        await asyncio.gather(*(_started(layer, capabilities) for layer in layers))
    finally:
        done.set()


async def _started(layer: Layer, capabilities: Collection[str]) -> None:
    """Whatever goes wrong here, attempts meet it again and report it: the worker works."""
    try:
        await layer.started(capabilities)
    except Exception:
        log.exception("some preparations of %s failed; the first attempts may have to wait", layer.name)
