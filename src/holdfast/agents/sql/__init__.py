"""The statements of agents, by subject."""
