"""Hooks to derive from."""

from holdfast.facades.flatagents import *  # noqa: F403  all of them
