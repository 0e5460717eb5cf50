"""Events of runs: how they are written, read and announced."""
