"""The API of agents: the handles and lists that a program works with."""
