"""Separate programs with a reason to be separate, started with `python -I` in a scrubbed environment."""
