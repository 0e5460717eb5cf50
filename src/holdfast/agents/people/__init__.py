"""People: what only a person can decide."""
