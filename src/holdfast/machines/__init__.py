"""Machines: graphs of states in YAML that jobs follow, state by state, durably.

`load` turns a file into a checked graph, `stepping` says what follows from what without any I/O, and `engine` does it
as a job of the kernel: every event is stored before the next one happens.
"""
