"""Live: events as they happen, to as many readers as there are."""
