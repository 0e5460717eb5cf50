"""Names that the app had in earlier releases. Each still works, and a warning says what to write instead."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any


def _on_event(hf: Any) -> Any:
    return lambda callback, *names: hf.events(*names, to=callback)


def _instrument(hf: Any) -> Any:
    def instrument(**providers: Any) -> None:
        import_module("holdfast.telemetry").instrument(hf, **providers)  # it stands above the app, and may be missing

    return instrument


def _waited(name: str) -> Callable[[Any], Any]:
    return lambda hf: lambda *args, **options: hf.sync(getattr(hf, name)(*args, **options))


_RENAMED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "url": ("hf.settings.url", lambda hf: hf.settings.url),
    "used": ("hf.budgets.used", lambda hf: hf.budgets.used),
    "prices": ("hf.budgets.prices", lambda hf: hf.budgets.prices),
    "book": ("hf.script(name, script)", lambda hf: hf._core.book),
    "replay": ("hf.runs.replay", lambda hf: hf.runs.replay),
    "question": ("hf.inquiries.question", lambda hf: hf.inquiries.question),
    "on_inquiry": ("hf.inquiries.on_open", lambda hf: hf.inquiries.on_open),
    "on_event": ("hf.events(…, to=callback)", _on_event),
    "instrument": ("holdfast.telemetry.instrument(hf)", _instrument),
    "signal_sync": ("hf.sync.signal", lambda hf: hf.sync.signal),
    "session_sync": ("hf.sync.session", lambda hf: hf.sync.session),
    "mcp_sync": ("hf.sync.mcp", lambda hf: hf.sync.mcp),
    "close_sync": ("hf.sync.close", lambda hf: hf.sync.close),
    "approve_sync": ("hf.sync(hf.approve(…))", _waited("approve")),
    "deny_sync": ("hf.sync(hf.deny(…))", _waited("deny")),
    "answer_sync": ("hf.sync(hf.answer(…))", _waited("answer")),
    "upload_sync": ("hf.sync(hf.upload(…))", _waited("upload")),
}


class Renamed:
    """An object that answers to its earlier names. Type checkers see only the present ones."""

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name not in _RENAMED:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            now, find = _RENAMED[name]
            warnings.warn(f"hf.{name} is now {now}; the old name will be removed.", DeprecationWarning, stacklevel=2)
            return find(self)

        def __setattr__(self, name, value):
            if name in _RENAMED:
                now, _ = _RENAMED[name]
                if name not in ("prices", "url"):
                    raise AttributeError(f"hf.{name} cannot be set; it is now {now}.")
                warnings.warn(
                    f"hf.{name} is now {now}; the old name will be removed.", DeprecationWarning, stacklevel=2
                )
            if name == "prices":
                self.budgets.prices = value
            elif name == "url":
                self.settings = replace(self.settings, url=value)
            else:
                super().__setattr__(name, value)
