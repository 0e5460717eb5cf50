"""Pools of workers, at their own door."""
