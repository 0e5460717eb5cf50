"""The Redis-protocol gateway: any program with a Redis client can be a worker, and gets leases for it.

`frames` parses and `replies` writes the protocol, `connection` serves one client, `table` lists the commands, and each
module of `commands` has those of one noun. What they do is done by the kernel; a reply is sent after its commit.
"""

DEFAULT_BIND = "127.0.0.1:6380"
