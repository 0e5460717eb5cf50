"""Batches: turns of many runs that go to the provider together."""
