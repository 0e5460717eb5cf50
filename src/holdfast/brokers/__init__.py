"""Brokers: leases for code that is no handler. `hf.broker` gives one; many of them share one hub in their process."""
