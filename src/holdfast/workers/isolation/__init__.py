"""Isolation: handlers that run in processes of their own."""
