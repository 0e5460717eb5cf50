"""Runs: how one is created, played turn by turn, and ended."""
