"""One operation stopped between its statements while another runs: on PostgreSQL, over all pairs of verbs.

The harness speaks to operations of the kernel and of the agents. It reads no table, so it judges whatever tables there
are: two operations must leave and answer what they would one after the other, and then everything must come to its end.
"""
