"""Forks: sessions and runs that go another way from a point on, and how they compare."""
