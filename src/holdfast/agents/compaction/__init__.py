"""Compaction: histories that are too long, made short and back again."""
