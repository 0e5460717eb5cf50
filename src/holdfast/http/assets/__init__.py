"""Files that pages load: one stylesheet, our script, and what `make assets` vendors."""
