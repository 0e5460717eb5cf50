"""Agents: definitions, sessions, runs and tools, on the kernel's jobs. A run is a job, a tool call a child of it."""
