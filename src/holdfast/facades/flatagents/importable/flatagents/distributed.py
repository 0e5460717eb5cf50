"""Pools of work and the registry of workers."""

from holdfast.facades.flatagents import *  # noqa: F403  all of them
