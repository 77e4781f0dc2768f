"""Checkpoints that other libraries wrote: found by what they look like, read lazily."""
