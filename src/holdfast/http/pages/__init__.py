"""Pages: what a person sees in a browser. They hold no rules and no statements; they show what the API answers."""
