"""Capsules: a run as one file, and runs played again from what was recorded."""
