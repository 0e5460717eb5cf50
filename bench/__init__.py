"""The benchmark: Holdfast, its peers and a bare loop of SQL, on one machine, in one run, round by round.

`make bench` runs it and writes docs/performance.md. Only figures of the same run may be compared.
"""
