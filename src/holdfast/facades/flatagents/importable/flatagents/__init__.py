"""FlatAgents' names, served by Holdfast. Programs find this package once they have called `install()`."""

from holdfast.facades.flatagents import *  # noqa: F403  all of them

MADE_BY_HOLDFAST = True
