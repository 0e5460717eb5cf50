"""Planted bugs, each with the tests that must notice it: `make mutants` plants them one at a time."""
