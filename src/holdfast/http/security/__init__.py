"""Security of the web: who asks, what they may do, and what a browser may be made to do."""
