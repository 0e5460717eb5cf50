"""Public values of agents: runs, sessions, batches and the rest, in the shape that `holdfast.values` describes."""
