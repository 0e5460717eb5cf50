"""The named SQL statements of the gateway."""
