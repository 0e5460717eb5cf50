"""The measured works, one module each: what it measures, how, and nothing about what is good enough."""
