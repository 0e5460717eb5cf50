"""One worker process: it claims jobs, runs attempts under leases, shows life, sweeps, and drains."""
