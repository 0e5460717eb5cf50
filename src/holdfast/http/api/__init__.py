"""The JSON API: a module for each noun, over the public calls of the app."""
