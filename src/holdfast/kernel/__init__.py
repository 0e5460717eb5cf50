"""Durable jobs: states, leases, queues, signals, steps, duties, on one database.

The kernel knows workers and jobs. It never says what a job is for.
"""
