"""Statements that a test plants."""
