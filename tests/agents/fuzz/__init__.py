"""Random programs of agents, played on a real database by real workers, and judged by what must always hold.

A seed makes a program: what a client does, what the models answer, how the provider fails, and at which of its commits
each worker is killed. Two apps share one database; each has a worker, and another after that one was killed. The
provider is the simulator, which refuses what the real one refuses. Time is the lab's.

The program follows from the seed alone. Which worker comes first to a job does not, so a failing seed may need to be
played a few times; `tests/simulation` is the place where the order is drawn, too.
"""
