"""The Unix-tool worker: takes plans from the gateway and runs their commands, without a shell.

It is a client of the Redis protocol like any other: it knows the gateway by its address and its key alone. A tool is
hostile until it has ended: it gets a clean environment, limits, a folder of its own, and nothing of ours.
"""
