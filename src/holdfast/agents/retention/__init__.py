"""Retention: what runs leave behind goes after a while, or when a tenant is erased; what they cost stays counted."""
