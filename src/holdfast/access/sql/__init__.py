"""The statements of access."""
