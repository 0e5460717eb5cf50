"""How a program hands in work and reads what became of it: handles, results, and the way into the store."""
